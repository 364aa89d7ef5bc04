"""`unroll`: a causal cell run over a sequence, one step after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from implicit_rnn.cells.base import Cell, Params, State


def unroll(
    cell: Cell,
    params: Params,
    xs: jax.Array,
    *,
    length: int | jax.Array | None = None,
    state: State | None = None,
    reverse: bool = False,
) -> tuple[jax.Array, State]:
    """Runs a causal cell over a sequence.

    Args:
      cell: a cell with stencil (-1,).
      params: its parameters.
      xs: inputs `[time, input_size]`.
      length: how many steps count; outputs at or past it are zero, and nothing there matters.
      state: where to start, by default the cell's own.
      reverse: from the end (that is, from `length`) to the beginning.

    Returns:
      Outputs `[time, hidden_size]` and the last state.
    """
    if cell.stencil != (-1,):
        raise ValueError(f"unroll takes a causal cell; {cell.name} looks ahead: use implicit")
    xs, length = checked(xs, length)
    start = cell.initial_state(params) if state is None else state
    states, last = masked_scan(cell.step, params, cell.project(params, xs), start, length, reverse)
    inside = jnp.arange(xs.shape[0])[:, None] < length
    return jnp.where(inside, cell.output(states), 0), last


def masked_scan(
    step: Callable[[Params, Any, State], State],
    params: Params,
    xi: Any,
    start: State,
    length: jax.Array,
    reverse: bool,
) -> tuple[State, State]:
    """All states and the last one; steps at or past the length leave the state as it is."""

    def body(state: State, row: tuple) -> tuple[State, State]:
        xi, inside = row
        new = jax.tree.map(lambda a, b: jnp.where(inside, a, b), step(params, xi, state), state)
        return new, new

    inside = jnp.arange(jax.tree.leaves(xi)[0].shape[0]) < length
    last, states = lax.scan(body, start, (xi, inside), reverse=reverse)
    return states, last


def checked(xs: jax.Array, length: int | jax.Array | None) -> tuple[jax.Array, jax.Array]:
    """Inputs, zero past their length: garbage there reaches neither value nor gradient."""
    if xs.ndim != 2:
        raise ValueError(
            f"xs must be one sequence [time, features], got shape {xs.shape}; "
            "use jax.vmap for a batch"
        )
    length = jnp.asarray(xs.shape[0] if length is None else length)
    if length.ndim:
        raise ValueError(f"length must be a scalar, got shape {length.shape}; use jax.vmap")
    return jnp.where(jnp.arange(xs.shape[0])[:, None] < length, xs, 0), length
