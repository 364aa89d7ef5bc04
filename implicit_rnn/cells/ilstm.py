"""The implicit LSTM: the future work of the 2017 paper."""

from __future__ import annotations

from implicit_rnn.cells.base import Boundary, Cell
from implicit_rnn.cells.factory import cell_factory
from implicit_rnn.cells.implicit import implicit
from implicit_rnn.cells.lstm import lstm
from implicit_rnn.cells.memory import SPREAD, Memory


@cell_factory
def ilstm(
    hidden_size: int,
    *,
    forget_bias: float | None = None,
    stencil: tuple[int, ...] = (-1, 1),
    boundary: Boundary = "zero",
    split: float = 4.0,
    memory: Memory | None = SPREAD,
) -> Cell:
    """`implicit(lstm(hidden_size))`: output and memory are mixed by the same switch.

    Args:
      hidden_size: width of output and memory.
      forget_bias: as for `lstm`, the same for all channels; then `memory` does not count.
      stencil, boundary, split, memory: as for `implicit`.
    """
    cell = implicit(
        lstm(hidden_size, forget_bias=1.0 if forget_bias is None else forget_bias),
        stencil=stencil,
        boundary=boundary,
        split=split,
        memory=memory if forget_bias is None else None,
    )
    return cell._replace(name="ilstm")
