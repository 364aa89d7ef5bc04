"""A tagger that reads words: vectors of the word and of its affixes, and flags, side by side."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from implicit_rnn.cells.base import Params
from implicit_rnn.experiments.tagging.spans import Marks, span_sums
from implicit_rnn.models.base import NO_SETTINGS, Outcome, inside, label_sums
from implicit_rnn.models.encoder import Encoder
from implicit_rnn.models.tagger import Tagger, softmax_scores, tagger
from solvers import Info


def word_tagger(
    encoder: Callable[[int], Encoder],
    labels: int,
    *,
    words: int,
    affixes: int = 1,
    affix_kinds: int = 0,
    flags: int = 0,
    word_size: int = 200,
    affix_size: int = 12,
    rare: int = 0,
    word_dropout: float = 0.0,
    dropout: float = 0.0,
    vectors: tuple[Any, Any] | None = None,
    spans: Marks | None = None,
) -> Tagger:
    """Labels words (section 3.2 of the 2017 paper): `xi_t = [word, affixes, flags]`, then a tagger.

    A batch has `words` `[batch, time]`, `affixes` `[batch, time, affix_kinds]`, `flags`
    `[batch, time, flags]`, `labels` and `length`. A label below zero, a tag that training never
    saw, is counted as an error and adds nothing to the loss. Sums are those of `tagger`, and
    `unknown` with `count_unknown`: errors on words that are not in the vocabulary, number 0; with
    `spans`, `f1` with `count_f1` (`span_sums`).

    Args:
      encoder: `features -> Encoder`, given the width of what it reads.
      labels: how many.
      words: size of the vocabulary; number 0 is the unknown word.
      affixes: rows of the one table of all affixes; number 0 is none.
      affix_kinds: affixes a word.
      flags: flags a word.
      word_size, affix_size: of the vectors; the paper has 200 and 12.
      rare: words of this number and above are rare.
      word_dropout: chance, where there is a key, that a rare word is read as the unknown one, which
        else would never be trained.
      dropout: of the encoder's inputs and features.
      vectors: rows of the table of words and what they begin with, `[rows]`, `[rows, word_size]`.
      spans: what labels mark, where they mark spans.

    Parameters: those of a tagger, `words` `[words, word_size]`, and `affixes`
    `[affixes, affix_size]` if there are any.
    """
    if not 0 <= word_dropout < 1:
        raise ValueError(f"word_dropout must be at least 0 and below 1, got {word_dropout}")
    if vectors is not None and vectors[1].shape[1] != word_size:
        raise ValueError(
            f"the given word vectors have {vectors[1].shape[1]} numbers, but word_size is "
            f"{word_size}: set one to the other"
        )
    width = word_size + affix_kinds * affix_size + flags
    base = tagger(encoder(width), width, labels, dropout=dropout)

    parts = _Words(
        words=words,
        word_size=word_size,
        vectors=vectors,
        base=base,
        affix_kinds=affix_kinds,
        affixes=affixes,
        affix_size=affix_size,
        word_dropout=word_dropout,
        rare=rare,
        flags=flags,
        spans=spans,
    )
    return base._replace(init=parts.init, loss=parts.loss, embed=parts.embed)


@dataclasses.dataclass(frozen=True, eq=False)
class _Words:
    """What the model does around a tagger of vectors."""

    words: int
    word_size: int
    vectors: tuple[Any, Any] | None
    base: Tagger
    affix_kinds: int
    affixes: int
    affix_size: int
    word_dropout: float
    rare: int
    flags: int
    spans: Marks | None

    def init(self, key: jax.Array) -> Params:
        keys = jax.random.split(key, 3)
        table = _vectors(keys[1], self.words, self.word_size)
        if self.vectors is not None:
            table = table.at[jnp.asarray(self.vectors[0])].set(self.vectors[1])
        params = {**self.base.init(keys[0]), "words": table}
        if self.affix_kinds:
            params["affixes"] = _vectors(keys[2], self.affixes, self.affix_size)
        return params

    def embed(self, params: Params, batch: Any, key: jax.Array | None = None) -> jax.Array:
        counted = inside(batch.length, batch.words.shape[1])
        number = jnp.where(counted, batch.words, 0)
        if key is not None and self.word_dropout:
            hidden = jax.random.bernoulli(key, self.word_dropout, number.shape) & (
                number >= self.rare
            )
            number = jnp.where(hidden, 0, number)
        parts = [params["words"][number]]
        if self.affix_kinds:
            found = params["affixes"][jnp.where(counted[..., None], batch.affixes, 0)]
            parts.append(found.reshape(*number.shape, self.affix_kinds * self.affix_size))
        if self.flags:
            parts.append(jnp.asarray(batch.flags, parts[0].dtype))
        return jnp.concatenate(parts, axis=-1)

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
        keys = [None] * 2 if key is None else list(jax.random.split(key))
        found, encoded = self.base.scores(
            params,
            self.embed(params, batch, keys[0]),
            batch.length,
            key=keys[1],
            probe=probe,
            solve=solve,
        )
        found = softmax_scores(found)
        mask, seen = inside(batch.length, found.shape[1]), batch.labels >= 0
        mean, sums = label_sums(found, batch.labels, mask & seen)
        unknown = mask & (batch.words == 0)
        _, among = label_sums(found, batch.labels, unknown & seen)
        sums |= {"unknown": among["error"], "count_unknown": among["count"]}
        for which, names in ((mask, ("error", "count")), (unknown, ("unknown", "count_unknown"))):
            missed = jnp.sum(which & ~seen)
            sums |= {name: sums[name] + missed.astype(sums[name].dtype) for name in names}
        if self.spans is not None:
            sums |= span_sums(self.spans, batch.labels, jnp.argmax(found, axis=-1), mask)
        return mean, Outcome(sums, encoded.info, states=encoded.states)


def _vectors(key: jax.Array, count: int, size: int) -> jax.Array:
    """Vectors of length about one."""
    return jax.random.normal(key, (count, size)) / jnp.sqrt(size)
