"""A sequence from a sequence (figure 10.12): an encoder reads, a decoder writes, and may look."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from implicit_rnn.cells.base import Cell, Params, State
from implicit_rnn.models.attention import ATTENTIONS
from implicit_rnn.models.base import NO_SETTINGS, Outcome, embedded, label_sums
from implicit_rnn.models.decoder import Context, Decoder, Source, decoder, shifted
from implicit_rnn.models.decoding import Decoded, searches
from implicit_rnn.models.encoder import Encoded, Encoder
from implicit_rnn.sequence.stack import drop
from solvers import Info


class PairBatch(NamedTuple):
    """Pairs of sequences of tokens; neither holds a start or an end."""

    source: jax.Array  # int [batch, source time]
    source_length: jax.Array  # int [batch]
    target: jax.Array  # int [batch, target time], -1 for a token that cannot be written
    target_length: jax.Array  # int [batch], -1 for a place without a pair, which counts nowhere


class Seq2Seq(NamedTuple):
    """A `Model` of sequences given sequences.

    Attributes:
      init, loss, bounds, solves, carry: as for every `Network`; a batch has `source`,
        `source_length`, `target` and `target_length` as `PairBatch`; sums are `loss` (nats),
        `error` (tokens, ends included, that are not the likeliest given right ones before them),
        `count` (tokens), `exact` (sequences without an error, which are those that greedy decoding
        gets right) and `count_exact` (sequences).
      scores: `(params, batch, *, key=None, probe=None, solve={}) -> (scores [batch, time + 1,
        tokens + 1], weights, Encoded)`, the weights of attention `[batch, time + 1, source time]`
        or None.
      greedy: `(params, source, source_length, max_length, *, solve={}) -> Decoded`, every field
        with a batch axis. The end takes one of the `max_length` steps.
      beam: `(params, source, source_length, max_length, width, length_penalty=0.6, *, solve={}) ->
        Decoded`, fields `[batch, width, ...]`, the best first.
      encoder: what reads.
      embed: `(params, batch) -> [batch, source time, features]`: what the encoder is to read.
    """

    init: Callable[[jax.Array], Params]
    loss: Callable[..., tuple[jax.Array, Outcome]]
    bounds: Any
    solves: int
    scores: Callable[..., tuple[jax.Array, jax.Array | None, Encoded]]
    greedy: Callable[..., Decoded]
    beam: Callable[..., Decoded]
    encoder: Encoder
    embed: Callable[[Params, Any], jax.Array]
    carry: None = None


def seq2seq(
    encoder: Encoder,
    cell: Cell,
    source_vocabulary: int,
    target_vocabulary: int,
    *,
    embedding_size: int = 32,
    context: Context = "both",
    attention: str | None = None,
    dropout: float = 0.0,
    feeding: bool = False,
    smoothing: float = 0.0,
) -> Seq2Seq:
    """An encoder-decoder.

    Args:
      encoder: reads the source, in any direction.
      cell: writes the target: any causal one.
      source_vocabulary, target_vocabulary: how many tokens; the decoder's own start and end token
        has the number `target_vocabulary`.
      embedding_size: width of an embedded token, on either side.
      context: whether the encoder's summary is a part of every input of the decoder, makes its
        first state, or both. With attention the input is what is looked at.
      attention: None, `"additive"`, `"bilinear"` or `"dot"` (for an encoder as wide as the cell).
      dropout: of embedded tokens, of the encoder's features, and of what the read-out sees.
      feeding: what attention has found is a part of the next input, not of its own (input feeding),
        as for `decoder`.
      smoothing: where there is a key, the share of the loss that wants all tokens alike (label
        smoothing).

    Parameters: `embedding` `[source_vocabulary, embedding_size]`, `encoder`, `decoder`.
    """
    if attention is not None and attention not in ATTENTIONS:
        raise ValueError(f"attention must be None or in {sorted(ATTENTIONS)}, got {attention!r}")
    for name, value in (("dropout", dropout), ("smoothing", smoothing)):
        if not 0 <= value < 1:
            raise ValueError(f"{name} must be at least 0 and below 1, got {value}")
    if source_vocabulary < 1:
        raise ValueError(f"source_vocabulary must be at least 1, got {source_vocabulary}")
    end = target_vocabulary
    writer = decoder(
        cell,
        target_vocabulary,
        encoder.width,
        embedding_size,
        context=context,
        attention=None if attention is None else ATTENTIONS[attention](cell.hidden_size),
        dropout=dropout,
        feeding=feeding,
    )

    parts = _Pair(
        source_vocabulary=source_vocabulary,
        embedding_size=embedding_size,
        encoder=encoder,
        writer=writer,
        dropout=dropout,
        end=end,
        smoothing=smoothing,
    )
    greedy, beam = searches(parts.ready, parts.step, end)
    return Seq2Seq(
        parts.init,
        parts.loss,
        {"encoder": encoder.bounds},
        encoder.solves,
        parts.scores,
        greedy,
        beam,
        encoder,
        lambda params, batch: embedded(params["embedding"], batch.source, batch.source_length),
    )


@dataclasses.dataclass(frozen=True, eq=False)
class _Pair:
    """What an encoder and a decoder do together."""

    source_vocabulary: int
    embedding_size: int
    encoder: Encoder
    writer: Decoder
    dropout: float
    end: int
    smoothing: float

    def init(self, key: jax.Array) -> Params:
        keys = jax.random.split(key, 3)
        return {
            "embedding": jax.random.normal(keys[0], (self.source_vocabulary, self.embedding_size)),
            "encoder": self.encoder.init(keys[1], self.embedding_size),
            "decoder": self.writer.init(keys[2]),
        }

    def encode(
        self,
        params: Params,
        source: jax.Array,
        length: jax.Array,
        key: jax.Array | None = None,
        **settings: Any,
    ) -> Encoded:
        keys = [None] * 3 if key is None else list(jax.random.split(key, 3))
        inputs = drop(embedded(params["embedding"], source, length), self.dropout, keys[0])
        found = self.encoder.apply(params["encoder"], inputs, length, key=keys[1], **settings)
        return found._replace(features=drop(found.features, self.dropout, keys[2]))

    def begin(
        self, params: Params, features: jax.Array, summary: jax.Array, length: jax.Array
    ) -> tuple[Source, State]:
        return self.writer.begin(params["decoder"], summary, features, length)

    def scores(
        self,
        params: Params,
        batch: Any,
        *,
        key: jax.Array | None = None,
        probe: Info | None = None,
        solve: Mapping[str, Any] = NO_SETTINGS,
    ) -> tuple[jax.Array, jax.Array | None, Encoded]:
        reading = writing = None
        if key is not None:
            reading, rest = jax.random.split(key)
            writing = jax.random.split(rest, len(batch.target))
        encoded = self.encode(
            params, batch.source, batch.source_length, reading, probe=probe, solve=solve
        )
        inputs, _, _ = shifted(batch.target, batch.target_length, self.end)

        def one(
            features: jax.Array,
            summary: jax.Array,
            read: jax.Array,
            tokens: jax.Array,
            written: jax.Array,
            key: jax.Array | None,
        ) -> tuple[jax.Array, jax.Array | None]:
            source, state = self.begin(params, features, summary, read)
            nothing = jnp.zeros((tokens.shape[0], 0), summary.dtype)
            return self.writer.scores(
                params["decoder"], source, state, tokens, written + 1, nothing, key
            )

        found, weights = jax.vmap(one)(
            encoded.features,
            encoded.summary,
            batch.source_length,
            inputs,
            batch.target_length,
            writing,
        )
        return found, weights, encoded

    def loss(
        self,
        params: Params,
        batch: Any,
        *,
        key: jax.Array | None = None,
        probe: Info | None = None,
        solve: Mapping[str, Any] = NO_SETTINGS,
        carry: None = None,
    ) -> tuple[jax.Array, Outcome]:
        found, _, encoded = self.scores(params, batch, key=key, probe=probe, solve=solve)
        mean, sums = target_sums(found, batch, self.end)
        if self.smoothing and key is not None:
            mean = smoothed(mean, found, batch, self.smoothing)
        return mean, Outcome(sums, encoded.info)

    def ready(
        self, params: Params, source: jax.Array, length: jax.Array, max_length: int, **settings: Any
    ) -> tuple[Source, State]:
        encoded = self.encode(params, source, length, **settings)
        return jax.vmap(lambda *at: self.begin(params, *at))(
            encoded.features, encoded.summary, length
        )

    def step(
        self, params: Params, source: Source, state: State, token: jax.Array
    ) -> tuple[jax.Array, State]:
        nothing = jnp.zeros(0, source.context.dtype)
        found, state = self.writer.step(params["decoder"], source, state, token, nothing)
        return jax.nn.log_softmax(found), state


def target_sums(scores: jax.Array, batch: Any, end: int) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Mean cross-entropy of the targets of a `PairBatch`, and the sums of a `Seq2Seq`.

    A sequence is exact if every step, given the right tokens before it, says the right one. Those
    are the sequences that greedy decoding finds, without decoding: its first step is given what
    this one is, so its first token is right, hence the second step is given what this one is, and
    so on to the end. A target with a token that cannot be written (-1) is never exact, and its loss
    has no meaning at that step.

    Args:
      scores: `[batch, time + 1, tokens + 1]`, each step given the right tokens before it.
      batch: the pairs.
      end: the number of the start and end token.
    """
    _, labels, mask = shifted(batch.target, batch.target_length, end)
    mean, sums = label_sums(scores, labels, mask)
    there = jnp.asarray(batch.target_length) >= 0
    right = there & jnp.all(~mask | (jnp.argmax(scores, axis=-1) == labels), axis=1)
    sums["exact"] = jnp.sum(right).astype(mean.dtype)
    sums["count_exact"] = jnp.sum(there).astype(mean.dtype)
    return mean, sums


def smoothed(mean: jax.Array, scores: jax.Array, batch: Any, share: float) -> jax.Array:
    """A mean of `target_sums` of which this share is the cross-entropy of all tokens alike."""
    mask = jnp.arange(scores.shape[1]) <= jnp.asarray(batch.target_length)[:, None]
    even = jax.nn.logsumexp(scores, axis=-1) - jnp.mean(scores, axis=-1)
    even = jnp.sum(jnp.where(mask, even, 0)) / jnp.maximum(jnp.sum(mask), 1)
    return (1 - share) * mean + share * even
