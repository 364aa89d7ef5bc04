"""Spans that labels of words mark (`B-NP I-NP O`): how many there are, and how many are found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

OUTSIDE = "O"
_PREFIXES = ("B", "I")


class Marks(NamedTuple):
    """What labels say of spans, by number; one entry more for a label that training has not seen.

    Attributes:
      kind: of the span that a word is in, from 1 on; 0 outside of any.
      begins: whether a word begins one whatever is before it.
    """

    kind: np.ndarray  # int32 [labels + 1]
    begins: np.ndarray  # bool [labels + 1]


def marks(tags: Sequence[str]) -> Marks | None:
    """What the tags mark; None where they are not all `O`, `B-kind` and `I-kind`."""
    parts = [tag.split("-", 1) for tag in tags if tag != OUTSIDE]
    if not parts or any(len(part) < 2 or part[0] not in _PREFIXES for part in parts):
        return None
    kinds = sorted({part[1] for part in parts})
    of = {kind: number for number, kind in enumerate(kinds, 1)}
    return Marks(
        np.array([of.get(tag.partition("-")[2], 0) for tag in tags] + [len(kinds) + 1], np.int32),
        np.array([tag.startswith("B-") for tag in tags] + [True]),
    )


def span_sums(
    found: Marks, labels: jax.Array, predicted: jax.Array, inside: jax.Array
) -> dict[str, jax.Array]:
    """`f1` and `count_f1`, whose ratio over all sentences is F1 by spans.

    As the shared task's own program counts: a span is right if it begins and ends where one of the
    true ones does and is of its kind; an `I` after another kind, or after none, begins a span.

    Args:
      found: of the tags.
      labels, predicted: `[batch, time]`; a label below 0 is none that training has seen.
      inside: which words count, `[batch, time]`.
    """
    right, guess = (_spans(found, of, inside) for of in (labels, predicted))
    same = right.starts & guess.starts & (right.kind == guess.kind) & (right.end == guess.end)
    return {
        "f1": 2.0 * jnp.sum(same),
        "count_f1": (jnp.sum(right.starts) + jnp.sum(guess.starts)).astype(jnp.float32),
    }


class _Spans(NamedTuple):
    starts: jax.Array  # whether a span begins at a word
    kind: jax.Array
    end: jax.Array  # the last word of the first span that ends here or later


def _spans(found: Marks, labels: jax.Array, inside: jax.Array) -> _Spans:
    kind = jnp.where(inside, jnp.asarray(found.kind)[labels], 0)
    begins = jnp.asarray(found.begins)[labels]
    column = ((0, 0), (1, 1))
    around = jnp.pad(kind, column)
    starts = (kind > 0) & (begins | (around[:, :-2] != kind))
    following = jnp.pad(starts, column)[:, 2:]
    ends = (kind > 0) & (following | (around[:, 2:] != kind))
    time = labels.shape[1]
    place = jnp.where(ends, jnp.arange(time), time)
    return _Spans(starts, kind, lax.cummin(place, axis=1, reverse=True))
