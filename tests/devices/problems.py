"""A small task and model that are trained over devices."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import optax

from implicit_rnn import models, training
from implicit_rnn.training import (
    Examples,
    ParallelSettings,
    Recipe,
    Trainer,
    TrainingSettings,
)

ONE = ParallelSettings(shape=(1,))
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
LENGTHS = np.random.default_rng(0).integers(1, 13, size=96)


def task() -> SimpleNamespace:
    """Sequences of different lengths; the label of a step is whether two inputs before it agree."""
    random = np.random.default_rng(1)
    inputs = random.normal(size=(96, 12, 3)).astype(np.float32)
    labels = (np.cumsum(inputs[..., 0], axis=1) > 0).astype(np.int32)
    inputs = np.where(np.arange(12)[:, None] < LENGTHS[:, None, None], inputs, 0)
    whole = Examples(inputs, labels, LENGTHS.astype(np.int32))
    parts = {"train": slice(0, 64), "valid": slice(64, 80), "test": slice(80, 96)}
    splits = {
        name: training.labelled(Examples(*(leaf[part] for leaf in whole)))
        for name, part in parts.items()
    }
    return SimpleNamespace(splits=splits, metric="loss")


def tagger() -> Any:
    return models.tagger(models.encoder("igru", 8), 3, 2)


def parts(parallel: Any = None, **options: Any) -> Trainer:
    settings = TrainingSettings(updates=20, batch=16, buckets=1, evaluate_batch=8)
    return training.trainer(
        task(), tagger(), recipe=Recipe(rtol=1e-5, max_steps=60, backward="auto"),
        optimiser=optax.adam(1e-2), settings=settings, parallel=parallel, **options,
    )  # fmt: skip


def batches(parts: Trainer) -> list:
    """What one epoch holds, on the devices."""
    train = parts.task.splits["train"]
    return [parts.load(train, entry) for entry in train.plan(16, 1, np.random.default_rng(2))]


def after(parts: Trainer, updates: int = 20) -> Any:
    """The state after so many updates."""
    state, epoch = parts.init(), batches(parts)
    for number in range(updates):
        state = parts.step(state, epoch[number % len(epoch)])
    return state


def same(one: Any, other: Any, rtol: float = 2e-5, atol: float = 2e-6) -> None:
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=rtol, atol=atol)


def collectives(function: Callable, *arguments: Any) -> dict[str, list[str]]:
    """What a compiled program sends, by kind: the shape of what each operation gives."""
    text = jax.jit(function).lower(*arguments).compile().as_text()
    found = {kind: re.findall(rf"= (.*?) {kind}(?:-start)?\(", text) for kind in COLLECTIVES}
    return {kind: shapes for kind, shapes in found.items() if shapes}
