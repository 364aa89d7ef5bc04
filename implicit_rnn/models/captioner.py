"""A sequence from a vector (figure 10.9): a caption from what describes an image, for instance."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from implicit_rnn.cells.base import Cell, Params, State
from implicit_rnn.models import decoding
from implicit_rnn.models.base import NO_SETTINGS, Outcome, inside, label_sums
from implicit_rnn.models.decoder import Context, Decoder, decoder, shifted
from implicit_rnn.models.decoding import Decoded
from implicit_rnn.models.readout import init_read, read
from solvers import Info


class CaptionBatch(NamedTuple):
    """Vectors with a sequence each; the tokens hold neither a start nor an end."""

    context: jax.Array  # [batch, context_size]
    tokens: jax.Array  # int [batch, time]
    length: jax.Array  # int [batch]


class Captioner(NamedTuple):
    """A `Model` of sequences given vectors.

    Attributes:
      init, loss, bounds, solves, carry: as for every `Network`; a batch has `context`
        `[batch, context_size]`, `tokens` `[batch, time]` and `length` `[batch]`; sums are `loss`
        (nats), `error` (predictions that are not the likeliest) and `count` (predictions: of a
        caption of n tokens there are n + 1, the last of which is its end, or its length).
      generate: `(params, context [batch, context_size], *, key=None, temperature=1) -> Decoded`:
        the likeliest token at each step, or with a key drawn ones; tokens `[batch, longest + 1]`
        are `vocabulary` past the length; the score is the log-probability of the whole caption.
    """

    init: Callable[[jax.Array], Params]
    loss: Callable[..., tuple[jax.Array, Outcome]]
    bounds: Any
    solves: int
    generate: Callable[..., Decoded]
    carry: None = None


def captioner(
    cell: Cell,
    context_size: int,
    vocabulary: int,
    *,
    longest: int,
    embedding_size: int = 32,
    context: Context = "both",
    length_model: Literal["end", "direct"] = "end",
) -> Captioner:
    """Writes sequences given a vector.

    How long a sequence is, is modelled by an end token that the network says itself, or directly
    (equation 10.34): `p(y_1 ... y_n) = p(n | context) p(y_1 ... y_n | n, context)`, with a softmax
    over lengths, and steps that are given what remains, `(n - t + 1) / longest`.

    Args:
      cell: any causal one.
      context_size: width of the vector.
      vocabulary: how many tokens; the model's own start and end token has the number `vocabulary`.
      longest: the longest caption, in tokens.
      embedding_size: width of an embedded token.
      context: whether the vector is a part of every input, makes the first state, or both.
      length_model: by an end token, or directly.

    Parameters: those of a `decoder`, under `decoder`, and `length` with `weights`
    `[context_size, longest + 1]` and `bias` where lengths are predicted.
    """
    if length_model not in ("end", "direct"):
        raise ValueError(f'length_model must be "end" or "direct", got {length_model!r}')
    if longest < 0:
        raise ValueError(f"longest must be at least 0, got {longest}")
    direct = length_model == "direct"
    writer = decoder(
        cell,
        vocabulary,
        context_size,
        embedding_size,
        context=context,
        extra_size=int(direct),
        ends=not direct,
    )

    parts = _Writer(
        writer=writer,
        direct=direct,
        context_size=context_size,
        longest=longest,
        vocabulary=vocabulary,
    )
    return Captioner(parts.init, parts.loss, {}, 0, parts.generate)


@dataclasses.dataclass(frozen=True, eq=False)
class _Writer:
    """What a captioner does."""

    writer: Decoder
    direct: bool
    context_size: int
    longest: int
    vocabulary: int

    def init(self, key: jax.Array) -> Params:
        keys = jax.random.split(key)
        params = {"decoder": self.writer.init(keys[0])}
        if self.direct:
            params["length"] = init_read(keys[1], self.context_size, self.longest + 1)
        return params

    def extra(self, remaining: jax.Array, dtype: Any) -> jax.Array:
        """What a step is given beside token and context."""
        if not self.direct:
            return jnp.zeros((*remaining.shape, 0), dtype)
        return (jnp.maximum(remaining, 0).astype(dtype) / max(self.longest, 1))[..., None]

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
        inputs, labels, mask = shifted(batch.tokens, batch.length, self.vocabulary)
        if self.direct:
            time = batch.tokens.shape[1]
            inputs, labels, mask = inputs[:, :time], labels[:, :time], inside(batch.length, time)

        def one(context: jax.Array, tokens: jax.Array, length: jax.Array) -> jax.Array:
            source, state = self.writer.begin(params["decoder"], context)
            remaining = self.extra(length - jnp.arange(tokens.shape[0]), context.dtype)
            steps = length + (not self.direct)
            return self.writer.scores(params["decoder"], source, state, tokens, steps, remaining)[0]

        found = jax.vmap(one)(batch.context, inputs, batch.length)
        _, sums = label_sums(found, labels, mask)
        if self.direct:
            found = read(params["length"], batch.context)
            _, lengths = label_sums(found, batch.length, jnp.ones(batch.length.shape, bool))
            sums = jax.tree.map(jnp.add, sums, lengths)
        return sums["loss"] / jnp.maximum(sums["count"], 1), Outcome(sums)

    def generate(
        self,
        params: Params,
        context: jax.Array,
        *,
        key: jax.Array | None = None,
        temperature: float | jax.Array = 1.0,
    ) -> Decoded:
        def one(context: jax.Array, key: jax.Array | None) -> Decoded:
            source, state = self.writer.begin(params["decoder"], context)
            keys = [None, None] if key is None else list(jax.random.split(key))
            known, chance = jnp.asarray(self.longest + 1), jnp.zeros((), context.dtype)
            if self.direct:
                lengths = jax.nn.log_softmax(read(params["length"], context))
                known = jnp.argmax(decoding.perturbed(keys[0], lengths, temperature))
                chance = lengths[known]

            def step(carried: tuple, token: jax.Array) -> tuple[jax.Array, tuple[State, jax.Array]]:
                state, remaining = carried
                given = self.extra(remaining, context.dtype)
                found, state = self.writer.step(params["decoder"], source, state, token, given)
                found = jax.nn.log_softmax(found)
                if self.direct:  # the end is certain where nothing remains, else impossible
                    done = remaining <= 0
                    end = jnp.where(done, 0, -jnp.inf)
                    found = jnp.append(jnp.where(done, -jnp.inf, found), end)
                return found, (state, remaining - 1)

            begin = state, known
            if keys[1] is None:
                found = decoding.greedy(
                    step, begin, self.vocabulary, self.vocabulary, self.longest + 1
                )
            else:
                found = decoding.sample(
                    step,
                    begin,
                    self.vocabulary,
                    self.vocabulary,
                    self.longest + 1,
                    keys[1],
                    temperature,
                )
            return found._replace(score=found.score + chance)

        if key is None:
            return jax.vmap(lambda context: one(context, None))(context)
        return jax.vmap(one)(context, jax.random.split(key, context.shape[0]))
