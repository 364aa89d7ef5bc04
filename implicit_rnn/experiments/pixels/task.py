"""Images read pixel by pixel: one label for a long sequence."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from implicit_rnn.experiments.data import digits, mnist
from implicit_rnn.experiments.pixels import cifar10
from implicit_rnn.experiments.task import Task
from implicit_rnn.training.sources import Source, bucketed

Split = tuple[np.ndarray, np.ndarray]  # uint8 [count, side, side, channels], and labels [count]

_DIGITS_TESTED = 60  # of the package's own 300


class Pixels(NamedTuple):
    """Sequences with one label each; a label of -1 marks a place that no image fills."""

    inputs: np.ndarray  # float32 [count, time, channels]
    labels: np.ndarray  # int32 [count]
    length: np.ndarray  # int32 [count]


def pixels_task(
    *,
    images: Literal["digits", "mnist", "cifar10_subset"] = "digits",
    train: int | None = None,
    valid: int | None = None,
    test: int | None = None,
    pool: int = 1,
    permuted: bool = False,
    seed: int = 0,
) -> Task:
    """What an image shows, from its pixels one by one, row by row (section 4.2 of the 2021 paper).

    Inputs are standardised: over the training images every channel has mean 0 and variance 1.

    Args:
      images: the package's own digits (8 x 8 pixels: 64 steps; 240 images, and 60 to test), MNIST
        (28 x 28: 784 steps; 60,000 and 10,000), or a subset of CIFAR-10 (32 x 32: 1,024 steps of
        three colours; 10,000 of its 50,000, and 4,000 of its 10,000).
      train: how many images, evenly out of those that do not validate; by default all.
      valid: how many of the training images, the last ones, validate; by default a tenth.
      test: how many, evenly out of the test images; by default all.
      pool: side of the squares of pixels whose mean is one step; 1: every pixel is.
      permuted: read the pixels in one random order, the same for all images.
      seed: of that order.
    """
    learnt, tested = _load(images)
    count, side = learnt[0].shape[:2]
    held = count // 10 if valid is None else valid
    if not 0 < held < count:
        raise ValueError(f"valid must be from 1 to {count - 1}, got {held}")
    if pool < 1 or side % pool:
        raise ValueError(f"pool must divide the {side} pixels of a side, got {pool}")
    splits = {
        "train": _some("train", (learnt[0][:-held], learnt[1][:-held]), train),
        "valid": (learnt[0][-held:], learnt[1][-held:]),
        "test": _some("test", tested, test),
    }
    steps = (side // pool) ** 2
    order = np.random.default_rng(seed).permutation(steps) if permuted else np.arange(steps)
    shown = splits["train"][0]
    mean, deviation = (f(shown, axis=(0, 1, 2), dtype=np.float64) for f in (np.mean, np.std))
    scale = 1 / np.maximum(deviation, 1e-6)

    def source(split: Split) -> Source:
        found, labels = split[0], split[1].astype(np.int32)

        def take(index: np.ndarray, time: int) -> Pixels:
            pooled = _pooled(found[index], pool).reshape(len(index), steps, -1)
            inputs = ((pooled[:, order] - mean) * scale).astype(np.float32)[:, :time]
            blank = index < 0  # a place of an evaluation's last batch that no image fills
            return Pixels(
                inputs,
                np.where(blank, -1, labels[index]),
                np.where(blank, 0, steps).astype(np.int32),
            )

        return bucketed(np.full(len(labels), steps, np.int32), take, steps)

    return Task(
        "sequences",
        {"input_size": shown.shape[-1], "labels": 10},
        {name: source(split) for name, split in splits.items()},
        "error",
        {"images": splits, "order": order},
    )


def _load(images: str) -> tuple[Split, Split]:
    """What there is to learn from, and what to test on."""
    if images == "digits":
        found, labels = digits.load()
        return (
            (found[:-_DIGITS_TESTED, ..., None], labels[:-_DIGITS_TESTED]),
            (found[-_DIGITS_TESTED:, ..., None], labels[-_DIGITS_TESTED:]),
        )
    if images == "mnist":
        learnt, tested = mnist.load("train"), mnist.load("test")
        return (learnt[0][..., None], learnt[1]), (tested[0][..., None], tested[1])
    if images == "cifar10_subset":
        return cifar10.load("train"), cifar10.load("test")
    raise ValueError(f"images must be digits, mnist or cifar10_subset, got {images!r}")


def _some(name: str, split: Split, count: int | None) -> Split:
    """So many images, evenly out of all."""
    there = len(split[1])
    if count is None:
        return split
    if not 0 < count <= there:
        raise ValueError(f"{name} must be from 1 to {there}, the images that there are: {count}")
    chosen = np.linspace(0, there - 1, count).astype(int)
    return split[0][chosen], split[1][chosen]


def _pooled(images: np.ndarray, size: int) -> np.ndarray:
    """Means over squares of pixels: `[count, side / size, side / size, channels]`."""
    if size == 1:
        return images
    count, side, _, channels = images.shape
    return images.reshape(count, side // size, size, side // size, size, channels).mean(axis=(2, 4))
