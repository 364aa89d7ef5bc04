"""The one shape of a set of labelled sequences, and batches of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np


class Examples(NamedTuple):
    """Sequences of inputs with a label for every step; what is past a length is zero."""

    inputs: np.ndarray  # float32 [count, time, features]
    labels: np.ndarray  # int32 [count, time]
    length: np.ndarray  # int32 [count]

    def take(self, index: np.ndarray, time: int | None = None) -> Examples:
        """The examples with these numbers, cut to `time` steps."""
        return Examples(self.inputs[index, :time], self.labels[index, :time], self.length[index])


def buckets(
    length: np.ndarray, batch: int, rng: np.random.Generator, sizes: tuple[int, ...]
) -> Iterator[tuple[np.ndarray, int]]:
    """Batches of examples of about equal length, forever: `(numbers, time)`.

    An epoch visits every example once, but for up to `batch - 1` of each bucket. Each batch comes
    from one bucket and is padded to the size of that bucket: little padding, and one compiled
    program a size.

    Args:
      length: `[count]`.
      batch: examples a batch.
      rng: what shuffles.
      sizes: upper ends of the buckets, rising; the last holds the longest sequence.
    """
    longest = max(length, default=0)
    if longest > sizes[-1] or list(sizes) != sorted(set(sizes)):
        raise ValueError(f"sizes must rise to the longest sequence ({longest}), got {sizes}")
    members = [
        np.flatnonzero((length > low) & (length <= high))
        for low, high in zip((-1, *sizes[:-1]), sizes, strict=True)
    ]
    if all(len(numbers) < batch for numbers in members):
        raise ValueError(f"no bucket of {sizes} holds a batch of {batch}")

    def forever() -> Iterator[tuple[np.ndarray, int]]:
        while True:
            batches = []
            for numbers, time in zip(members, sizes, strict=True):
                shuffled = rng.permutation(numbers)
                for first in range(0, len(shuffled) - batch + 1, batch):
                    batches.append((shuffled[first : first + batch], time))
            for position in rng.permutation(len(batches)):
                yield batches[position]

    return forever()
