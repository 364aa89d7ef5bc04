"""The implicit GRU: equation 2 of the 2017 paper."""

from __future__ import annotations

from implicit_rnn.cells.base import Boundary, Cell
from implicit_rnn.cells.factory import cell_factory
from implicit_rnn.cells.gru import gru
from implicit_rnn.cells.implicit import implicit
from implicit_rnn.cells.memory import SPREAD, Memory


@cell_factory
def igru(
    hidden_size: int,
    *,
    update_bias: float | None = None,
    stencil: tuple[int, ...] = (-1, 1),
    boundary: Boundary = "zero",
    split: float = 4.0,
    memory: Memory | None = SPREAD,
) -> Cell:
    """`implicit(gru(hidden_size))`: a GRU whose previous state is a mix of both neighbours.

    Args:
      hidden_size: width of the state.
      update_bias: as for `gru`, the same for all channels; then `memory` does not count.
      stencil, boundary, split, memory: as for `implicit`.
    """
    cell = implicit(
        gru(hidden_size, update_bias=update_bias or 0.0),
        stencil=stencil,
        boundary=boundary,
        split=split,
        memory=memory if update_bias is None else None,
    )
    return cell._replace(name="igru")
