"""The equation that defines the states of a sequence: its map, its bands and where to start."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from implicit_rnn.cells.base import Cell, Params, State, cast, common_dtype, neighbour
from implicit_rnn.cells.scan import masked_scan
from implicit_rnn.sequence.unroll import checked
from solvers.bands import Bands, splitting_inverse
from solvers.mesh import placed_like


class Equation(NamedTuple):
    """What the states of one sequence are defined by: the `theta` of its fixed-point problem."""

    params: Params
    xi: Any
    before: State  # boundary states
    after: State
    length: jax.Array


def equation_of(
    cell: Cell,
    params: Params,
    xs: jax.Array,
    length: int | jax.Array | None = None,
    before: State | None = None,
    after: State | None = None,
) -> Equation:
    """The equation of one sequence of inputs `[time, features]`."""
    xs, length = checked(xs, length)
    return batch_equation(cell, params, xs, length, before, after)


def batch_equation(
    cell: Cell,
    params: Params,
    xs: jax.Array,
    length: jax.Array,
    before: State | None = None,
    after: State | None = None,
) -> Equation:
    """The equation of clean inputs `[time, features]`, or `[time, batch, features]` in lockstep."""
    if cell.final_state is None:
        if not cell.causal:
            raise ValueError(f"{cell.name} looks ahead, and so needs a final_state")
        raise ValueError(f"{cell.name} does not look ahead: use unroll, or cells.implicit(cell)")
    before = cell.initial_state(params) if before is None else before
    after = cell.final_state(params) if after is None else after
    before, after = cast((before, after), cell.dtype or common_dtype(params, xs, before, after))
    return Equation(params, cell.project(params, xs), before, after, length)


def mask(equation: Equation, leaf: jax.Array) -> jax.Array:
    """Which entries of a leaf `[time, ...]`, or `[time, batch, ...]` in lockstep, count."""
    length = equation.length
    time = jnp.arange(leaf.shape[0]).reshape(-1, *[1] * jnp.ndim(length)) < length
    return time.reshape(*time.shape, *[1] * (leaf.ndim - time.ndim))


def extended(cell: Cell, equation: Equation, states: State) -> State:
    """States with the boundary states around them, and in place of what is past the length."""
    back, ahead = cell.reach

    def extend(leaf: jax.Array, before: jax.Array, after: jax.Array) -> jax.Array:
        body = jnp.where(mask(equation, leaf), leaf, after)
        edges = [
            placed_like(jnp.broadcast_to(e, (n, *leaf.shape[1:])), body)
            for e, n in ((before, back), (after, ahead))
        ]
        return jnp.concatenate([edges[0], body, edges[1]])

    return jax.tree.map(extend, states, equation.before, equation.after)


def equation_sweep(
    cell: Cell, extend: Callable[[Cell, Equation, State], State] = extended
) -> Callable[[Equation, State], tuple[State, Any]]:
    """`F(equation, H)` together with the cell's bands there (None for a cell without).

    Args:
      cell: a cell that looks ahead.
      extend: puts boundary states around states.
    """

    def sweep(equation: Equation, states: State) -> tuple[State, Any]:
        around = extend(cell, equation, states)
        bands = None
        if cell.sweep is not None:
            new, bands = cell.sweep(equation.params, equation.xi, around)
        else:
            neighbours = [neighbour(around, offset, cell.reach) for offset in cell.stencil]
            step = jax.vmap(lambda xi, *n: cell.step(equation.params, xi, *n))
            if jnp.ndim(equation.length):
                step = jax.vmap(step, in_axes=1, out_axes=1)
            new = step(equation.xi, *neighbours)
            if cell.bands is not None:
                bands = cell.bands(equation.params, equation.xi, around)
        return jax.tree.map(lambda leaf: jnp.where(mask(equation, leaf), leaf, 0), (new, bands))

    return sweep


def equation_map(
    cell: Cell, extend: Callable[[Cell, Equation, State], State] = extended
) -> Callable[[Equation, State], State]:
    """`F` of the fixed-point problem `H = F(equation, H)` that `implicit` solves."""
    sweep = equation_sweep(cell, extend)
    return lambda equation, states: sweep(equation, states)[0]


def equation_bands(
    cell: Cell, extend: Callable[[Cell, Equation, State], State] = extended
) -> Callable[[Equation, State], Bands]:
    """The bands of `F`: the cell's own, or estimated by probing where it has none."""
    if cell.bands is None:
        return probed_bands(equation_map(cell, extend))
    sweep = equation_sweep(cell, extend)

    return lambda equation, states: sweep(equation, states)[1]


def probed_bands(
    f: Callable[[Any, State], State], samples: int = 4, limit: float = 0.9
) -> Callable[[Any, State], Bands]:
    """Bands of any map on states `[time, ...]` from `3 samples` products with its Jacobian.

    A probe is a random sign at every third time, so that of the neighbours of a time only one is
    probed; the product with the probe's own sign estimates the entry on the band, and what couples
    different channels averages out. The bands of a row are scaled down to sum to at most `limit`,
    so that `I - B` can always be inverted.
    """

    def bands(theta: Any, states: State) -> Bands:
        _, push = jax.linearize(lambda states: f(theta, states), states)
        leaves, structure = jax.tree.flatten(states)
        time = leaves[0].shape[0]
        row = jnp.arange(time)

        def probe(key: jax.Array) -> tuple[list, list, list]:
            keys = jax.random.split(key, len(leaves))
            signs = [
                jax.random.rademacher(k, leaf.shape, leaf.dtype)
                for k, leaf in zip(keys, leaves, strict=True)
            ]
            found: tuple[list, list, list] = ([], [], [])
            images = []
            for colour in range(3):
                here = (row % 3 == colour).reshape(-1, *[1] * (leaves[0].ndim - 1))
                chosen = [jnp.where(here, sign, 0) for sign in signs]
                images.append(jax.tree.leaves(push(jax.tree.unflatten(structure, chosen))))
            for i, sign in enumerate(signs):
                stacked = jnp.stack([image[i] for image in images])
                for offset, band in zip((-1, 0, 1), found, strict=True):
                    other = jnp.clip(row + offset, 0, time - 1)
                    value = stacked[(row + offset) % 3, row] * sign[other]
                    inside = (row + offset >= 0) & (row + offset < time)
                    inside = inside.reshape(-1, *[1] * (value.ndim - 1))
                    band.append(jnp.where(inside, value, 0))
            return found

        keys = jax.random.split(jax.random.key(0), samples)
        lower, own, upper = jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), jax.vmap(probe)(keys))
        for i in range(len(leaves)):
            total = jnp.abs(lower[i]) + jnp.abs(own[i]) + jnp.abs(upper[i])
            scale = limit / jnp.maximum(total, limit)
            lower[i], own[i], upper[i] = scale * lower[i], scale * own[i], scale * upper[i]
        trees = [jax.tree.unflatten(structure, band) for band in (lower, upper, own)]
        return Bands(*trees)

    return bands


def start_states(
    cell: Cell, equation: Equation, start: str | State | None, key: jax.Array | None
) -> State:
    """States to start from, zero past the length."""
    leading = jax.tree.leaves(equation.xi)[0].shape[: 1 + jnp.ndim(equation.length)]
    shape = jax.tree.map(
        lambda leaf: jnp.zeros((*leading, *leaf.shape), leaf.dtype), equation.before
    )
    if start is None:
        if cell.at_rest is None:
            return shape
        states = _first_sweep(cell, equation)
    elif not isinstance(start, str):
        # A sequence that has not been visited is marked by NaN: it starts as if nothing were given.
        usual = shape if cell.at_rest is None else _first_sweep(cell, equation)
        states = jax.tree.map(
            lambda given, else_: jnp.where(jnp.isfinite(given), given, else_).astype(else_.dtype),
            start,
            usual,
        )
    elif start == "zeros":
        return shape
    elif start == "random":
        if key is None:
            raise ValueError('start="random" draws random numbers: pass key=jax.random.key(...)')
        leaves, structure = jax.tree.flatten(shape)
        keys = jax.random.split(key, len(leaves))
        draws = [
            jax.random.uniform(k, leaf.shape, leaf.dtype, -1, 1)
            for k, leaf in zip(keys, leaves, strict=True)
        ]
        states = jax.tree.unflatten(structure, draws)
    elif start == "forward":
        states = _causal(cell, equation, reverse=False)
    elif start == "bidirectional":
        passes = [_causal(cell, equation, reverse=reverse) for reverse in (False, True)]
        states = jax.tree.map(lambda a, b: 0.5 * (a + b), *passes)
    else:
        raise ValueError(
            f'start must be "zeros", "random", "forward", "bidirectional" or states, got {start!r}'
        )
    states = jax.tree.map(lambda leaf: jnp.where(mask(equation, leaf), leaf, 0), states)
    return lax.stop_gradient(states)


def _first_sweep(cell: Cell, equation: Equation) -> State:
    """One splitting sweep from zero, boundary states left aside."""
    assert cell.at_rest is not None
    rest = cell.at_rest(equation.params, equation.xi)
    states, found = jax.tree.map(lambda leaf: jnp.where(mask(equation, leaf), leaf, 0), rest)
    return splitting_inverse(found)(states)


def _causal(cell: Cell, equation: Equation, reverse: bool) -> State:
    """The pass that does not look ahead, in either direction."""
    if cell.causal_step is None:
        raise ValueError(f'{cell.name} has no causal step: start from "zeros" or given states')
    edge = equation.after if reverse else equation.before
    return masked_scan(
        cell.causal_step, equation.params, equation.xi, edge, equation.length, reverse
    )[0]
