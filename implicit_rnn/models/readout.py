"""A linear read-out, alone and above an encoder, with dropout below and between the two."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from implicit_rnn.cells.base import Params, dense, product
from implicit_rnn.models.base import NO_SETTINGS
from implicit_rnn.models.encoder import Encoded, Encoder
from implicit_rnn.sequence.stack import drop
from solvers import Info


def init_read(key: jax.Array, width: int, outputs: int) -> Params:
    """`weights` `[width, outputs]` and `bias` `[outputs]`, zero at first."""
    return {"weights": dense(key, (width, outputs)), "bias": jnp.zeros(outputs)}


def read(params: Params, features: jax.Array) -> jax.Array:
    """`features @ weights + bias`."""
    return product(features, params["weights"]) + params["bias"]


def every_step(params: Params, encoded: Encoded, length: jax.Array) -> jax.Array:
    """What is read where every step is: the features themselves."""
    return encoded.features


def read_encoder(
    encoder: Encoder,
    input_size: int,
    outputs: int,
    dropout: float,
    pooled: Callable[[Params, Encoded, jax.Array], jax.Array] = every_step,
) -> tuple[Callable[[jax.Array], Params], Callable[..., tuple[jax.Array, Encoded]]]:
    """An encoder and a read-out above it.

    Args:
      encoder: reads the sequence.
      input_size: width of the inputs.
      outputs: how many scores.
      dropout: of the inputs, and of what is read.
      pooled: `(params, Encoded, length) -> [..., width]`, what is read.

    Returns:
      `init`, `key -> {"encoder", "read"}`, and `scores`, `(params, inputs, length, *, key=None,
      probe=None, solve={}) -> (scores, Encoded)`.
    """

    def init(key: jax.Array) -> Params:
        keys = jax.random.split(key)
        return {
            "encoder": encoder.init(keys[0], input_size),
            "read": init_read(keys[1], encoder.width, outputs),
        }

    def scores(
        params: Params,
        inputs: jax.Array,
        length: jax.Array,
        *,
        key: jax.Array | None = None,
        probe: Info | None = None,
        solve: Mapping[str, Any] = NO_SETTINGS,
    ) -> tuple[jax.Array, Encoded]:
        keys = [None] * 3 if key is None else list(jax.random.split(key, 3))
        encoded = encoder.apply(
            params["encoder"],
            drop(inputs, dropout, keys[0]),
            length,
            key=keys[1],
            probe=probe,
            solve=solve,
        )
        features = drop(pooled(params, encoded, length), dropout, keys[2])
        return read(params["read"], features), encoded

    return init, scores
