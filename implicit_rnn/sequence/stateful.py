"""`stateful`: a stack run over a stream, window after window (truncated back-propagation)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from implicit_rnn.cells.base import Cell, Params, State
from implicit_rnn.sequence.stack import stack


def stateful(
    cells: Sequence[Cell],
    params: Sequence[Params],
    xs: jax.Array,
    states: Sequence[State],
    *,
    length: int | jax.Array | None = None,
    truncate: int | None = None,
    reset: bool | jax.Array | None = None,
    **settings: Any,
) -> tuple[jax.Array, list[State]]:
    """Runs causal layers over one window of a stream, from where the window before ended.

    Values are those of one run over the whole stream; a gradient ends where its window begins.

    Args:
      cells, params: causal cells and their parameters (`init_stack`).
      xs: the window, `[time, features]`, or one of each stream of a batch,
        `[batch, time, features]`.
      states: of the window before, or `initial_states`.
      length: how many steps of the window count, a scalar or `[batch]`.
      truncate: end gradients every so many steps inside the window too.
      reset: whether a new document begins with this window: a scalar or `[batch]`. The layers then
        start from the cells' own states, through which gradients do pass.
      **settings: of `stack`: `residual`, `dropout`, `key`, `chunk`.

    Returns:
      Outputs of the last layer, and the states for the next window.
    """
    for cell in cells:
        if not isinstance(cell, Cell) or not cell.causal:
            name = cell.name if isinstance(cell, Cell) else "a pair of cells"
            raise ValueError(f"only a causal cell can be run window after window; {name} is none")
    states = list(lax.stop_gradient(states))
    if reset is not None:
        fresh = initial_states(cells, params, xs.shape[:-2])
        states = jax.tree.map(
            lambda new, old: jnp.where(_like(reset, old), new, old), fresh, states
        )
    return stack(cells, params, xs, length=length, states=states, truncate=truncate, **settings)


def initial_states(
    cells: Sequence[Cell], params: Sequence[Params], batch: tuple[int, ...] = ()
) -> list[State]:
    """What the first window of a stream starts from; `batch` is `(batch,)` for a batch of them."""
    states = [cell.initial_state(own) for cell, own in zip(cells, params, strict=True)]
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (*batch, *leaf.shape)), states)


def _like(flags: bool | jax.Array, leaf: jax.Array) -> jax.Array:
    """Flags, a scalar or `[batch]`, such that they broadcast against a leaf."""
    flags = jnp.asarray(flags)
    return flags.reshape(*flags.shape, *[1] * (leaf.ndim - flags.ndim))
