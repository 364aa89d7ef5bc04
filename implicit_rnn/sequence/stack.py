"""`stack`: layers one after the other, causal or implicit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from implicit_rnn.cells.base import Cell, Params
from implicit_rnn.sequence.solve import implicit, implicit_batch
from implicit_rnn.sequence.unroll import unroll


def stack(
    cells: Sequence[Cell],
    params: Sequence[Params],
    xs: jax.Array,
    *,
    length: int | jax.Array | None = None,
    residual: bool = False,
    dropout: float = 0.0,
    key: jax.Array | None = None,
    **settings: Any,
) -> tuple[jax.Array, list[Any]]:
    """Layers one after the other: each sees the outputs of the one before.

    Args:
      cells: one a layer; those that look ahead are solved, causal ones unrolled.
      params: theirs (`init_stack`).
      xs: one sequence `[time, features]`, or a batch `[batch, time, features]`.
      length: a scalar, or `[batch]`.
      residual: add what a layer is given to what it gives, where their widths agree.
      dropout: chance that an entry between two layers is dropped.
      key: draws what is dropped; none is needed, and nothing is dropped, without dropout.
      **settings: of `implicit` or `implicit_batch`, for the layers that are solved.

    Returns:
      Outputs of the last layer, and what each layer tells: `Info`, or the last state.
    """
    if len(cells) != len(params) or not cells:
        raise ValueError(f"{len(cells)} cells, but parameters for {len(params)}")
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout must be at least 0 and below 1, got {dropout}")
    if dropout and key is None:
        raise ValueError("dropout draws random numbers: pass key=jax.random.key(...)")
    told = []
    for number, (cell, own) in enumerate(zip(cells, params, strict=True)):
        given = xs
        if number and dropout:
            assert key is not None
            kept = jax.random.bernoulli(jax.random.fold_in(key, number), 1 - dropout, xs.shape)
            given = jnp.where(kept, xs / (1 - dropout), 0)
        outputs, tells = _layer(cell, own, given, length, settings)
        told.append(tells)
        xs = xs + outputs if residual and xs.shape == outputs.shape else outputs
    return xs, told


def init_stack(cells: Sequence[Cell], key: jax.Array, input_size: int) -> list[Params]:
    """Parameters for `stack`."""
    widths = [input_size, *(cell.hidden_size for cell in cells)]
    keys = jax.random.split(key, len(cells))
    return [cell.init(k, width) for cell, k, width in zip(cells, keys, widths, strict=False)]


def _layer(
    cell: Cell, params: Params, xs: jax.Array, length: Any, settings: dict
) -> tuple[jax.Array, Any]:
    if cell.final_state is not None:
        solve = implicit if xs.ndim == 2 else implicit_batch
        states, info = solve(cell, params, xs, length=length, **settings)
        return cell.output(states), info
    if xs.ndim == 2:
        return unroll(cell, params, xs, length=length)
    if length is None:
        length = jnp.full(xs.shape[0], xs.shape[1])
    return jax.vmap(lambda x, n: unroll(cell, params, x, length=n))(xs, length)
