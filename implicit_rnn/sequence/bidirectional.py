"""`bidirectional`: one causal cell from the beginning, one from the end."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from implicit_rnn.cells.base import Cell, Params, State
from implicit_rnn.sequence.unroll import unroll


def bidirectional(
    fwd_cell: Cell,
    bwd_cell: Cell,
    params: tuple[Params, Params],
    xs: jax.Array,
    length: int | jax.Array | None = None,
    *,
    state: tuple[State, State] | None = None,
    **settings: Any,
) -> tuple[jax.Array, tuple[State, State]]:
    """Runs two causal cells over a sequence, in opposite directions.

    The backward cell starts at the last step that counts, not at the end of the padding.

    Args:
      fwd_cell, bwd_cell: cells with stencil (-1,).
      params: theirs, a pair (`init_bidirectional`).
      xs: inputs `[time, input_size]`.
      length: how many steps count.
      state: where to start, a pair; by default the cells' own.
      **settings: of `unroll`.

    Returns:
      Outputs side by side, `[time, fwd_cell.hidden_size + bwd_cell.hidden_size]`, and both last
      states: the forward one after step `length - 1`, the backward one after step 0.
    """
    if not isinstance(params, tuple | list) or len(params) != 2:
        raise ValueError(
            "params must be a pair, those of the forward and of the backward cell: "
            "init_bidirectional(fwd_cell, bwd_cell, key, input_size)"
        )
    forward, backward = params
    starts = (None, None) if state is None else state
    ys, last = unroll(fwd_cell, forward, xs, length=length, state=starts[0], **settings)
    back, first = unroll(
        bwd_cell, backward, xs, length=length, state=starts[1], reverse=True, **settings
    )
    return jnp.concatenate([ys, back], axis=-1), (last, first)


def init_bidirectional(
    fwd_cell: Cell, bwd_cell: Cell, key: jax.Array, input_size: int
) -> tuple[Params, Params]:
    """Parameters for `bidirectional`."""
    keys = jax.random.split(key)
    return fwd_cell.init(keys[0], input_size), bwd_cell.init(keys[1], input_size)
