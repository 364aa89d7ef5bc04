"""Pictures of single test sequences: whom states listen to, how deep the gates of an X-RNN go."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from implicit_rnn.cells import Cell, recursion_weights
from implicit_rnn.experiments import plots
from implicit_rnn.experiments.logic.sentence_pair import SentencePair
from implicit_rnn.experiments.music.frames import FramesModel
from implicit_rnn.experiments.tested import Tested, count_of, first_many
from implicit_rnn.models import Classifier, Seq2Seq, Tagger
from implicit_rnn.training import Recipe, Trainer

Reading = Tagger | Seq2Seq | SentencePair | Classifier | FramesModel  # models with an encoder
Draw = Callable[[int, Path], Path]  # of a test sequence by its number, into a file

_TELLING = 20  # words of a sentence whose switch is drawn
_MOST_WORDS = 60  # below the steps of a figure


def telling(trainer: Trainer, count: int) -> list[int]:
    """Test sequences that are worth a picture, the most telling one first (of the first many)."""
    task = trainer.task
    if task.kind == "words":
        lengths = np.array([len(sentence.words) for sentence in task.details["sentences"]["test"]])
        order = np.argsort(np.abs(lengths - _TELLING), kind="stable")
    elif task.kind == "tagging" and "test" in task.details.get("examples", {}):
        # Long ones, with both labels in about equal parts.
        examples = task.details["examples"]["test"]
        share = examples.labels.sum(axis=1) / np.maximum(examples.length, 1)
        order = np.argsort(-examples.length * (np.abs(share - 0.5) < 0.1), kind="stable")
    else:
        source = task.splits["test"]
        lengths = np.asarray(first_many(source).length)
        order = np.argsort(np.abs(lengths - lengths.mean()), kind="stable")
    return [int(number) for number in order[order < count_of(task.splits["test"])][:count]]


def kinds(trainer: Trainer, params: Any, tested: Tested, label: str) -> dict[str, Draw]:
    """What there is to draw of single sequences, by the names that files have."""
    found: dict[str, Draw] = {}
    if tested.switches:
        found["switch"] = switch(tested, trainer, label)
    for end, show in recursion(trainer.model, trainer, params, label).items():
        found[f"recursion{end}"] = show
    return found


def switch(tested: Tested, trainer: Trainer, label: str) -> Draw:
    """Draws the switch of a tagger's first layer."""
    task = trainer.task

    def draw(number: int, path: Path) -> Path:
        looks, batch = tested.exact, tested.batch
        length, scores = int(batch.length[number]), looks.scores[number]
        assert looks.past is not None
        words, seen = None, {}
        if task.kind == "words":
            words = task.details["sentences"]["test"][number].words
        else:
            probability = (1 + np.tanh(scores[:length] / 2)) / 2 if scores.ndim == 1 else None
            seen = {"score": probability, "truth": batch.labels[number, :length]}
        title = f"{label}: who listens to the past, who to the future; test sequence {number}"
        return plots.listening(looks.past[number, :length], path, title, words=words, **seen)

    return draw


def recursion(model: Any, trainer: Trainer, params: Any, label: str) -> dict[str, Draw]:
    """Draws how much an X-RNN's gates take from below, in its first layer, one way or both.

    In the mean of many test sequences, and over one (figures 5 to 8 of its paper). By the end of a
    file's name; empty where the first layer is none.
    """
    if not isinstance(model, Reading) or not model.encoder.cells:
        return {}
    first, own = model.encoder.cells[0], params["encoder"][0]
    both = [(first, own)] if isinstance(first, Cell) else list(zip(first, own, strict=True))
    source = trainer.task.splits["test"]
    found: dict[str, Draw] = {}
    for end, (cell, weights) in zip(("", "_backwards"), both, strict=False):
        if cell.name != "xrnn":
            continue
        batch = first_many(source)
        values = jax.vmap(partial(recursion_weights, cell, weights))(
            model.embed(params, batch), batch.length
        )
        if values:
            title = f"{label}{', backwards' if end else ''}: how much gates take from below"
            found[end] = partial(_draw_recursion, jax.device_get(values), batch, trainer, title)
    return found


def _draw_recursion(
    values: dict[str, np.ndarray], batch: Any, trainer: Trainer, title: str, number: int, path: Path
) -> Path:
    steps, words = int(batch.length[number]), None
    if steps <= _MOST_WORDS and "words" in trainer.task.details:
        words = [trainer.task.details["words"][token] for token in batch[0][number, :steps]]
    inside = np.arange(next(iter(values.values())).shape[1]) < np.asarray(batch.length)[:, None]
    return plots.recursion(
        {name: own[number, :steps] for name, own in values.items()},
        path,
        f"{title}; {len(batch.length)} test sequences, and number {number}",
        means={name: float(np.mean(own[inside])) for name, own in values.items()},
        words=words,
    )


def residuals(tested: Tested, recipe: Recipe, label: str, path: Path) -> Path:
    """Draws how well many test sequences satisfy their equation, in training and when tested."""
    # What a solve without a tolerance of its own comes to.
    reached = float(np.finfo(np.float32).eps) ** (2 / 3)
    long = tested.batch.length > 1  # a sequence of one step is exact in one
    return plots.residuals(
        {
            "training's tolerance": tested.in_training.residual[long],
            "test's tolerance": tested.exact.residual[long],
        },
        path,
        f"{label}: how well {long.sum()} test sequences satisfy their equation",
        {
            "training's tolerance": recipe.rtol or reached,
            "test's tolerance": recipe.test_rtol or reached,
        },
    )
