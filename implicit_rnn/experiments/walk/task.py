"""The biased random walk: when does the walk get a drift? (Section 3.1 of the 2017 paper.)"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from implicit_rnn.experiments.task import Task
from implicit_rnn.experiments.walks import biased_walk
from implicit_rnn.training.sources import Examples, Source, evaluated_alike, labelled

__all__ = ["biased_walk", "biased_walk_task", "rotated"]


def biased_walk_task(
    *,
    seed: int = 0,
    train: int = 50_000,
    valid: int = 2_500,
    test: int = 5_000,
    bias: float = 0.5,
    dimension: int = 8,
    min_length: int = 1,
    max_length: int = 40,
    direction: Literal["normal", "unit"] = "normal",
    inputs: Literal["both", "positions", "increments"] = "both",
    rotate: bool = False,
) -> Task:
    """At which steps a random walk has a drift (Table 1 of the 2017 paper).

    Args:
      seed: of all three sets, which are drawn apart.
      train, valid, test: how many walks; the defaults are the paper's.
      bias, dimension, min_length, max_length, direction, inputs: as for `biased_walk`.
      rotate: turn a training walk by another random rotation each time it is seen. All directions
        are alike to the task, which the paper's networks have to learn from the walks themselves.
    """
    splits = {}
    for number, (name, count) in enumerate({"train": train, "valid": valid, "test": test}.items()):
        splits[name] = biased_walk(
            3 * seed + number,
            count,
            bias=bias,
            dimension=dimension,
            min_length=min_length,
            max_length=max_length,
            direction=direction,
            inputs=inputs,
        )
    sources = evaluated_alike({name: labelled(examples) for name, examples in splits.items()})
    if rotate:
        sources["train"] = rotated(sources["train"], dimension)
    return Task(
        "tagging",
        {"input_size": splits["train"].inputs.shape[-1], "labels": 2},
        sources,
        "error",
        {"examples": splits},
    )


def rotated(source: Source, dimension: int) -> Source:
    """The same walks, in every epoch each under an orthogonal map of its own; not when evaluated.

    An entry carries the seed of its epoch, so that a batch depends on nothing but its entry, and a
    walk on nothing but its number and the seed, on however many devices its batch is dealt.

    Args:
      source: of batches of `Examples`; inputs are vectors of the space side by side.
      dimension: of the space.
    """
    assert source.numbers is not None
    assert source.size is not None
    assert source.select is not None
    numbers, size, select = source.numbers, source.size, source.select

    def plan(batch: int, buckets: int, rng: np.random.Generator | None) -> list:
        entries = source.plan(batch, buckets, rng)
        seed = None if rng is None else int(rng.integers(2**31))
        return [(entry, seed) for entry in entries]

    def batch(entry: tuple[Any, int | None]) -> Examples:
        found, seed = source.batch(entry[0]), entry[1]
        if seed is None:
            return found
        maps = _orthogonal([(seed, int(number)) for number in numbers(entry[0])], dimension)
        vectors = found.inputs.reshape(*found.inputs.shape[:2], -1, dimension)
        turned = np.einsum("btvd,bde->btve", vectors, maps)
        return found._replace(inputs=turned.reshape(found.inputs.shape).astype(np.float32))

    return source._replace(
        plan=plan,
        batch=batch,
        numbers=lambda entry: numbers(entry[0]),
        size=lambda entry: size(entry[0]),
        select=lambda entry, rows: (select(entry[0], rows), entry[1]),
    )


def _orthogonal(seeds: list[tuple[int, int]], dimension: int) -> np.ndarray:
    """Orthogonal matrices, uniformly distributed, `[len(seeds), dimension, dimension]`."""
    shape = (dimension, dimension)
    normal = np.stack([np.random.default_rng(seed).standard_normal(shape) for seed in seeds])
    q, r = np.linalg.qr(normal)
    return q * np.sign(np.diagonal(r, axis1=1, axis2=2))[:, None, :]
