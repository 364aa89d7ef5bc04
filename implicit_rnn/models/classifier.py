"""One label for a whole sequence: an encoder, a summary of what it made, and a softmax above it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from implicit_rnn.cells.base import Params
from implicit_rnn.models.attention import masked_softmax
from implicit_rnn.models.base import NO_SETTINGS, Outcome, inside, label_sums
from implicit_rnn.models.encoder import Encoded, Encoder
from implicit_rnn.models.readout import read_encoder
from solvers import Info


class LabelledBatch(NamedTuple):
    """Sequences with one label each."""

    inputs: jax.Array  # [batch, time, features]
    labels: jax.Array  # int [batch]
    length: jax.Array  # int [batch]


class Classifier(NamedTuple):
    """A `Model` that labels sequences.

    Attributes:
      init, loss, bounds, solves, carry: as for every `Network`; a batch has `inputs`
        `[batch, time, features]`, `labels` `[batch]` and `length` `[batch]`; sums are `loss`,
        `error` (wrong labels) and `count` (sequences). A label below zero counts nowhere.
      scores: `(params, inputs, length, *, key=None, probe=None, solve={}) -> (scores, Encoded)`,
        scores `[batch, labels]`.
      encoder: what it stands on.
      embed: `(params, batch) -> [batch, time, features]`: what the encoder is to read.
    """

    init: Callable[[jax.Array], Params]
    loss: Callable[..., tuple[jax.Array, Outcome]]
    bounds: Any
    solves: int
    scores: Callable[..., tuple[jax.Array, Encoded]]
    encoder: Encoder
    embed: Callable[[Params, Any], jax.Array]
    carry: None = None


def classifier(
    encoder: Encoder,
    input_size: int,
    labels: int,
    *,
    pooling: Literal["last", "mean", "max", "attention"] = "last",
    dropout: float = 0.0,
) -> Classifier:
    """Labels sequences by a linear read-out of one vector and a softmax, also for two labels.

    Args:
      encoder: reads the sequence.
      input_size: width of the inputs.
      labels: how many.
      pooling: the encoder's `summary`; the mean, or the maximum, of its features over the steps
        that count; or their mean weighted by `softmax_t(query . features_t / sqrt(width))` with a
        learnt query.
      dropout: of inputs and of the vector.

    Parameters: `encoder`, `read` with `weights` `[width, labels]` and `bias`, and for attention
    `query` `[width]`, zero at first: training begins with the mean.
    """
    if labels < 2:
        raise ValueError(f"labels must be at least 2, got {labels}")
    if pooling not in ("last", "mean", "max", "attention"):
        raise ValueError(f'pooling must be "last", "mean", "max" or "attention", got {pooling!r}')
    width = encoder.width

    def pooled(params: Params, encoded: Encoded, length: jax.Array) -> jax.Array:
        features = encoded.features
        if pooling == "last":
            return encoded.summary
        if pooling == "mean":
            return jnp.sum(features, axis=1) / jnp.maximum(length, 1)[:, None]
        if pooling == "max":
            counts = inside(length, features.shape[1])[:, :, None]
            highest = jnp.max(features, axis=1, initial=-jnp.inf, where=counts)
            return jnp.where(length[:, None] > 0, highest, 0)
        scores = features @ params["query"] / jnp.sqrt(jnp.asarray(width, features.dtype))
        weights = masked_softmax(scores, inside(length, features.shape[1]))
        return jnp.einsum("bt,btd->bd", weights, features)

    start, scores = read_encoder(encoder, input_size, labels, dropout, pooled)

    def init(key: jax.Array) -> Params:
        return start(key) | ({"query": jnp.zeros(width)} if pooling == "attention" else {})

    def loss(
        params: Params,
        batch: Any,
        *,
        key: jax.Array | None = None,
        probe: Info | None = None,
        solve: Mapping[str, Any] = NO_SETTINGS,
        carry: None = None,
    ) -> tuple[jax.Array, Outcome]:
        found, encoded = scores(
            params, batch.inputs, batch.length, key=key, probe=probe, solve=solve
        )
        mean, sums = label_sums(found, batch.labels, jnp.asarray(batch.labels) >= 0)
        return mean, Outcome(sums, encoded.info)

    return Classifier(
        init,
        loss,
        {"encoder": encoder.bounds},
        encoder.solves,
        scores,
        encoder,
        lambda params, batch: batch.inputs,
    )
