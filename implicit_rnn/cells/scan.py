"""A cell's steps one after the other, as far as a sequence goes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from implicit_rnn.cells.base import Cell, Params, State, cast, common_dtype
from implicit_rnn.cells.deferred import deferred_scan
from implicit_rnn.cells.recurrence import in_chunks, last_of
from solvers.mesh import vary_like


def start_state(cell: Cell, params: Params, xs: jax.Array, state: State | None) -> State:
    """The state before the first step, in the type that the steps compute in."""
    start = cell.initial_state(params) if state is None else state
    return cast(start, cell.dtype or common_dtype(params, xs, start))


# Steps whose projected inputs, scores and gates stay in a processor's cache; and how many there
# have to be for a loop of chunks to be worth its compilation.
_CHUNK, _MANY = 8, 64


def run_cell(
    cell: Cell,
    params: Params,
    xs: jax.Array,
    start: State,
    length: jax.Array,
    reverse: bool,
    every: bool = False,
    chunk: int | None = None,
) -> tuple[jax.Array, State]:
    """All outputs and the last state; outputs past the length are free.

    By `Cell.run` where the cell has it, else one step after the other.

    Args:
      cell, params, xs, start, length, reverse: as for `Cell.run`.
      every: whether it is known that all steps count.
      chunk: a gradient keeps the state before every so many steps, and recomputes what is between.
    """
    _check("chunk", chunk)
    if cell.run is not None and chunk is None:
        return cell.run(params, xs, start, length, reverse)
    time = xs.shape[0]
    # On accelerators one large product for all steps serves best.
    usual = _CHUNK if time > _MANY and jax.default_backend() == "cpu" else max(time, 1)
    size = usual if chunk is None else chunk
    every = every and (cell.whole or time % size == 0)

    def stepped(
        params: Params, xs: jax.Array, start: State, length: jax.Array, reverse: bool
    ) -> tuple[jax.Array, State]:
        xi = cell.project(params, xs)
        if cell.step_with is None or not xs.shape[0]:
            own = chunk if cell.whole else None
            states, last = masked_scan(cell.step, params, xi, start, length, reverse, own)
            return cell.output(states), last
        begin = vary_like(start, (params, xi, length))
        # Forwards, what is past the length comes last and can be left to itself.
        inside = jnp.arange(xs.shape[0]) < length if reverse and not every else None
        states, last = deferred_scan(cell.step_with, reverse, params, xi, inside, begin)
        last = last if reverse or every else last_of(states, begin, length, reverse)
        return cell.output(states), last

    run = stepped if cell.whole else in_chunks(stepped, size, recompute=chunk is not None)
    return run(params, xs, start, length, reverse)


def _check(name: str, value: int | None) -> None:
    if value is not None and (not isinstance(value, int) or value < 1):
        raise ValueError(f"{name} must be an integer of at least 1, or None; got {value!r}")


def masked_scan(
    step: Callable[[Params, Any, State], State],
    params: Params,
    xi: Any,
    start: State,
    length: jax.Array,
    reverse: bool,
    chunk: int | None = None,
    truncate: int | None = None,
) -> tuple[State, State]:
    """All states and the last one; steps at or past the length leave the state as it is."""
    _check("chunk", chunk)
    _check("truncate", truncate)

    def body(state: State, row: tuple) -> tuple[State, State]:
        xi, inside, cut = row
        if truncate is not None:
            state = jax.tree.map(lambda s: jnp.where(cut, lax.stop_gradient(s), s), state)
        new = jax.tree.map(lambda a, b: jnp.where(inside, a, b), step(params, xi, state), state)
        return new, new

    time = jnp.arange(jax.tree.leaves(xi)[0].shape[0])
    inside = time < length
    # The step that comes first has number 0; what it starts from may be learnt.
    number = length - 1 - time if reverse else time
    rows = (xi, inside, inside & (number > 0) & (number % (truncate or 1) == 0))
    start = vary_like(start, (params, rows))  # else a loop on a mesh would change its types
    if chunk is None or not time.size:
        last, states = lax.scan(body, start, rows, reverse=reverse)
    else:
        last, states = _scan_in_chunks(body, start, rows, reverse, chunk)
    return states, last


def _scan_in_chunks(
    body: Callable[[State, tuple], tuple[State, State]],
    start: State,
    rows: tuple,
    reverse: bool,
    chunk: int,
) -> tuple[State, State]:
    """`lax.scan` whose gradient keeps the state before each chunk and recomputes the rest."""
    xi, inside, cut = rows
    time = inside.shape[0]
    missing = -time % chunk

    def fold(leaf: jax.Array, mode: str) -> jax.Array:
        padded = jnp.pad(leaf, [(0, missing)] + [(0, 0)] * (leaf.ndim - 1), mode=mode)
        return padded.reshape(-1, chunk, *leaf.shape[1:])

    # Rows added at the end count for nothing; copies of the last one are sure to be legal.
    folded = (
        jax.tree.map(lambda leaf: fold(leaf, "edge"), xi),
        *(fold(flags, "constant") for flags in (inside, cut)),
    )
    run = jax.checkpoint(
        lambda state, rows: lax.scan(body, state, rows, reverse=reverse), prevent_cse=False
    )
    last, states = lax.scan(run, start, folded, reverse=reverse)
    return last, jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[:time], states)
