"""Sets of examples, a batch at a time: batches of sequences of about equal length."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from jax import tree_util


class Examples(NamedTuple):
    """Sequences of inputs with a label for every step; what is past a length is zero."""

    inputs: np.ndarray  # float32 [count, time, features]
    labels: np.ndarray  # int32 [count, time]
    length: np.ndarray  # int32 [count]

    def take(self, index: np.ndarray, time: int | None = None) -> Examples:
        """The examples with these numbers, cut to `time` steps."""
        return Examples(self.inputs[index, :time], self.labels[index, :time], self.length[index])


class Source(NamedTuple):
    """A set of examples, a batch at a time.

    Attributes:
      plan: `(batch size, buckets, rng) -> list`: what the batches of one epoch are, in order. No
        `rng`: every example once, in a fixed order, for an evaluation.
      batch: makes one entry of a plan a record of arrays.
      numbers: which examples an entry of a plan holds, by number; None where there are none.
      shape: how many examples there are, and the steps of the longest.
      length: of every example; None where there are none.
      size: `entry -> int`: how many examples it holds.
      select: `(entry, rows) -> entry` of these rows alone, which is then all that is loaded; None
        where a batch has no rows of its own.
    """

    plan: Callable[[int, int, np.random.Generator | None], list]
    batch: Callable[[Any], Any]
    numbers: Callable[[Any], np.ndarray] | None = None
    shape: tuple[int, int] = (0, 0)
    length: np.ndarray | None = None
    size: Callable[[Any], int] | None = None
    select: Callable[[Any, np.ndarray], Any] | None = None


def arrays(examples: Any) -> Source:
    """A source out of a tree of arrays `[count, ...]`: batches of the same tree, `[batch, ...]`.

    In training every example is visited once an epoch, but for up to `batch - 1`; the last batch of
    an evaluation may be smaller.
    """
    leaves, structure = tree_util.tree_flatten(examples)
    count = len(leaves[0])
    if any(len(leaf) != count for leaf in leaves):
        raise ValueError(f"arrays of one length wanted, got {[len(leaf) for leaf in leaves]}")
    require_finite(examples)

    def plan(batch: int, buckets: int, rng: np.random.Generator | None) -> list:
        if rng is None:
            return [np.arange(first, min(first + batch, count)) for first in range(0, count, batch)]
        if count < batch:
            raise ValueError(f"{count} examples are too few for a batch of {batch}")
        return list(rng.permutation(count)[: count // batch * batch].reshape(-1, batch))

    def take(index: np.ndarray) -> Any:
        return tree_util.tree_unflatten(structure, [np.asarray(leaf)[index] for leaf in leaves])

    return Source(plan, take, size=len, select=lambda index, rows: index[rows])


def require_finite(examples: Any) -> None:
    """Refuses a tree of arrays `[count, ...]` with a number that is not finite: says which."""
    for path, leaf in tree_util.tree_leaves_with_path(examples):
        values = np.asarray(leaf)
        if values.dtype.kind != "f":
            continue
        bad = np.flatnonzero(~np.isfinite(values.reshape(len(values), -1)).all(axis=1))
        if bad.size:
            name = tree_util.keystr(path).lstrip(".")
            raise ValueError(f"example {bad[0]} of {name or 'the array'} is not finite")


def labelled(examples: Examples) -> Source:
    """A source of batches of about equal length out of a set of examples."""
    require_finite(examples)

    def take(index: np.ndarray, time: int) -> Examples:
        found = examples.take(index, time)
        # A place that no example fills is a sequence of length zero: it counts nowhere.
        return found._replace(length=np.where(index < 0, 0, found.length).astype(np.int32))

    return bucketed(examples.length, take, examples.labels.shape[1])


def bucketed(length: np.ndarray, take: Callable[[np.ndarray, int], Any], longest: int) -> Source:
    """A source of batches of about equal length.

    Args:
      length: of every example, `[count]`.
      take: `(numbers, time) -> batch`, padded to `time` steps; number -1 is an example of length 0.
      longest: steps that the longest example may have.
    """

    def plan(batch: int, count: int, rng: np.random.Generator | None) -> list:
        if rng is None:
            return in_order(length, batch, bucket_sizes(length, count))
        return bucket_epoch(length, batch, rng, bucket_sizes(length, count, batch))

    return Source(
        plan,
        lambda entry: take(*entry),
        lambda entry: entry[0],
        (len(length), longest),
        length,
        lambda entry: len(entry[0]),
        lambda entry, rows: (entry[0][rows], entry[1]),
    )


def evaluated_alike(splits: Mapping[str, Source]) -> dict[str, Source]:
    """The same sets of a task, with the same buckets for the evaluation of all but `train`.

    A bucket is a shape, and a shape a compiled program: these sets share theirs.
    """
    lengths = {
        name: source.length
        for name, source in splits.items()
        if name != "train" and source.length is not None
    }

    def alike(source: Source, length: np.ndarray) -> Source:
        def plan(batch: int, count: int, rng: np.random.Generator | None) -> list:
            if rng is not None:
                return source.plan(batch, count, rng)
            return in_order(length, batch, bucket_sizes(np.concatenate([*lengths.values()]), count))

        return source._replace(plan=plan)

    return {**splits, **{name: alike(splits[name], length) for name, length in lengths.items()}}


def bucket_sizes(length: np.ndarray, count: int, least: int = 1) -> tuple[int, ...]:
    """Upper ends of `count` buckets, or fewer, that leave the fewest steps to pad.

    No bucket holds fewer than `least` examples (unless there are fewer in all): of such a one a
    training loop would never see any.
    """
    if not len(length):
        raise ValueError("there are no examples")
    ends, held = np.unique(np.maximum(length, 1), return_counts=True)
    upto = np.concatenate([[0], np.cumsum(held)])
    # In row i and column j: the steps of a bucket of the lengths from number i to number j.
    inside = upto[None, 1:] - upto[:-1, None]
    steps = np.where(inside >= min(least, len(length)), inside * ends, np.inf)
    fewest = np.array([0.0, *[np.inf] * len(ends)])  # for the first so many lengths
    befores = []
    for _ in range(min(count, len(ends))):
        total = fewest[:-1, None] + steps
        befores.append(np.argmin(total, axis=0))
        fewest = np.concatenate([[0.0], np.min(total, axis=0)])
    sizes: list[int] = []
    here = len(ends)
    for before in reversed(befores):
        if here:
            sizes.insert(0, int(ends[here - 1]))
            here = int(before[here - 1])
    return tuple(sizes)


def bucket_epoch(
    length: np.ndarray, batch: int, rng: np.random.Generator, sizes: tuple[int, ...]
) -> list[tuple[np.ndarray, int]]:
    """One epoch of batches of examples of about equal length: `(numbers, time)` each.

    Every example is visited once, but for up to `batch - 1` of each bucket. A batch comes from one
    bucket and is padded to the size of that bucket: little padding, and one compiled program a
    size.

    Args:
      length: `[count]`.
      batch: examples a batch.
      rng: what shuffles.
      sizes: upper ends of the buckets, rising; the last holds the longest sequence.
    """
    members = _members(length, sizes)
    if all(len(numbers) < batch for numbers in members):
        raise ValueError(f"no bucket of {sizes} holds a batch of {batch}")
    batches = []
    for numbers, time in zip(members, sizes, strict=True):
        shuffled = rng.permutation(numbers)
        for first in range(0, len(shuffled) - batch + 1, batch):
            batches.append((shuffled[first : first + batch], time))
    return [batches[position] for position in rng.permutation(len(batches))]


def buckets(
    length: np.ndarray, batch: int, rng: np.random.Generator, sizes: tuple[int, ...]
) -> Iterator[tuple[np.ndarray, int]]:
    """`bucket_epoch` after `bucket_epoch`, forever."""
    first = bucket_epoch(length, batch, rng, sizes)
    rest = (bucket_epoch(length, batch, rng, sizes) for _ in itertools.count())
    return itertools.chain.from_iterable(itertools.chain([first], rest))


def in_order(
    length: np.ndarray, batch: int, sizes: tuple[int, ...]
) -> list[tuple[np.ndarray, int]]:
    """Every example once, bucket by bucket; -1 fills up the last batch of a bucket."""
    batches = []
    for numbers, time in zip(_members(length, sizes), sizes, strict=True):
        filled = np.concatenate([numbers, np.full(-len(numbers) % batch, -1)])
        batches += [(index, time) for index in filled.reshape(-1, batch)]
    return batches


def _members(length: np.ndarray, sizes: tuple[int, ...]) -> list[np.ndarray]:
    longest = max(length, default=0)
    if longest > sizes[-1] or list(sizes) != sorted(set(sizes)):
        raise ValueError(f"sizes must rise to the longest sequence ({longest}), got {sizes}")
    return [
        np.flatnonzero((length > low) & (length <= high))
        for low, high in zip((-1, *sizes[:-1]), sizes, strict=True)
    ]
