"""Images to remember: a network is shown them whole, and tested on what is left of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from implicit_rnn.experiments.data import digits, mnist
from implicit_rnn.experiments.task import Task, one_of
from implicit_rnn.training.sources import Source


class Patterns(NamedTuple):
    observed: np.ndarray  # float32 [count, pixels]: what is shown
    target: np.ndarray  # float32 [count, pixels]: what is to be remembered

    def take(self, index: np.ndarray) -> Patterns:
        """Those with these numbers."""
        return Patterns(self.observed[index], self.target[index])


def associative_memory_task(
    *,
    images: Literal["digits", "mnist"] = "digits",
    count: int = 10,
    threshold: float = 0.5,
    corruption: float = 0.5,
    seed: int = 0,
) -> Task:
    """Handwritten digits in black and white, one image a digit (section 5.1 of the 2018 paper).

    Training shows them as they are. Validation and test show the same images with some of their
    ink removed, differently.

    Args:
      images: the package's own of 8 x 8 pixels, or those of MNIST.
      count: how many; past ten, more than one of some digits.
      threshold: share of full ink above which a pixel is 1 and not 0; 0 makes all ink 1.
      corruption: share of the pixels that are 1 which become 0.
      seed: of what is removed; the images are always the first of each digit.
    """
    one_of("images", images, ("digits", "mnist"))
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}")
    for name, share in {"threshold": threshold, "corruption": corruption}.items():
        if not 0 <= share <= 1:
            raise ValueError(f"{name} must lie between 0 and 1, got {share}")
    found, labels = digits.load() if images == "digits" else mnist.load("train")
    chosen = found[_one_each(labels, count)]
    whole = (chosen > threshold * found.max()).astype(np.float32).reshape(count, -1)
    splits = {"train": Patterns(whole, whole)}
    for number, name in enumerate(("valid", "test")):
        rng = np.random.default_rng((seed, number))
        splits[name] = Patterns(np.stack([corrupt(x, corruption, rng) for x in whole]), whole)
    return Task(
        "memory",
        {"pixels": whole.shape[1]},
        {name: patterns(part) for name, part in splits.items()},
        "loss",
        {"patterns": splits, "shape": chosen.shape[1:]},
        verdict=success,
    )


def corrupt(image: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    """An image with this share of its non-zero pixels, rounded down, put to zero."""
    left = image.copy()
    ink = np.flatnonzero(image)
    left.flat[rng.permutation(ink)[: int(share * len(ink))]] = 0
    return left


def patterns(examples: Patterns) -> Source:
    """A source of batches of images; the last one of an evaluation may be smaller."""
    count = len(examples.target)

    def plan(batch: int, buckets: int, rng: np.random.Generator | None) -> list[np.ndarray]:
        if rng is None:
            return [np.arange(count)[first : first + batch] for first in range(0, count, batch)]
        if batch > count:
            raise ValueError(f"a batch of {batch} is more than the {count} images that there are")
        order = rng.permutation(count)
        return [order[last - batch : last] for last in range(batch, count + 1, batch)]

    return Source(plan, examples.take, lambda index: index, (count, 1))


def success(lines: Sequence[dict[str, Any]]) -> dict[str, float]:
    """`success` is 1 if the last line about training has less than half the first one's loss.

    As Table 1 of the 2018 paper counts, if every update has its line (`log_every = 1`). A run of
    which updates had to be skipped is none.
    """
    halved = 2 * lines[-1]["loss"] < lines[0]["loss"]
    return {"success": float(halved and not lines[-1]["skipped"])}


def _one_each(labels: np.ndarray, count: int) -> np.ndarray:
    """Numbers of the first image of every digit, then of the second, and so on."""
    place = np.zeros(len(labels), int)
    for digit in range(10):
        own = labels == digit
        place[own] = np.arange(own.sum())
    order = np.lexsort((labels, place))
    if count > len(order):
        raise ValueError(f"count is {count}, but there are only {len(order)} images")
    return order[:count]
