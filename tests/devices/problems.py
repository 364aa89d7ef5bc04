"""Small tasks and models that are trained over devices, and a cell that is solved over them."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from implicit_rnn import cells, models, training
from implicit_rnn.training import (
    Examples,
    Outcome,
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
    several = parts.settings.accumulate > 1
    for number in range(updates):
        batch = epoch[number % len(epoch)]
        state = parts.step(state, (batch, epoch[number % 3]) if several else batch)
    return state


def same(one: Any, other: Any, rtol: float = 2e-5, atol: float = 2e-6) -> None:
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=rtol, atol=atol)


def collectives(function: Callable, *arguments: Any) -> dict[str, list[str]]:
    """What a compiled program sends, by kind: the shape of what each operation gives."""
    text = jax.jit(function).lower(*arguments).compile().as_text()
    found = {kind: re.findall(rf"= (.*?) {kind}(?:-start)?\(", text) for kind in COLLECTIVES}
    return {kind: shapes for kind, shapes in found.items() if shapes}


class Words:
    """Which of two halves of a vocabulary the words of a text come from, by an embedding."""

    metric = "loss"

    def __init__(self, size: int = 64) -> None:
        tokens = np.random.default_rng(0).integers(0, 32, size=(size, 5))
        label = np.mean(tokens < 16, axis=1).astype(np.float32)
        self.splits = {"train": training.arrays({"tokens": tokens, "label": label})}

    def init(self, key):
        table = jax.random.normal(key, (32, 6))
        return {"embedding": {"table": table}, "head": jnp.ones(6)}

    def loss(self, params, batch, *, key=None):
        found = jnp.mean(params["embedding"]["table"][batch["tokens"]], axis=1) @ params["head"]
        square = (found - batch["label"]) ** 2
        count = jnp.float32(square.size)
        return jnp.mean(square), Outcome({"loss": jnp.sum(square), "count": count})


def words(parallel, accumulate: int = 1) -> Trainer:
    problem = Words()
    return training.trainer(
        problem, problem, optimiser=optax.adam(0.05), parallel=parallel,
        settings=TrainingSettings(batch=16, accumulate=accumulate),
    )  # fmt: skip


CELL = cells.igru(4, boundary="learnt")


def inputs(time: int) -> jax.Array:
    return jax.random.normal(jax.random.key(1), (time, 3))


def parameters(cell, scale: float = 1.5) -> dict:
    return jax.tree.map(lambda leaf: scale * leaf, cell.init(jax.random.key(0), 3))


def graded(run: Callable, cell) -> Callable:
    """Gradients by parameters and inputs, values, and what the solves say."""

    def loss(params, xs, length):
        states, info = run(cell, params, xs, length)
        weights = jnp.linspace(-1, 1, states.shape[0])[:, None]
        return jnp.sum(weights * jnp.sin(states)), (states, info)

    return jax.jit(jax.grad(loss, (0, 1), has_aux=True))
