"""`unroll`: a causal cell run over a sequence."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from implicit_rnn.cells.base import Cell, Params, State
from implicit_rnn.cells.scan import masked_scan, run_cell, start_state
from implicit_rnn.sequence.fit import explains_misfits


@explains_misfits
def unroll(
    cell: Cell,
    params: Params,
    xs: jax.Array,
    length: int | jax.Array | None = None,
    state: State | None = None,
    reverse: bool = False,
    *,
    chunk: int | None = None,
    truncate: int | None = None,
) -> tuple[jax.Array, State]:
    """Runs a causal cell over a sequence: one step after the other, or all at once.

    All at once if the cell can (`Cell.run`) and neither chunks nor truncation are asked for: the
    values and gradients are the same.

    Args:
      cell: a cell with stencil (-1,).
      params: its parameters.
      xs: inputs `[time, input_size]`.
      length: how many steps count; outputs at or past it are zero, and nothing there matters.
      state: where to start, by default the cell's own.
      reverse: from the end (that is, from `length`) to the beginning.
      chunk: keep what a gradient needs of one state every so many steps, and recompute the steps
        between (`jax.checkpoint`). Values and gradients are the same.
      truncate: no gradient passes from a step to the one before it every so many steps, counted
        from where the run starts (truncated back-propagation). Values are the same.

    Returns:
      Outputs `[time, hidden_size]` and the last state.
    """
    if cell.stencil != (-1,):
        raise ValueError(f"unroll takes a causal cell; {cell.name} looks ahead: use implicit")
    every = length is None
    xs, length = checked(xs, length)
    start = start_state(cell, params, xs, state)
    if truncate is None:
        ys, last = run_cell(cell, params, xs, start, length, reverse, every, chunk)
    else:
        xi = cell.project(params, xs)
        states, last = masked_scan(cell.step, params, xi, start, length, reverse, chunk, truncate)
        ys = cell.output(states)
    return ys if every else _masked(ys, length), last


def checked(xs: jax.Array, length: int | jax.Array | None) -> tuple[jax.Array, jax.Array]:
    """Inputs, zero past their length: garbage there reaches neither value nor gradient."""
    if xs.ndim != 2:
        raise ValueError(
            f"xs must be one sequence [time, features], got shape {xs.shape}; "
            "use jax.vmap for a batch"
        )
    if length is None:
        return xs, jnp.asarray(xs.shape[0])
    length = jnp.asarray(length)
    if length.ndim:
        raise ValueError(f"length must be a scalar, got shape {length.shape}; use jax.vmap")
    return _masked(xs, length), length


def _masked(rows: jax.Array, length: jax.Array) -> jax.Array:
    """Rows, zero past the length."""
    return jnp.where(jnp.arange(rows.shape[0])[:, None] < length, rows, 0)
