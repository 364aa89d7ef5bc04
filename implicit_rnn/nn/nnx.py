"""Layers for nnx: parameters are `nnx.Param`s."""

from __future__ import annotations

from typing import Any

import jax
from flax import nnx

from implicit_rnn.cells.base import Cell, Params, State
from implicit_rnn.nn.batch import (
    NONE,
    Partition,
    both_ways,
    check_solved,
    check_unrolled,
    init_both,
    named,
    solved,
    unrolled,
)
from solvers import Info


class _Layer(nnx.Module):
    """Parameters as nnx has them, and settings of the pure function."""

    def __init__(self, params: Params, partition: Partition, settings: dict[str, Any]) -> None:
        def variable(leaf: jax.Array, names: tuple | None) -> nnx.Param:
            return nnx.Param(leaf) if names is None else nnx.Param(leaf, out_sharding=names)

        self.params = nnx.data(named(variable, params, partition))
        self.settings = settings

    def values(self) -> Params:
        """The parameters as the pure functions take them."""
        return jax.tree.map(
            lambda leaf: leaf[...], self.params, is_leaf=lambda leaf: isinstance(leaf, nnx.Param)
        )


class _CellLayer(_Layer):
    """A layer of one cell."""

    def __init__(
        self,
        cell: Cell,
        input_size: int,
        *,
        rngs: nnx.Rngs,
        partition: Partition = NONE,
        **settings: Any,
    ) -> None:
        self._check(cell, settings)
        super().__init__(cell.init(rngs.params(), input_size), partition, settings)
        self.cell = cell

    def _check(self, cell: Cell, settings: dict[str, Any]) -> None:
        """Refuses a cell or a setting that the layer could not be called with."""
        raise NotImplementedError


class Implicit(_CellLayer):
    """An implicit layer for nnx: `layer(xs, length) -> (outputs, Info)`.

    Args:
      cell: a cell that looks ahead.
      input_size: width of the inputs.
      rngs: draws the parameters.
      partition: names of mesh axes for parameters, by path.
      **settings: for `implicit_rnn.implicit_batch` (`method`, `adjoint`, `rtol`, ...).

    >>> import jax.numpy as jnp
    >>> from implicit_rnn import cells
    >>> layer = Implicit(cells.igru(4), 3, rngs=nnx.Rngs(0), method="banded")
    >>> outputs, info = layer(jnp.ones((2, 5, 3)), length=jnp.array([5, 2]))
    >>> outputs.shape
    (2, 5, 4)
    """

    def _check(self, cell: Cell, settings: dict[str, Any]) -> None:
        check_solved(cell, settings)

    def __call__(
        self,
        xs: jax.Array,
        length: jax.Array | None = None,
        *,
        start: State | str | None = None,
        probe: Info | None = None,
        key: jax.Array | None = None,
    ) -> tuple[jax.Array, Info]:
        """Solves a batch.

        Args:
          xs: `[batch, time, input_size]`.
          length: `[batch]`.
          start: as for `implicit_batch`: states of an earlier solve make a warm start.
          probe: receives the report on the backward solve as its gradient.
          key: for a random start.
        """
        return solved(
            self.cell, self.values(), xs, length, self.settings, start=start, probe=probe, key=key
        )


class Recurrent(_CellLayer):
    """A causal layer for nnx: `layer(xs, length, state) -> (outputs, last state)`.

    Args:
      cell: a causal cell.
      input_size: width of the inputs.
      rngs: draws the parameters.
      partition: names of mesh axes for parameters, by path.
      **settings: for `implicit_rnn.unroll` (`reverse`, ...).

    >>> import jax.numpy as jnp
    >>> from implicit_rnn import cells
    >>> layer = Recurrent(cells.lstm(4), 3, rngs=nnx.Rngs(0))
    >>> outputs, last = layer(jnp.ones((2, 5, 3)), length=jnp.array([5, 2]))
    >>> outputs.shape, last.c.shape
    ((2, 5, 4), (2, 4))
    """

    def _check(self, cell: Cell, settings: dict[str, Any]) -> None:
        check_unrolled(settings, cell)

    def __call__(
        self, xs: jax.Array, length: jax.Array | None = None, state: State | None = None
    ) -> tuple[jax.Array, State]:
        """Runs a batch: `xs` `[batch, time, input_size]`, `length` and all of `state` `[batch]`."""
        return unrolled(self.cell, self.values(), xs, length, state, self.settings)


class Bidirectional(_Layer):
    """Two causal cells for nnx, from either end: `layer(xs, length, state) -> (outputs, states)`.

    Args:
      fwd_cell, bwd_cell: causal cells.
      input_size: width of the inputs.
      rngs: draws the parameters, those of the cells under `forward` and `backward`.
      partition: names of mesh axes for parameters, by path.
      **settings: for `implicit_rnn.unroll`.
    """

    def __init__(
        self,
        fwd_cell: Cell,
        bwd_cell: Cell,
        input_size: int,
        *,
        rngs: nnx.Rngs,
        partition: Partition = NONE,
        **settings: Any,
    ) -> None:
        check_unrolled(settings, fwd_cell, bwd_cell)
        params = init_both(fwd_cell, bwd_cell, rngs.params(), input_size)
        super().__init__(params, partition, settings)
        self.fwd_cell = fwd_cell
        self.bwd_cell = bwd_cell

    def __call__(
        self,
        xs: jax.Array,
        length: jax.Array | None = None,
        state: tuple[State, State] | None = None,
    ) -> tuple[jax.Array, tuple[State, State]]:
        """Runs a batch: `xs` `[batch, time, input_size]`, `length` and all of `state` `[batch]`."""
        both = self.fwd_cell, self.bwd_cell
        return both_ways(*both, self.values(), xs, length, state, self.settings)
