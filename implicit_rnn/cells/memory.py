"""Where gates begin: how long channels remember at first, and which way they listen."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from implicit_rnn.cells.base import Cell, Params
from implicit_rnn.cells.factory import comparable_cell

Memory = tuple[float, float]
SPREAD: Memory = (1.0, 40.0)


def lengths(key: jax.Array, size: int, memory: Memory) -> jax.Array:
    """One length for each channel, evenly spread on a logarithmic scale, in a random order."""
    least, most = checked(memory)
    share = (jnp.arange(size) + 0.5) / max(size, 1)
    return jax.random.permutation(key, least * (most / least) ** share)


def checked(memory: Memory) -> Memory:
    """Refuses what is no range of lengths."""
    try:
        least, most = map(float, memory)
    except (TypeError, ValueError):
        raise ValueError(f"memory must be a pair of lengths in steps, got {memory!r}") from None
    if not (math.isfinite(most) and 0 < least <= most):
        raise ValueError(f"memory must be a pair 0 < least <= most, got {memory!r}")
    return least, most


@comparable_cell
def remembering(cell: Cell, memory: Memory = SPREAD) -> Cell:
    """The cell, its channels beginning with memories of lengths log-uniform in a range.

    A channel of length `l` keeps `l / (1 + l)` of its state in a step where its gate sees zero
    (Tallec and Ollivier, 2018, with a logarithmic scale).

    Args:
      cell: a causal cell whose gates say how long it keeps (`Cell.remember`): `gru`, `lstm`,
        `mgu`, `mingru`, `sru`, `qrnn`, and `stacked` of such.
      memory: shortest and longest.
    """
    checked(memory)
    if cell.remember is None:
        raise ValueError(f"{cell.name} has no gate that says how long it remembers")
    remember = cell.remember

    def init(key: jax.Array, input_size: int) -> Params:
        first, second = jax.random.split(key)
        params = cell.init(first, input_size)
        return remember(params, lengths(second, cell.hidden_size, memory))

    return cell._replace(init=init)


def split_bias(size: int, neighbours: int, split: float) -> jax.Array:
    """Biases `[neighbours * size]` of a switch: channels take turns at listening to one neighbour.

    The neighbour that a channel listens to gets `split`, the others `-split`.
    """
    turn = jnp.arange(size) % neighbours
    listens = turn == jnp.arange(neighbours)[:, None]
    return jnp.where(listens, jnp.asarray(split, float), -split).reshape(-1)
