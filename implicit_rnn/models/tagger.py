"""A label for every step of a sequence: an encoder and a softmax, or a sigmoid, above it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from implicit_rnn.cells.base import Params
from implicit_rnn.models.base import NO_SETTINGS, Outcome, inside, label_sums
from implicit_rnn.models.encoder import Encoded, Encoder
from implicit_rnn.models.readout import read_encoder
from solvers import Info


class Tagger(NamedTuple):
    """A `Model` that labels steps.

    Attributes:
      init, loss, bounds, solves, carry: as for every `Network`; a batch has `inputs`
        `[batch, time, features]`, `labels` `[batch, time]` and `length` `[batch]`; sums are `loss`,
        `error` (wrong labels) and `count` (steps).
      scores: `(params, inputs, length, *, key=None, probe=None, solve={}) -> (scores, Encoded)`,
        scores `[batch, time, labels]`, or `[batch, time]` for two labels.
      predict: `scores -> [batch, time]`, the labels.
      encoder: what it stands on.
      embed: `(params, batch) -> [batch, time, features]`: what the encoder is to read.
    """

    init: Callable[[jax.Array], Params]
    loss: Callable[..., tuple[jax.Array, Outcome]]
    bounds: Any
    solves: int
    scores: Callable[..., tuple[jax.Array, Encoded]]
    predict: Callable[[jax.Array], jax.Array]
    encoder: Encoder
    embed: Callable[[Params, Any], jax.Array]
    carry: None = None


def tagger(encoder: Encoder, input_size: int, labels: int, *, dropout: float = 0.0) -> Tagger:
    """Labels steps by a linear read-out of an encoder's features.

    Args:
      encoder: reads the sequence.
      input_size: width of the inputs.
      labels: how many; two are one logistic score, as in section 3.1 of the 2017 paper.
      dropout: of inputs and features.

    Parameters: `encoder`, and `read` with `weights` `[width, labels]` and `bias`.
    """
    if labels < 2:
        raise ValueError(f"labels must be at least 2, got {labels}")
    outputs = 1 if labels == 2 else labels

    init, read = read_encoder(encoder, input_size, outputs, dropout)

    def scores(*at: Any, **settings: Any) -> tuple[jax.Array, Encoded]:
        found, encoded = read(*at, **settings)
        return found[..., 0] if outputs == 1 else found, encoded

    def predict(scores: jax.Array) -> jax.Array:
        return (scores > 0).astype(jnp.int32) if outputs == 1 else jnp.argmax(scores, axis=-1)

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
        mask = inside(batch.length, found.shape[1])
        mean, sums = label_sums(softmax_scores(found), batch.labels, mask)
        return mean, Outcome(sums, encoded.info, states=encoded.states)

    return Tagger(
        init,
        loss,
        {"encoder": encoder.bounds},
        encoder.solves,
        scores,
        predict,
        encoder,
        lambda params, batch: batch.inputs,
    )


def softmax_scores(scores: jax.Array) -> jax.Array:
    """One score a label, of a tagger's own: the softmax of 0 and s is the sigmoid of s."""
    if scores.ndim == 3:
        return scores
    return jnp.stack([jnp.zeros_like(scores), scores], axis=-1)
