"""Where to look: weights over the steps of a sequence, given a query."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from implicit_rnn.cells.base import Params, dense


class Attention(NamedTuple):
    """Weights of memories given a query.

    Attributes:
      name: for messages.
      init: `(key, query size, memory size) -> params`.
      prepare: `(params, memory [time, memory size]) -> keys`, all that does not depend on the
        query: done once a sequence.
      scores: `(params, keys, query [query size]) -> [time]`.
    """

    name: str
    init: Callable[[jax.Array, int, int], Params]
    prepare: Callable[[Params, jax.Array], jax.Array]
    scores: Callable[[Params, jax.Array, jax.Array], jax.Array]


def additive(size: int) -> Attention:
    """`score_t = v . tanh(W query + U memory_t + b)` (Bahdanau et al., 2015).

    Parameters: `query` `[query, size]`, `memory` `[memory, size]`, `bias` and `score` `[size]`.
    """

    def init(key: jax.Array, query_size: int, memory_size: int) -> Params:
        keys = jax.random.split(key, 3)
        return {
            "query": dense(keys[0], (query_size, size)),
            "memory": dense(keys[1], (memory_size, size)),
            "bias": jnp.zeros(size),
            "score": dense(keys[2], (size, 1))[:, 0],
        }

    def scores(params: Params, keys: jax.Array, query: jax.Array) -> jax.Array:
        return jnp.tanh(keys + query @ params["query"]) @ params["score"]

    return Attention(
        "additive", init, lambda params, memory: memory @ params["memory"] + params["bias"], scores
    )


def bilinear() -> Attention:
    """`score_t = query . W memory_t / sqrt(query size)` (Luong et al., 2015; scaled).

    Parameters: `weights` `[memory, query]`.
    """

    def init(key: jax.Array, query_size: int, memory_size: int) -> Params:
        return {"weights": dense(key, (memory_size, query_size))}

    return Attention(
        "bilinear", init, lambda params, memory: memory @ params["weights"], _scaled_product
    )


def dot() -> Attention:
    """`score_t = query . memory_t / sqrt(size)`; query and memory have one size. No parameters."""

    def init(key: jax.Array, query_size: int, memory_size: int) -> Params:
        if query_size != memory_size:
            raise ValueError(
                f"dot attention needs queries and memories of one size, got {query_size} and "
                f'{memory_size}; use "bilinear"'
            )
        return {}

    return Attention("dot", init, lambda params, memory: memory, _scaled_product)


def _scaled_product(params: Params, keys: jax.Array, query: jax.Array) -> jax.Array:
    return keys @ query / jnp.sqrt(jnp.asarray(query.shape[-1], query.dtype))


ATTENTIONS: dict[str, Callable[[int], Attention]] = {
    "additive": additive,
    "bilinear": lambda size: bilinear(),
    "dot": lambda size: dot(),
}
"""Attentions by name, `name -> factory(size)`; only the additive one has a size of its own."""


def masked_softmax(scores: jax.Array, mask: jax.Array) -> jax.Array:
    """Softmax along the last axis over what counts; zero elsewhere, and where nothing counts."""
    lowest = jnp.finfo(scores.dtype).min
    scores = jnp.where(mask, scores, lowest)
    weights = jnp.exp(scores - jax.lax.stop_gradient(jnp.max(scores, axis=-1, keepdims=True)))
    weights = jnp.where(mask, weights, 0)
    total = jnp.sum(weights, axis=-1, keepdims=True)
    return weights / jnp.where(total > 0, total, 1)
