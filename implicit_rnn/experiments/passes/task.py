"""When does an implicit layer help? Sequences whose labels need one pass over them, or two."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from implicit_rnn.experiments.task import Task
from implicit_rnn.experiments.walks import biased_walk
from implicit_rnn.training.sources import Examples, evaluated_alike, labelled

Puzzle = Literal["key_last", "bound", "walk", "key_first", "brackets", "marks"]


def key(
    rng: np.random.Generator, length: int, symbols: int, last: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Symbols, each with a bit; one step holds the key, a symbol, and no bit.

    The label of a step is the bit that came with the latest symbol equal to the key, 2 where there
    was none. With the key at the end it has to travel backwards first, and the bits forwards after
    it: **two passes**. With the key at the beginning a causal network can do it: **one pass**.

    Features: the symbol (one of `symbols`), the bit, and whether the step holds the key.
    """
    place = length - 1 if last else 0
    drawn = rng.integers(symbols, size=length)
    # A symbol equals the key about every fourth step, however many there are.
    drawn = np.where(rng.random(length) < 0.25, drawn[place], drawn)
    bits = rng.integers(2, size=length)
    held = np.arange(length) == place
    labels, latest = np.full(length, 2), 2
    for t in range(length):
        if drawn[t] == drawn[place] and not held[t]:
            latest = bits[t]
        labels[t] = latest
    features = np.zeros((length, symbols + 2))
    features[np.arange(length), drawn] = 1
    features[:, symbols] = np.where(held, 0, 2 * bits - 1)
    features[:, symbols + 1] = held
    return features, labels


def bound(rng: np.random.Generator, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Numbers in -1..1, each with a bit; the last one is a bound, and has none.

    The label of a step is the bit that came with the latest number above the bound, 2 where there
    was none. No number is within 0.1 of the bound, so that labels are exact. In key_last a small
    table, of the bit that came last with every symbol, answers any key that may turn up; here that
    table would be a function of a real number. The bound has to travel back first: **two passes**.

    Features: the number, the bit, and whether the step holds the bound.
    """
    limit = rng.uniform(-0.8, 0.8)
    above = rng.random(length) > (limit + 1) / 2
    drawn = np.where(
        above, rng.uniform(limit + 0.1, 1, length), rng.uniform(-1, limit - 0.1, length)
    )
    drawn[-1], above[-1] = limit, False
    bits = rng.integers(2, size=length)
    held = np.arange(length) == length - 1
    labels, latest = np.full(length, 2), 2
    for t in range(length):
        if above[t]:
            latest = bits[t]
        labels[t] = latest
    return np.stack([drawn, np.where(held, 0, 2 * bits - 1), held], axis=1), labels


def brackets(rng: np.random.Generator, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Brackets among letters a and b; a pair is of the kind of the letter after its right bracket.

    The label of a step is the kind of the pair whose left bracket came last, 2 where there was
    none; a right bracket without a letter after it makes kind 0. It looks as if what is to the
    right of a pair had to reach its left bracket first. But at every step the pair in question is
    either closed, and the pass from the left knows its kind, or still open, and its right bracket
    is the first unmatched one ahead, which the pass from the right knows: **one from each end**.

    Features: one of `( ) a b`.
    """
    text: list[int] = []
    depth = 0
    while len(text) < length:
        left = length - len(text)
        if depth and (left <= depth or rng.random() < 0.3):
            text.append(1)
            depth -= 1
        elif left > depth + 1 and rng.random() < 0.35:
            text.append(0)
            depth += 1
        else:
            text.append(2 + int(rng.integers(2)))
    kinds, opened = np.zeros(length, int), []
    for t, letter in enumerate(text):
        if letter == 0:
            opened.append(t)
        elif letter == 1:
            following = text[t + 1] if t + 1 < length else 0
            kinds[opened.pop()] = following == 3
    labels, latest = np.full(length, 2), 2
    for t, letter in enumerate(text):
        if letter == 0:
            latest = kinds[t]
        labels[t] = latest
    return np.eye(4)[text], labels


def marks(rng: np.random.Generator, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Noise with a rare mark or two: was there a first one before, will there be a second one?

    Label `[first mark at or before t] + 2 [second mark at or after t]`: a pass from either end
    answers its half, and their sum is the label: **one bidirectional pass**.

    Features: noise, and the two kinds of marks.
    """
    features = np.zeros((length, 3))
    features[:, 0] = rng.standard_normal(length)
    found = np.zeros((2, length), bool)
    for kind in range(2):
        features[:, 1 + kind] = found[kind] = rng.random(length) < 1.5 / length
    before = np.logical_or.accumulate(found[0])
    after = np.logical_or.accumulate(found[1][::-1])[::-1]
    return features, before + 2 * after


def passes(
    seed: int,
    count: int,
    puzzle: Puzzle,
    *,
    symbols: int = 16,
    min_length: int = 2,
    max_length: int = 40,
) -> Examples:
    """Examples of one of the puzzles, lengths uniform in `min_length`..`max_length`.

    Args:
      seed: the same seed gives the same examples.
      count: how many.
      puzzle: `"key_last"`, `"bound"` and `"walk"` (`biased_walk` with b = 0.5, in 10 dimensions,
        positions and increments) need two passes, `"key_first"` one, `"brackets"` and `"marks"` one
        from either end.
      symbols: of the two puzzles with a key.
      min_length, max_length: shortest and longest sequence.
    """
    if puzzle not in LABELS:
        raise ValueError(f"unknown puzzle {puzzle!r}; choose from {sorted(LABELS)}")
    if not 2 <= min_length <= max_length:
        raise ValueError(f"2 <= min_length <= max_length wanted, got {min_length}, {max_length}")
    if symbols < 2:
        raise ValueError(f"symbols must be at least 2, got {symbols}")
    if puzzle == "walk":
        return biased_walk(
            seed, count, bias=0.5, dimension=10, min_length=min_length, max_length=max_length
        )
    rng = np.random.default_rng(seed)
    makers: dict[str, Callable[[int], tuple[np.ndarray, np.ndarray]]] = {
        "key_last": lambda n: key(rng, n, symbols, last=True),
        "key_first": lambda n: key(rng, n, symbols, last=False),
        "bound": lambda n: bound(rng, n),
        "brackets": lambda n: brackets(rng, n),
        "marks": lambda n: marks(rng, n),
    }
    length = rng.integers(min_length, max_length + 1, count).astype(np.int32)
    labels = np.zeros((count, max_length), np.int32)
    inputs: Any = None
    for i, n in enumerate(length):
        features, own = makers[puzzle](int(n))
        if inputs is None:
            inputs = np.zeros((count, max_length, features.shape[1]), np.float32)
        inputs[i, :n], labels[i, :n] = features, own
    return Examples(inputs, labels, length)


# How many labels each puzzle has.
LABELS = {"key_last": 3, "bound": 3, "walk": 2, "key_first": 3, "brackets": 3, "marks": 4}


def passes_task(
    *,
    seed: int = 0,
    train: int = 20_000,
    valid: int = 1_000,
    test: int = 2_000,
    puzzle: Puzzle = "key_last",
    symbols: int = 16,
    min_length: int = 2,
    max_length: int = 40,
    lengths: Sequence[int] = (),
) -> Task:
    """Puzzles whose labels need one pass over a sequence, or two.

    Args:
      seed: of all sets, which are drawn apart.
      train, valid, test: how many sequences.
      puzzle, symbols, min_length, max_length: as for `passes`.
      lengths: for each of these a further test set, a fourth as large, of sequences of this length,
        which may be longer than any that is trained on.
    """
    counts = {"train": train, "valid": valid, "test": test}
    spans = dict.fromkeys(counts, (min_length, max_length))
    counts |= {f"length {length}": max(test // 4, 1) for length in lengths}
    spans |= {f"length {length}": (length, length) for length in lengths}
    sets = len(counts)
    splits = {
        name: passes(
            sets * seed + number,
            count,
            puzzle,
            symbols=symbols,
            min_length=spans[name][0],
            max_length=spans[name][1],
        )
        for number, (name, count) in enumerate(counts.items())
    }
    sources = {name: labelled(examples) for name, examples in splits.items()}
    # Those of one length are no model for the buckets of the others.
    alike = evaluated_alike({name: sources[name] for name in ("train", "valid", "test")})
    return Task(
        "tagging",
        {"input_size": splits["train"].inputs.shape[-1], "labels": LABELS[puzzle]},
        sources | alike,
        "error",
        {"examples": splits},
    )
