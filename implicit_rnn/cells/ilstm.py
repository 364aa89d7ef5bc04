"""The implicit LSTM: the future work of the 2017 paper."""

from __future__ import annotations

from implicit_rnn.cells.base import Boundary, Cell
from implicit_rnn.cells.factory import cell_factory
from implicit_rnn.cells.implicit import implicit
from implicit_rnn.cells.lstm import lstm


@cell_factory
def ilstm(
    hidden_size: int,
    *,
    forget_bias: float = 1.0,
    stencil: tuple[int, ...] = (-1, 1),
    boundary: Boundary = "zero",
) -> Cell:
    """`implicit(lstm(hidden_size))`: output and memory are mixed by the same switch.

    Args:
      hidden_size: width of output and memory.
      forget_bias: as for `lstm`.
      stencil, boundary: as for `implicit`.
    """
    cell = implicit(lstm(hidden_size, forget_bias=forget_bias), stencil=stencil, boundary=boundary)
    return cell._replace(name="ilstm")
