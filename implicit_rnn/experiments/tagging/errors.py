"""Where a tagger errs: which tags it takes for which, on unknown words, in long sentences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

DISTANCES = (0, 1, 3, 7)  # upper ends of the groups of words, 0 is the root; the last has no end
LENGTHS = (5, 10, 20, 30, 40)  # upper ends of the groups of sentences; the last has no end


class Errors(NamedTuple):
    """What was counted over a set of sentences.

    Attributes:
      tags: names of the labels.
      confusion: `[tags + 1, tags]`: how often a tag (row) was given which (column); the last row
        are tags that training had not seen.
      known, unknown: `(words, right ones)` of words in the vocabulary, and not in it.
      lengths: `[groups, 3]`: sentences, words, right ones, by `LENGTHS`.
    """

    tags: Sequence[str]
    confusion: np.ndarray
    known: tuple[int, int]
    unknown: tuple[int, int]
    lengths: np.ndarray

    def worst(self, count: int = 20) -> list[tuple[str, str, int]]:
        """The commonest errors: tag, what it was taken for, how often."""
        wrong = self.confusion.copy()
        np.fill_diagonal(wrong, 0)
        order = np.argsort(-wrong, axis=None, kind="stable")[:count]
        names = [*self.tags, "(unseen)"]
        pairs = zip(*np.unravel_index(order, wrong.shape), strict=True)
        return [
            (names[int(row)], names[int(column)], int(wrong[row, column]))
            for row, column in pairs
            if wrong[row, column]
        ]

    def content(self) -> dict[str, Any]:
        """As JSON."""
        groups = []
        for low, high, (count, words, right) in zip(
            (1, *(end + 1 for end in LENGTHS)), (*LENGTHS, None), self.lengths.tolist(), strict=True
        ):
            group = {"from": low, "to": high, "sentences": count, "words": words}
            groups.append(group | {"accuracy": _share(right, words)})
        words, right = (sum(pair) for pair in zip(self.known, self.unknown, strict=True))
        return {
            "words": words,
            "accuracy": _share(right, words),
            "known": {"words": self.known[0], "accuracy": _share(*self.known[::-1])},
            "unknown": {"words": self.unknown[0], "accuracy": _share(*self.unknown[::-1])},
            "unseen tags": int(self.confusion[-1].sum()),
            "by length": groups,
            "worst": [{"tag": a, "taken for": b, "times": n} for a, b, n in self.worst()],
            "tags": list(self.tags),
            "confusion": self.confusion.tolist(),
        }


def errors(tags: Sequence[str], found: Iterable[tuple[Any, np.ndarray]]) -> Errors:
    """Counts the errors of batches of sentences.

    Args:
      tags: names of the labels.
      found: batches with `words` (0: unknown), `labels` (below 0: unseen) and `length`, each with
        the labels that were predicted, `[batch, time]`.
    """
    confusion = np.zeros((len(tags) + 1, len(tags)), np.int64)
    lengths = np.zeros((len(LENGTHS) + 1, 3), np.int64)
    counts = np.zeros((2, 2), np.int64)
    for batch, given in found:
        inside = np.arange(given.shape[1]) < batch.length[:, None]
        right = inside & (given == batch.labels)
        np.add.at(confusion, (batch.labels[inside], given[inside]), 1)  # -1 is the last row
        for row, part in enumerate((inside & (batch.words != 0), inside & (batch.words == 0))):
            counts[row] += part.sum(), (part & right).sum()
        group = np.searchsorted(LENGTHS, batch.length)
        some = batch.length > 0
        totals = np.stack([some, batch.length, right.sum(axis=1)], axis=1)
        np.add.at(lengths, group[some], totals[some])
    (known, known_right), (unknown, unknown_right) = counts.tolist()
    return Errors(tags, confusion, (known, known_right), (unknown, unknown_right), lengths)


def by_distance(
    distances: Sequence[Sequence[int]], found: Iterable[tuple[np.ndarray, Any, np.ndarray]]
) -> list[dict[str, Any]]:
    """How often words are right by how far the word is that they depend on, one row a group.

    Args:
      distances: of the words of every sentence; a sentence without any is left out.
      found: numbers of the sentences of a batch (below 0: none), the batch, and what was predicted.
    """
    counts = np.zeros((len(DISTANCES) + 1, 2), np.int64)
    for numbers, batch, given in found:
        for row, number in enumerate(numbers):
            if number < 0 or not distances[number]:
                continue
            own = np.array(distances[number])
            right = given[row, : own.size] == batch.labels[row, : own.size]
            np.add.at(counts, np.searchsorted(DISTANCES, own), np.stack([own >= 0, right], axis=1))
    rows = []
    for low, high, (words, right) in zip(
        (0, *(end + 1 for end in DISTANCES)), (*DISTANCES, None), counts.tolist(), strict=True
    ):
        rows.append({"from": low, "to": high, "words": words, "accuracy": _share(right, words)})
    return rows if counts.any() else []


def _share(right: int, words: int) -> float | None:
    return right / words if words else None
