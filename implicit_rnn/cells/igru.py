"""The implicit GRU: equation 2 of the 2017 paper."""

from __future__ import annotations

from implicit_rnn.cells.base import Boundary, Cell
from implicit_rnn.cells.factory import cell_factory
from implicit_rnn.cells.gru import gru
from implicit_rnn.cells.implicit import implicit


@cell_factory
def igru(
    hidden_size: int,
    *,
    update_bias: float = 0.0,
    stencil: tuple[int, ...] = (-1, 1),
    boundary: Boundary = "zero",
) -> Cell:
    """`implicit(gru(hidden_size))`: a GRU whose previous state is a mix of both neighbours.

    Args:
      hidden_size: width of the state.
      update_bias: as for `gru`; below zero, states change slowly at first.
      stencil, boundary: as for `implicit`.
    """
    cell = implicit(gru(hidden_size, update_bias=update_bias), stencil=stencil, boundary=boundary)
    return cell._replace(name="igru")
