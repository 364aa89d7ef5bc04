"""Pairs of token sequences, one to read and one to write, in batches of about equal length."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from implicit_rnn.tasks.base import Source, Task, bucketed

Pair = tuple[np.ndarray, np.ndarray]  # tokens to read, tokens to write

_ROUND = 4096  # pairs drawn at a time


class Pairs(NamedTuple):
    """Pairs of sequences of tokens; what is past a length is zero.

    A target length of -1 marks a place of a batch that no pair fills: it counts nowhere.
    """

    source: np.ndarray  # int32 [count, source time]
    source_length: np.ndarray  # int32 [count]
    target: np.ndarray  # int32 [count, target time]
    target_length: np.ndarray  # int32 [count]

    @property
    def length(self) -> np.ndarray:
        """Steps that an encoder reads, `[count]`."""
        return self.source_length


def padded(pairs: Sequence[Pair]) -> Pairs:
    """Pairs as arrays as wide as the longest."""
    sources, targets = (wide([pair[side] for pair in pairs]) for side in (0, 1))
    return Pairs(*sources, *targets)


def wide(sequences: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Sequences of tokens side by side, `[count, longest]`, zero past their lengths `[count]`."""
    length = np.array([len(sequence) for sequence in sequences], np.int32)
    found = np.zeros((len(sequences), int(length.max(initial=0))), np.int32)
    for row, sequence in zip(found, sequences, strict=True):
        row[: len(sequence)] = sequence
    return found, length


def paired(pairs: Pairs) -> Source:
    """A source of batches whose sources have about one length.

    Targets are padded to the longest that belongs to a source of at most the length of the batch:
    one compiled program a length.
    """
    longest = np.zeros(pairs.source.shape[1] + 1, int)
    np.maximum.at(longest, pairs.source_length, pairs.target_length)
    longest = np.maximum.accumulate(longest)

    def take(index: np.ndarray, time: int) -> Pairs:
        blank = index < 0
        return Pairs(
            pairs.source[index, :time],
            np.where(blank, 0, pairs.source_length[index]).astype(np.int32),
            pairs.target[index, : longest[time]],
            np.where(blank, -1, pairs.target_length[index]).astype(np.int32),
        )

    return bucketed(pairs.source_length, take, pairs.source.shape[1])


def pairs_task(splits: Mapping[str, Pairs], source_vocabulary: int, target_vocabulary: int) -> Task:
    """The task of pairs that are there already; splits are named as in `Task`."""
    return Task(
        "pairs",
        {"source_vocabulary": source_vocabulary, "target_vocabulary": target_vocabulary},
        {name: paired(part) for name, part in splits.items()},
        "error",
        {"pairs": dict(splits)},
    )


def drawn(
    draw: Callable[[np.random.Generator, int], Iterable[Pair]],
    counts: Mapping[str, int],
    seed: int,
) -> dict[str, Pairs]:
    """Draws pairs until there are enough with different sources, and splits them at random.

    Args:
      draw: `(rng, count) -> pairs`, so many or fewer.
      counts: how many pairs each split gets; no source is in two of them, nor twice in one.
      seed: the same seed gives the same pairs.
    """
    rng, wanted = np.random.default_rng(seed), sum(counts.values())
    found: dict[bytes, Pair] = {}
    while len(found) < wanted:
        before = len(found)
        for pair in draw(rng, _ROUND):
            found.setdefault(pair[0].tobytes(), pair)
        if len(found) < wanted and len(found) - before < _ROUND // 1000:
            raise ValueError(
                f"{wanted:,} different examples are wanted, and after {len(found):,} hardly any "
                "new one is found: ask for fewer (task.train, task.valid, task.test)"
            )
    # Common sources run out first: an order of drawing would put all of them into one split.
    order = rng.permutation(wanted)
    chosen = list(found.values())[:wanted]
    splits, first = {}, 0
    for name, count in counts.items():
        splits[name] = padded([chosen[number] for number in order[first : first + count]])
        first += count
    return splits
