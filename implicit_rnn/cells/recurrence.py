"""Recurrences over a whole sequence at once, for cells whose steps are linear in their state.

Time is the leading axis. Steps at or past `length` leave a state as it is; with `reverse` the first
step is the one at `length - 1` and the last the one at 0, as in `unroll`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from solvers.bands import bidiagonal_solve
from solvers.mesh import vary_like

Tree = Any
Run = Callable[..., tuple[jax.Array, Tree]]  # as `Cell.run`


def linear_recurrence(
    keep: jax.Array, fresh: jax.Array, start: jax.Array, length: jax.Array, reverse: bool
) -> tuple[jax.Array, jax.Array]:
    """`x_t = keep_t x_{t-1} + fresh_t` in every channel, from `start`.

    Args:
      keep, fresh: `[time, d]`.
      start: `[d]`, the state before the first step.
      length: how many steps count.
      reverse: against time.

    Returns:
      All states `[time, d]` and the last.
    """
    if not keep.shape[0]:
        return fresh, start
    inside = jnp.arange(keep.shape[0])[:, None] < length
    keep, fresh = jnp.where(inside, keep, 1), jnp.where(inside, fresh, 0)
    first, last = (-1, 0) if reverse else (0, -1)
    fresh = fresh.at[first].add(keep[first] * start)
    states = bidiagonal_solve(keep, fresh, reverse=reverse)
    return states, states[last]


def convolved(
    taps: tuple[Tree, ...], pending: tuple[Tree, ...], length: jax.Array, reverse: bool
) -> tuple[Tree, tuple[Tree, ...]]:
    """`sum_j taps[j]_{t-j}`, the causal convolution of which products with inputs are given.

    Args:
      taps: trees of `[time, d]`: what an input adds to the sum of its own step, of the next, ...
      pending: trees of `[d]`, one fewer: what inputs before the first add to the first sums.
      length, reverse: as for `linear_recurrence`.

    Returns:
      The sums, and what the inputs add to those after the last.
    """
    sums = taps[-1]
    waiting: list[Tree] = []
    for tap, first in zip(taps[-2::-1], pending[::-1], strict=True):
        waiting.insert(0, last_of(sums, first, length, reverse))
        earlier = jax.tree.map(lambda leaf, f: _before(leaf, f, length, reverse), sums, first)
        sums = jax.tree.map(jnp.add, tap, earlier)
    return sums, tuple(waiting)


def in_chunks(run: Run, size: int, *, recompute: bool = True) -> Run:
    """The same run, `size` steps at a time.

    A chunk is small enough to stay in a processor's cache where whole sequences of every
    intermediate value would pass through memory.

    Args:
      run: as `Cell.run`; it must not need the whole sequence.
      size: steps a chunk.
      recompute: a gradient keeps the states between chunks, no more, and recomputes the rest.
    """

    def chunked(
        params: Any, xs: jax.Array, state: Tree, length: jax.Array, reverse: bool
    ) -> tuple[jax.Array, Tree]:
        time = xs.shape[0]
        if time <= size:
            return run(params, xs, state, length, reverse)
        count = -(-time // size)
        rows = jnp.pad(xs, ((0, count * size - time), (0, 0))).reshape(count, size, -1)
        lengths = jnp.clip(length - size * jnp.arange(count), 0, size)

        def body(state: Tree, row: tuple[jax.Array, jax.Array]) -> tuple[Tree, jax.Array]:
            outputs, last = run(params, row[0], state, row[1], reverse)
            return last, outputs

        state = vary_like(state, (params, rows, lengths))  # else the loop would change its types
        if recompute:
            body = jax.checkpoint(body, prevent_cse=False)
        last, outputs = lax.scan(body, state, (rows, lengths), reverse=reverse)
        return outputs.reshape(count * size, -1)[:time], last

    return chunked


def last_of(values: Tree, start: Tree, length: jax.Array, reverse: bool) -> Tree:
    """The values of the last step that counts; `start` where none does."""

    def last(leaf: jax.Array, start: jax.Array) -> jax.Array:
        if not leaf.shape[0]:
            return start
        final = leaf[0] if reverse else leaf[jnp.maximum(length - 1, 0)]
        return jnp.where(length > 0, final, start)

    return jax.tree.map(last, values, start)


def _before(leaf: jax.Array, start: jax.Array, length: jax.Array, reverse: bool) -> jax.Array:
    """The value of the step before each, `start` before the first."""
    if not reverse:
        return jnp.concatenate([start[None], leaf])[:-1]
    first = jnp.arange(leaf.shape[0])[:, None] == length - 1
    return jnp.where(first, start, jnp.concatenate([leaf, start[None]])[1:])
