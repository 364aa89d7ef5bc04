"""`stack`: layers one after the other, causal, in both directions, or implicit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from implicit_rnn.cells.base import Cell, Params, State
from implicit_rnn.sequence.bidirectional import bidirectional, init_bidirectional
from implicit_rnn.sequence.solve import implicit, implicit_batch
from implicit_rnn.sequence.unroll import unroll
from solvers import Info

Layer = Cell | tuple[Cell, Cell]


def stack(
    cells: Sequence[Layer],
    params: Sequence[Params],
    xs: jax.Array,
    *,
    length: int | jax.Array | None = None,
    states: Sequence[State | None] | None = None,
    residual: bool = False,
    dropout: float = 0.0,
    key: jax.Array | None = None,
    chunk: int | None = None,
    truncate: int | None = None,
    **settings: Any,
) -> tuple[jax.Array, list[Any]]:
    """Layers one after the other: each sees the outputs of the one before.

    Args:
      cells: one a layer; those that look ahead are solved, causal ones unrolled. A pair of causal
        cells is a layer in both directions (`bidirectional`).
      params: theirs (`init_stack`).
      xs: one sequence `[time, features]`, or a batch `[batch, time, features]`.
      length: a scalar, or `[batch]`.
      states: where causal layers start, an entry a layer, None for the cell's own. What an earlier
        call told will do: a solved layer carries nothing on and its `Info` is passed over.
      residual: add what a layer is given to what it gives, where their widths agree.
      dropout: chance that an entry between two layers is dropped.
      key: draws what is dropped; none is needed, and nothing is dropped, without dropout.
      chunk, truncate: of `unroll`, for the layers that are unrolled.
      **settings: of `implicit` or `implicit_batch`, for the layers that are solved.

    Returns:
      Outputs of the last layer, and what each layer tells: `Info`, or the last state (a pair of
      them for a pair of cells).
    """
    if len(cells) != len(params) or not cells:
        raise ValueError(f"{len(cells)} cells, but parameters for {len(params)}")
    states = [None] * len(cells) if states is None else states
    if len(states) != len(cells):
        raise ValueError(f"{len(cells)} cells, but states for {len(states)}")
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout must be at least 0 and below 1, got {dropout}")
    if dropout and key is None:
        raise ValueError("dropout draws random numbers: pass key=jax.random.key(...)")
    if length is not None:
        # Also what a residual adds must be zero past the length.
        counts = jnp.arange(xs.shape[-2]) < jnp.asarray(length)[..., None]
        xs = jnp.where(counts[..., None], xs, 0)
    told = []
    for number, (cell, own, state) in enumerate(zip(cells, params, states, strict=True)):
        given = xs
        if number and key is not None:
            given = drop(xs, dropout, jax.random.fold_in(key, number))
        if isinstance(cell, Cell) and cell.final_state is not None:
            outputs, tells = _solved(cell, own, given, length, state, settings)
        else:
            outputs, tells = _unrolled(
                cell, own, given, length, state, {"chunk": chunk, "truncate": truncate}
            )
        told.append(tells)
        xs = xs + outputs if residual and xs.shape == outputs.shape else outputs
    return xs, told


def init_stack(cells: Sequence[Layer], key: jax.Array, input_size: int) -> list[Params]:
    """Parameters for `stack`: one entry a layer, a pair for a pair of cells."""
    params = []
    for layer, k in zip(cells, jax.random.split(key, len(cells)), strict=True):
        if isinstance(layer, Cell):
            params.append(layer.init(k, input_size))
            input_size = layer.hidden_size
        else:
            params.append(init_bidirectional(*layer, k, input_size))
            input_size = sum(cell.hidden_size for cell in layer)
    return params


def drop(xs: jax.Array, rate: float, key: jax.Array | None) -> jax.Array:
    """Dropout; none without a key."""
    if key is None or not rate:
        return xs
    kept = jax.random.bernoulli(key, 1 - rate, xs.shape)
    return jnp.where(kept, xs / (1 - rate), 0)


def _solved(
    cell: Cell, params: Params, xs: jax.Array, length: Any, state: Any, settings: dict
) -> tuple[jax.Array, Info]:
    if state is not None and not isinstance(state, Info):
        raise ValueError(f"{cell.name} is solved and has no state to start from: give None")
    solve = implicit if xs.ndim == 2 else implicit_batch
    states, info = solve(cell, params, xs, length=length, **settings)
    return cell.output(states), info


def _unrolled(
    layer: Layer, params: Params, xs: jax.Array, length: Any, state: State | None, settings: dict
) -> tuple[jax.Array, State]:
    def run(xs: jax.Array, length: Any, state: State | None) -> tuple[jax.Array, State]:
        settings_here = {**settings, "length": length, "state": state}
        if isinstance(layer, Cell):
            return unroll(layer, params, xs, **settings_here)
        return bidirectional(*layer, params, xs, **settings_here)

    if xs.ndim == 2:
        return run(xs, length, state)
    if length is None:
        length = jnp.full(xs.shape[0], xs.shape[1])
    return jax.vmap(run)(xs, length, state)
