"""flax modules, nnx and linen, around the pure functions of the implicit layer."""

from __future__ import annotations

from typing import Any

import flax.linen
import jax
from flax import nnx

from implicit_rnn.cells.base import Cell
from implicit_rnn.sequence import implicit_batch
from solvers import Info


class Implicit(nnx.Module):
    """An implicit layer for nnx: `layer(xs, length) -> (outputs, Info)`.

    Args:
      cell: a cell that looks ahead.
      input_size: width of the inputs.
      rngs: draws the parameters.
      **settings: for `implicit_rnn.implicit_batch` (`method`, `adjoint`, `rtol`, ...).

    >>> import jax.numpy as jnp
    >>> from implicit_rnn import cells
    >>> layer = Implicit(cells.igru(4), 3, rngs=nnx.Rngs(0), method="banded")
    >>> outputs, info = layer(jnp.ones((2, 5, 3)), length=jnp.array([5, 2]))
    >>> outputs.shape
    (2, 5, 4)
    """

    def __init__(self, cell: Cell, input_size: int, *, rngs: nnx.Rngs, **settings: Any) -> None:
        self.cell = cell
        self.settings = settings
        params = cell.init(rngs.params(), input_size)
        self.params = nnx.data(jax.tree.map(nnx.Param, params))

    def __call__(self, xs: jax.Array, length: jax.Array | None = None) -> tuple[jax.Array, Info]:
        """Solves a batch: `xs` `[batch, time, input_size]`, `length` `[batch]`."""
        params = jax.tree.map(
            lambda leaf: leaf[...], self.params, is_leaf=lambda leaf: isinstance(leaf, nnx.Param)
        )
        return _batch(self.cell, params, xs, length, self.settings)


class LinenImplicit(flax.linen.Module):
    """An implicit layer for linen: `apply(variables, xs, length) -> (outputs, Info)`."""

    cell: Cell
    settings: Any = flax.core.FrozenDict()

    @flax.linen.compact
    def __call__(self, xs: jax.Array, length: jax.Array | None = None) -> tuple[jax.Array, Info]:
        """Solves a batch: `xs` `[batch, time, input_size]`, `length` `[batch]`."""
        params = self.param("cell", lambda key: self.cell.init(key, xs.shape[-1]))
        return _batch(self.cell, params, xs, length, dict(self.settings))


def _batch(
    cell: Cell, params: Any, xs: jax.Array, length: jax.Array | None, settings: dict
) -> tuple[jax.Array, Info]:
    states, info = implicit_batch(cell, params, xs, length=length, **settings)
    return cell.output(states), info
