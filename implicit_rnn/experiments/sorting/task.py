"""Sorting: a sequence of integers is read, the same integers are written in order (X-RNN, 4.1)."""

from __future__ import annotations

import numpy as np

from implicit_rnn.experiments.data.pairs import Pair, drawn, pairs_task
from implicit_rnn.experiments.task import Task


def sorting_task(
    *,
    seed: int = 0,
    train: int = 20_000,
    valid: int = 1000,
    test: int = 2000,
    length: int = 5,
    values: int = 100,
) -> Task:
    """Sequences of integers, each to be written in ascending order.

    Args:
      seed: of all three sets, of which no two share a sequence.
      train, valid, test: how many sequences.
      length: of a sequence; the paper has 5 and 10.
      values: integers are drawn from so many, evenly, and may recur. The paper does not say from
        how many.
    """
    if min(length, values) < 1:
        raise ValueError(f"length and values must be at least 1, got {length} and {values}")

    def draw(rng: np.random.Generator, count: int) -> list[Pair]:
        rows = rng.integers(values, size=(count, length), dtype=np.int32)
        return list(zip(rows, np.sort(rows, axis=1), strict=True))

    counts = {"train": train, "valid": valid, "test": test}
    return pairs_task(drawn(draw, counts, seed), [str(value) for value in range(values)], values)
