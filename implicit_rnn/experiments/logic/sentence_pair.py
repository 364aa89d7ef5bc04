"""One label for two sequences of tokens: both are encoded alike, and their vectors compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from implicit_rnn.cells.base import Params
from implicit_rnn.models.base import NO_SETTINGS, Outcome, embedded, label_sums
from implicit_rnn.models.encoder import Encoder
from implicit_rnn.models.readout import init_read, read
from implicit_rnn.sequence.stack import drop
from solvers import Info


class SentencesBatch(NamedTuple):
    """Two sequences of tokens with one label."""

    first: jax.Array  # int [batch, time]
    first_length: jax.Array  # int [batch]
    second: jax.Array  # int [batch, time]
    second_length: jax.Array  # int [batch]
    labels: jax.Array  # int [batch], below zero for a place that counts nowhere


class SentencePair(NamedTuple):
    """A `Model` that labels pairs of sequences.

    Attributes:
      init, loss, bounds, solves, carry: as for every `Network`; a batch is a `SentencesBatch`; sums
        are `loss`, `error` (wrong labels) and `count` (pairs).
      scores: `(params, batch, *, key=None, probe=None, solve={}) -> (scores, Info)`, scores
        `[batch, labels]`.
      encoder: what it stands on.
      embed: `(params, batch) -> [batch, time, features]`: what the encoder is to read of the first
        sequences.
    """

    init: Callable[[jax.Array], Params]
    loss: Callable[..., tuple[jax.Array, Outcome]]
    bounds: Any
    solves: int
    scores: Callable[..., tuple[jax.Array, Info | None]]
    encoder: Encoder
    embed: Callable[[Params, Any], jax.Array]
    carry: None = None


def sentence_pair(
    encoder: Encoder,
    vocabulary: int,
    labels: int,
    *,
    embedding_size: int = 64,
    compare_size: int = 128,
    dropout: float = 0.0,
    input_dropout: float | None = None,
) -> SentencePair:
    """Labels pairs by `softmax(V elu(W [u, v, u v, |u - v|] + b) + c)`.

    `u` and `v` are the encoder's summaries of the two sequences. It reads both at once, as a batch
    twice as large: each solved layer reports twice, for the first sequences and for the second.

    Args:
      encoder: reads each sequence.
      vocabulary: how many tokens.
      labels: how many.
      embedding_size: width of an embedded token.
      compare_size: width of the hidden layer.
      dropout: of embedded tokens, of what is compared and of the hidden layer.
      input_dropout: of embedded tokens, in place of `dropout`.

    Parameters: `embedding` `[vocabulary, embedding_size]`, `encoder`, and `compare` and `read` with
    `weights` and `bias`.
    """
    for name, value, least in (("labels", labels, 2), ("vocabulary", vocabulary, 1)):
        if value < least:
            raise ValueError(f"{name} must be at least {least}, got {value}")
    reading = dropout if input_dropout is None else input_dropout

    def init(key: jax.Array) -> Params:
        keys = jax.random.split(key, 4)
        return {
            "embedding": jax.random.normal(keys[0], (vocabulary, embedding_size)),
            "encoder": encoder.init(keys[1], embedding_size),
            "compare": init_read(keys[2], 4 * encoder.width, compare_size),
            "read": init_read(keys[3], compare_size, labels),
        }

    def scores(
        params: Params,
        batch: Any,
        *,
        key: jax.Array | None = None,
        probe: Info | None = None,
        solve: Mapping[str, Any] = NO_SETTINGS,
    ) -> tuple[jax.Array, Info | None]:
        keys = [None] * 4 if key is None else list(jax.random.split(key, 4))
        tokens = jnp.concatenate([batch.first, batch.second])
        length = jnp.concatenate([batch.first_length, batch.second_length])
        inputs = drop(embedded(params["embedding"], tokens, length), reading, keys[0])
        encoded = encoder.apply(
            params["encoder"], inputs, length, key=keys[1], probe=_side_by_side(probe), solve=solve
        )
        u, v = jnp.split(encoded.summary, 2)
        compared = jnp.concatenate([u, v, u * v, jnp.abs(u - v)], axis=-1)
        hidden = jax.nn.elu(read(params["compare"], drop(compared, dropout, keys[2])))
        found = read(params["read"], drop(hidden, dropout, keys[3]))
        return found, _one_above_the_other(encoded.info)

    def loss(
        params: Params,
        batch: Any,
        *,
        key: jax.Array | None = None,
        probe: Info | None = None,
        solve: Mapping[str, Any] = NO_SETTINGS,
        carry: None = None,
    ) -> tuple[jax.Array, Outcome]:
        found, info = scores(params, batch, key=key, probe=probe, solve=solve)
        mean, sums = label_sums(found, batch.labels, jnp.asarray(batch.labels) >= 0)
        return mean, Outcome(sums, info)

    def embed(params: Params, batch: Any) -> jax.Array:
        return embedded(params["embedding"], batch.first, batch.first_length)

    bounds = {"encoder": encoder.bounds}
    return SentencePair(init, loss, bounds, 2 * encoder.solves, scores, encoder, embed)


def _side_by_side(probe: Info | None) -> Info | None:
    """Probes `[2 layers, batch]` as those of an encoder's batch, `[layers, 2 batch]`."""
    if probe is None:
        return None
    return jax.tree.map(lambda leaf: jnp.concatenate(jnp.split(leaf, 2), axis=1), probe)


def _one_above_the_other(info: Info | None) -> Info | None:
    """The way back."""
    if info is None:
        return None
    return jax.tree.map(lambda leaf: jnp.concatenate(jnp.split(leaf, 2, axis=1)), info)
