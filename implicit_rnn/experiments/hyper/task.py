"""Trainings to learn hyperparameters from: which examples every step of a training sees."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from implicit_rnn.experiments.data import digits, mnist
from implicit_rnn.experiments.task import Task, one_of
from implicit_rnn.training.sources import Source


class Trainings(NamedTuple):
    """Trainings on the same examples, and the examples that they are judged by."""

    order: np.ndarray  # int32 [trainings, steps, mini-batch], numbers of examples
    inputs: np.ndarray  # float32 [examples, features]
    labels: np.ndarray  # int32 [examples]
    meta_inputs: np.ndarray  # float32 [meta-examples, features]
    meta_labels: np.ndarray  # int32 [meta-examples]


def hyper_task(
    *,
    data: Literal["digits", "mnist"] = "digits",
    train: int = 200,
    held_out: int = 50,
    steps: int = 100,
    minibatch: int = 50,
    meta: Literal["training", "validation"] = "training",
    redraw: bool = True,
    repeats: int = 1,
    seed: int = 0,
) -> Task:
    """Whole trainings of a classifier of digits, whose hyperparameters are to be learnt.

    A `train` batch are as many trainings as it has places. `valid` and `test` are `repeats`
    trainings each, in orders of their own.

    Args:
      data: the 300 digits of 8 x 8 pixels that come with the package, or MNIST.
      train: examples to train with.
      held_out: examples for validation, and as many to test.
      steps: of a training.
      minibatch: examples a step; an epoch is a new order of all examples.
      meta: the examples of the meta-loss of `train` and `valid`: those of the training itself (as
        in the 2018 paper), or those held out for validation. That of `test` is of test examples.
      redraw: whether every batch brings new orders, or always the same ones.
      repeats: see above.
      seed: of the choice of examples and of all orders.
    """
    if not 1 <= minibatch <= train:
        raise ValueError(f"minibatch must be at least 1 and at most {train}, got {minibatch}")
    if min(held_out, steps, repeats) < 1:
        raise ValueError(
            f"held_out, steps and repeats must be at least 1, got {held_out}, {steps} and {repeats}"
        )
    examples = _examples(data, train, held_out, seed)
    judged = {"train": meta, "valid": meta, "test": "test"}

    def source(number: int, name: str) -> Source:
        def plan(batch: int, buckets: int, rng: np.random.Generator | None) -> list[np.ndarray]:
            if rng is not None:
                return [rng.integers(2**31, size=batch) if redraw else np.arange(batch)]
            return np.split(np.arange(repeats), range(batch, repeats, batch))

        def take(seeds: np.ndarray) -> Trainings:
            order = [
                orders(np.random.default_rng((seed, number, int(own))), train, steps, minibatch)
                for own in seeds
            ]
            return Trainings(np.stack(order), *examples["training"], *examples[judged[name]])

        return Source(plan, take)

    return Task(
        "trainings",
        {"input_size": examples["training"][0].shape[1], "labels": 10},
        {name: source(number, name) for number, name in enumerate(judged)},
        "loss",
        {"examples": examples},
    )


def orders(rng: np.random.Generator, examples: int, steps: int, minibatch: int) -> np.ndarray:
    """Numbers of examples `[steps, minibatch]`: shuffled epochs, cut to whole mini-batches."""
    each = examples // minibatch
    epochs = [rng.permutation(examples)[: each * minibatch] for _ in range(-(-steps // each))]
    return np.concatenate(epochs).reshape(-1, minibatch)[:steps].astype(np.int32)


def _examples(
    data: str, train: int, held_out: int, seed: int
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Sets that share no example; pixels from 0 to 1, less their means over the training set."""
    one_of("data", data, ("digits", "mnist"))
    rng = np.random.default_rng(seed)
    if data == "mnist":
        images, labels = mnist.load("train")
        chosen = _drawn(rng, len(images), {"training": train, "validation": held_out})
        parts = {name: (images[numbers], labels[numbers]) for name, numbers in chosen.items()}
        images, labels = mnist.load("test")
        numbers = _drawn(rng, len(images), {"test": held_out})["test"]
        parts["test"] = (images[numbers], labels[numbers])
        ink = 255
    else:
        images, labels = digits.load()
        sizes = {"training": train, "validation": held_out, "test": held_out}
        chosen = _drawn(rng, len(images), sizes)
        parts = {name: (images[numbers], labels[numbers]) for name, numbers in chosen.items()}
        ink = 16
    flat = {
        name: (images.reshape(len(images), -1).astype(np.float32) / ink, labels.astype(np.int32))
        for name, (images, labels) in parts.items()
    }
    mean = flat["training"][0].mean(axis=0)
    return {name: (inputs - mean, labels) for name, (inputs, labels) in flat.items()}


def _drawn(rng: np.random.Generator, count: int, sizes: dict[str, int]) -> dict[str, np.ndarray]:
    wanted = sum(sizes.values())
    if wanted > count:
        raise ValueError(
            f"{' + '.join(map(str, sizes.values()))} examples wanted, there are {count:,}"
        )
    parts = np.split(rng.permutation(count)[:wanted], np.cumsum(list(sizes.values()))[:-1])
    return dict(zip(sizes, parts, strict=True))
