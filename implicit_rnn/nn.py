"""flax modules, nnx and linen, around the pure functions: solved, causal and bidirectional layers.

A linen module holds the parameters of its cell under `params/cell`, an nnx module as `nnx.Param`s
in `params`: both in the tree that `cell.init` gives. Every module takes `partition`, names of mesh
axes for some of the parameters by path, such as `{"input": (None, "model")}` or, in a cell within a
cell, `{"cell/gates": (None, "model")}`. They become the metadata that flax's own layers have with
`with_partitioning`; as there, nnx puts values on the mesh at once and needs one
(`jax.set_mesh(mesh)`), unless `nnx.use_eager_sharding(False)`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import flax.linen
import jax
import jax.numpy as jnp
from flax import nnx

from implicit_rnn.cells.base import Cell, Params, State
from implicit_rnn.sequence import bidirectional, implicit_batch, init_bidirectional, unroll
from solvers import Info

Partition = Mapping[str, tuple[str | None, ...]]
NONE: Any = flax.core.FrozenDict()


class _Layer(nnx.Module):
    """Parameters as nnx has them, and settings of the pure function."""

    def __init__(self, params: Params, partition: Partition, settings: dict[str, Any]) -> None:
        def variable(leaf: jax.Array, names: tuple | None) -> nnx.Param:
            return nnx.Param(leaf) if names is None else nnx.Param(leaf, out_sharding=names)

        self.params = nnx.data(_named(variable, params, partition))
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
        super().__init__(cell.init(rngs.params(), input_size), partition, settings)
        self.cell = cell


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

    def __call__(self, xs: jax.Array, length: jax.Array | None = None) -> tuple[jax.Array, Info]:
        """Solves a batch: `xs` `[batch, time, input_size]`, `length` `[batch]`."""
        return _solved(self.cell, self.values(), xs, length, self.settings)


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

    def __call__(
        self, xs: jax.Array, length: jax.Array | None = None, state: State | None = None
    ) -> tuple[jax.Array, State]:
        """Runs a batch: `xs` `[batch, time, input_size]`, `length` and all of `state` `[batch]`."""
        return _unrolled(self.cell, self.values(), xs, length, state, self.settings)


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
        params = _init_both(fwd_cell, bwd_cell, rngs.params(), input_size)
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
        return _both(*both, self.values(), xs, length, state, self.settings)


class _LinenLayer(flax.linen.Module):
    """Parameters as linen has them."""

    def _values(
        self, init: Callable[[jax.Array, int], Params], xs: jax.Array, partition: Partition
    ) -> Params:
        def variable(leaf: jax.Array, names: tuple | None) -> Any:
            return leaf if names is None else flax.linen.Partitioned(leaf, names)

        return self.param("cell", lambda key: _named(variable, init(key, xs.shape[-1]), partition))


class _LinenCellLayer(_LinenLayer):
    """A layer of one cell."""

    cell: Cell
    settings: Any = NONE
    partition: Partition = NONE


class LinenImplicit(_LinenCellLayer):
    """An implicit layer for linen: `apply(variables, xs, length) -> (outputs, Info)`."""

    @flax.linen.compact
    def __call__(self, xs: jax.Array, length: jax.Array | None = None) -> tuple[jax.Array, Info]:
        """Solves a batch: `xs` `[batch, time, input_size]`, `length` `[batch]`."""
        params = self._values(self.cell.init, xs, self.partition)
        return _solved(self.cell, params, xs, length, self.settings)


class LinenRecurrent(_LinenCellLayer):
    """A causal layer for linen: `apply(variables, xs, length, state) -> (outputs, last state)`."""

    @flax.linen.compact
    def __call__(
        self, xs: jax.Array, length: jax.Array | None = None, state: State | None = None
    ) -> tuple[jax.Array, State]:
        """Runs a batch: `xs` `[batch, time, input_size]`, `length` and all of `state` `[batch]`."""
        params = self._values(self.cell.init, xs, self.partition)
        return _unrolled(self.cell, params, xs, length, state, self.settings)


class LinenBidirectional(_LinenLayer):
    """Two causal cells for linen: `apply(variables, xs, length, state) -> (outputs, states)`."""

    fwd_cell: Cell
    bwd_cell: Cell
    settings: Any = NONE
    partition: Partition = NONE

    @flax.linen.compact
    def __call__(
        self,
        xs: jax.Array,
        length: jax.Array | None = None,
        state: tuple[State, State] | None = None,
    ) -> tuple[jax.Array, tuple[State, State]]:
        """Runs a batch: `xs` `[batch, time, input_size]`, `length` and all of `state` `[batch]`."""
        both = self.fwd_cell, self.bwd_cell
        params = self._values(lambda *at: _init_both(*both, *at), xs, self.partition)
        return _both(*both, params, xs, length, state, self.settings)


def _named(
    variable: Callable[[jax.Array, tuple | None], Any], params: Params, partition: Partition
) -> Any:
    """`variable(leaf, names of its axes or None)` in place of every parameter."""
    known = set()

    def boxed(path: Any, leaf: jax.Array) -> Any:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        known.add(name)
        names = partition.get(name)
        if names is not None and len(names) != leaf.ndim:
            raise ValueError(
                f"partition needs a name, or None, for each of the {leaf.ndim} axes of {name}, "
                f"got {names}"
            )
        return variable(leaf, names)

    found = jax.tree_util.tree_map_with_path(boxed, params)
    unknown = sorted(set(partition) - known)
    if unknown:
        raise ValueError(f"partition has {unknown}, but the parameters are {sorted(known)}")
    return found


def _solved(
    cell: Cell, params: Params, xs: jax.Array, length: jax.Array | None, settings: Mapping
) -> tuple[jax.Array, Info]:
    states, info = implicit_batch(cell, params, xs, length=length, **settings)
    return cell.output(states), info


def _unrolled(
    cell: Cell,
    params: Params,
    xs: jax.Array,
    length: jax.Array | None,
    state: State | None,
    settings: Mapping,
) -> tuple[jax.Array, State]:
    return _each(
        lambda x, n, s: unroll(cell, params, x, length=n, state=s, **settings), xs, length, state
    )


def _both(
    fwd_cell: Cell,
    bwd_cell: Cell,
    params: Params,
    xs: jax.Array,
    length: jax.Array | None,
    state: tuple[State, State] | None,
    settings: Mapping,
) -> tuple[jax.Array, tuple[State, State]]:
    pair = params["forward"], params["backward"]

    def run(x: jax.Array, n: jax.Array, s: tuple | None) -> tuple:
        return bidirectional(fwd_cell, bwd_cell, pair, x, length=n, state=s, **settings)

    return _each(run, xs, length, state)


def _init_both(fwd_cell: Cell, bwd_cell: Cell, key: jax.Array, input_size: int) -> Params:
    forward, backward = init_bidirectional(fwd_cell, bwd_cell, key, input_size)
    return {"forward": forward, "backward": backward}


def _each(
    run: Callable[..., tuple], xs: jax.Array, length: jax.Array | None, state: Any
) -> tuple[jax.Array, Any]:
    """`run(inputs, length, state)` for every sequence of a batch."""
    if xs.ndim != 3:
        raise ValueError(f"xs must be a batch [batch, time, features], got shape {xs.shape}")
    length = jnp.full(xs.shape[0], xs.shape[1]) if length is None else jnp.asarray(length)
    if length.shape != xs.shape[:1]:
        raise ValueError(f"length must have shape {xs.shape[:1]}, got {length.shape}")
    return jax.vmap(run)(xs, length, state)
