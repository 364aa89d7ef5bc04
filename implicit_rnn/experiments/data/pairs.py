"""Pairs of token sequences, one to read and one to write, in batches of about equal length."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from implicit_rnn.experiments.task import Task
from implicit_rnn.training.sources import Source, bucketed, evaluated_alike

T = TypeVar("T")
Pair = tuple[np.ndarray, np.ndarray]  # tokens to read, tokens to write

UNSEEN = -1  # a token of a target that cannot be written: whatever is written is wrong
_ROUND = 4096  # pairs drawn at a time
_USUAL = 0.95  # share of the sources of a length whose targets are not unusually long


class Pairs(NamedTuple):
    """Pairs of sequences of tokens; what is past a length is zero.

    A target length of -1 marks a place of a batch that no pair fills: it counts nowhere. A token of
    a target that is `UNSEEN` is one that no model can write; it is not to be trained on.
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


def paired(pairs: Pairs, room: np.ndarray) -> Source:
    """A source of batches whose sources have about one length.

    Args:
      pairs: which.
      room: by the time that sources of a batch are padded to, that of its targets: one compiled
        program a length. A pair whose target is longer than its source's length has room for goes
        with longer sources.
    """
    shape = len(room) - 1, int(room[-1])
    source, target = (
        np.pad(side, ((0, 0), (0, time - side.shape[1])))
        for side, time in zip((pairs.source, pairs.target), shape, strict=True)
    )

    def take(index: np.ndarray, time: int) -> Pairs:
        blank = index < 0
        return Pairs(
            source[index, :time],
            np.where(blank, 0, pairs.source_length[index]).astype(np.int32),
            target[index, : room[time]],
            np.where(blank, -1, pairs.target_length[index]).astype(np.int32),
        )

    needed = np.searchsorted(room, pairs.target_length).astype(np.int32)
    return bucketed(np.maximum(pairs.source_length, needed), take, shape[0])


def target_room(splits: Iterable[Pairs]) -> np.ndarray:
    """Steps for the targets of sources of at most so many tokens, from 0 on.

    Enough for nearly all of them: a few targets that are unusually long for their sources would
    otherwise set the cost of every batch. The longest sources have room for any target.
    """
    splits = list(splits)
    read, written = (
        np.concatenate([getattr(part, name) for part in splits])
        for name in ("source_length", "target_length")
    )
    room = np.zeros(1 + max(part.source.shape[1] for part in splits), int)
    for length in np.unique(read):
        room[length] = np.quantile(written[read == length], _USUAL, method="higher")
    room[-1] = written.max()
    return np.maximum.accumulate(room)


def pairs_task(splits: Mapping[str, Pairs], words: Sequence[str], target_vocabulary: int) -> Task:
    """The task of pairs that are there already.

    Args:
      splits: pairs, by names as in `Task`.
      words: names of the tokens that are read, from 0 on.
      target_vocabulary: how many tokens there are to write.
    """
    # What is trained on has a room of its own: a long target of a test costs no update.
    rooms = {
        learnt: target_room(part for name, part in splits.items() if (name == "train") == learnt)
        for learnt in {name == "train" for name in splits}
    }
    return Task(
        "pairs",
        {"source_vocabulary": len(words), "target_vocabulary": target_vocabulary},
        evaluated_alike(
            {name: paired(part, rooms[name == "train"]) for name, part in splits.items()}
        ),
        "error",
        {"pairs": dict(splits), "words": tuple(words)},
    )


def evenly(rows: list[T], count: int | None) -> list[T]:
    """So many of the rows, evenly out of all."""
    if count is None or count >= len(rows):
        return rows
    return [rows[number] for number in np.linspace(0, len(rows) - 1, count).astype(int)]


def left_out(count: int) -> list[str]:
    """What a run is to say of training pairs that it does not see."""
    if not count:
        return []
    return [f"left out: {count:,} training pairs that are too long or cannot be written"]


def drawn(
    draw: Callable[[np.random.Generator, int], Iterable[Pair]],
    counts: Mapping[str, int],
    seed: int,
) -> dict[str, Pairs]:
    """`different` pairs of arrays, as arrays."""
    found = different(draw, counts, seed, lambda pair: pair[0].tobytes())
    return {name: padded(part) for name, part in found.items()}


def different(
    draw: Callable[[np.random.Generator, int], Iterable[T]],
    counts: Mapping[str, int],
    seed: int,
    name: Callable[[T], Hashable],
) -> dict[str, list[T]]:
    """Draws pairs until there are enough with different sources, and splits them at random.

    Args:
      draw: `(rng, count) -> pairs`, so many or fewer.
      counts: how many pairs each split gets; no source is in two of them, nor twice in one.
      seed: the same seed gives the same pairs.
      name: what tells the source of a pair from others.
    """
    rng, wanted = np.random.default_rng(seed), sum(counts.values())
    found: dict[Hashable, T] = {}
    while len(found) < wanted:
        before = len(found)
        for pair in draw(rng, _ROUND):
            found.setdefault(name(pair), pair)
        if len(found) < wanted and len(found) - before < _ROUND // 1000:
            raise ValueError(
                f"{wanted:,} different examples are wanted, and after {len(found):,} hardly any "
                "new one is found: ask for fewer (task.train, task.valid, task.test)"
            )
    # Common sources run out first: an order of drawing would put all of them into one split.
    order = rng.permutation(wanted)
    chosen = list(found.values())[:wanted]
    splits, first = {}, 0
    for split, count in counts.items():
        splits[split] = [chosen[number] for number in order[first : first + count]]
        first += count
    return splits
