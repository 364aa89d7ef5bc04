"""What modules of both libraries call: batches of the pure functions, and names of mesh axes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import flax
import jax
import jax.numpy as jnp

from implicit_rnn.cells.base import Cell, Params, State
from implicit_rnn.sequence import bidirectional, implicit_batch, init_bidirectional, unroll
from solvers import Info

Partition = Mapping[str, tuple[str | None, ...]]
NONE: Any = flax.core.FrozenDict()


def named(
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


# What a solved layer is given with every batch, and so is no setting of it.
_WITH_A_BATCH = ("cell", "params", "xs", "length", "start", "probe", "key")


def check_solved(cell: Cell, settings: Mapping) -> None:
    """Refuses, when a layer is made, what `implicit_batch` would refuse when it is called."""
    if cell.final_state is None:
        raise ValueError(f"{cell.name} does not look ahead: use Recurrent, or cells.implicit(cell)")
    _check_settings(implicit_batch, settings, _WITH_A_BATCH)


def check_unrolled(settings: Mapping, *cells: Cell) -> None:
    """Refuses, when a layer is made, what `unroll` would refuse when it is called."""
    for cell in cells:
        if cell.stencil != (-1,):
            raise ValueError(f"{cell.name} looks ahead: use Implicit")
    _check_settings(unroll, settings, ("cell", "params", "xs", "length", "state"))


def _check_settings(function: Callable, settings: Mapping, given: tuple[str, ...]) -> None:
    known = set(inspect.signature(function).parameters) - set(given)
    unknown = sorted(set(settings) - known)
    if unknown:
        raise TypeError(f"unknown settings {unknown}; there are {sorted(known)}")


def solved(
    cell: Cell,
    params: Params,
    xs: jax.Array,
    length: jax.Array | None,
    settings: Mapping,
    **given: Any,
) -> tuple[jax.Array, Info]:
    states, info = implicit_batch(cell, params, xs, length=length, **settings, **given)
    return cell.output(states), info


def unrolled(
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


def both_ways(
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


def init_both(fwd_cell: Cell, bwd_cell: Cell, key: jax.Array, input_size: int) -> Params:
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
