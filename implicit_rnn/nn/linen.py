"""Layers for linen: parameters are variables of the collection `params`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen
import jax

from implicit_rnn.cells.base import Cell, Params, State
from implicit_rnn.nn.batch import (
    NONE,
    Partition,
    Solved,
    Unrolled,
    both_ways,
    check_solved,
    check_unrolled,
    init_both,
    named,
    solved,
    unrolled,
)
from solvers import Info


class _LinenLayer(flax.linen.Module):
    """Parameters as linen has them."""

    def _values(
        self, init: Callable[[jax.Array, int], Params], xs: jax.Array, partition: Partition
    ) -> Params:
        def variable(leaf: jax.Array, names: tuple | None) -> Any:
            return leaf if names is None else flax.linen.Partitioned(leaf, names)

        return self.param("cell", lambda key: named(variable, init(key, xs.shape[-1]), partition))


class _LinenCellLayer(_LinenLayer):
    """A layer of one cell."""

    cell: Cell
    settings: Any = NONE
    partition: Partition = NONE


class LinenImplicit(_LinenCellLayer):
    """An implicit layer for linen: `apply(variables, xs, length) -> (outputs, Info)`."""

    def __post_init__(self) -> None:
        check_solved(self.cell, self.settings)
        super().__post_init__()

    @flax.linen.compact
    def __call__(
        self,
        xs: jax.Array,
        length: jax.Array | None = None,
        *,
        start: State | str | None = None,
        probe: Info | None = None,
        key: jax.Array | None = None,
    ) -> Solved:
        """Solves a batch.

        Args:
          xs: `[batch, time, input_size]`.
          length: `[batch]`.
          start: as for `implicit_batch`: states of an earlier solve make a warm start.
          probe: receives the report on the backward solve as its gradient.
          key: for a random start.
        """
        params = self._values(self.cell.init, xs, self.partition)
        return solved(
            self.cell, params, xs, length, self.settings, start=start, probe=probe, key=key
        )


class LinenRecurrent(_LinenCellLayer):
    """A causal layer for linen: `apply(variables, xs, length, state) -> (outputs, last state)`."""

    def __post_init__(self) -> None:
        check_unrolled(self.settings, self.cell)
        super().__post_init__()

    @flax.linen.compact
    def __call__(
        self, xs: jax.Array, length: jax.Array | None = None, state: State | None = None
    ) -> Unrolled:
        """Runs a batch: `xs` `[batch, time, input_size]`, `length` and all of `state` `[batch]`."""
        params = self._values(self.cell.init, xs, self.partition)
        return unrolled(self.cell, params, xs, length, state, self.settings)


class LinenBidirectional(_LinenLayer):
    """Two causal cells for linen: `apply(variables, xs, length, state) -> (outputs, states)`."""

    fwd_cell: Cell
    bwd_cell: Cell
    settings: Any = NONE
    partition: Partition = NONE

    def __post_init__(self) -> None:
        check_unrolled(self.settings, self.fwd_cell, self.bwd_cell)
        super().__post_init__()

    @flax.linen.compact
    def __call__(
        self,
        xs: jax.Array,
        length: jax.Array | None = None,
        state: tuple[State, State] | None = None,
    ) -> Unrolled:
        """Runs a batch: `xs` `[batch, time, input_size]`, `length` and all of `state` `[batch]`."""
        both = self.fwd_cell, self.bwd_cell
        params = self._values(lambda *at: init_both(*both, *at), xs, self.partition)
        return both_ways(*both, params, xs, length, state, self.settings)
