"""Pictures of single test sequences: whom states listen to, how deep the gates of an X-RNN go."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from implicit_rnn import sequence
from implicit_rnn.cells import Cell, recursion_weights
from implicit_rnn.experiments import plots
from implicit_rnn.experiments.config import Config
from implicit_rnn.experiments.logic.sentence_pair import SentencePair
from implicit_rnn.experiments.music.frames import FramesModel
from implicit_rnn.models import Classifier, Seq2Seq, Tagger
from implicit_rnn.training import Recipe, Trainer

Reading = Tagger | Seq2Seq | SentencePair | Classifier | FramesModel  # models with an encoder
Draw = Callable[[int, Path], Path]  # of a test sequence by its number, into a file

SHOWN = 20_000  # steps of the test set, with padding, that are looked at together
_TELLING = 20  # words of a sentence whose switch is drawn
_MOST_WORDS = 60  # below the steps of a figure


def telling(trainer: Trainer, count: int) -> list[int]:
    """Test sequences that are worth a picture, the most telling one first (of the first many)."""
    task = trainer.task
    if task.kind == "words":
        lengths = np.array([len(sentence.words) for sentence in task.details["sentences"]["test"]])
        order = np.argsort(np.abs(lengths - _TELLING), kind="stable")
    elif "examples" in task.details and task.kind == "tagging":
        # Long ones, with both labels in about equal parts.
        examples = task.details["examples"]["test"]
        share = examples.labels.sum(axis=1) / np.maximum(examples.length, 1)
        order = np.argsort(-examples.length * (np.abs(share - 0.5) < 0.1), kind="stable")
    else:
        source = task.splits["test"]
        lengths = np.asarray(_many(source).length)
        order = np.argsort(np.abs(lengths - lengths.mean()), kind="stable")
    return [int(number) for number in order[order < _count(task.splits["test"])][:count]]


def kinds(trainer: Trainer, params: Any, config: Config, label: str) -> dict[str, Draw]:
    """What there is to draw of single sequences, by the names that files have."""
    found: dict[str, Draw] = {}
    show = switch(trainer.model, trainer, params, config, label)
    if show is not None:
        found["switch"] = show
    for end, show in recursion(trainer.model, trainer, params, label).items():
        found[f"recursion{end}"] = show
    return found


def switch(model: Any, trainer: Trainer, params: Any, config: Config, label: str) -> Draw | None:
    """Draws the switch of a tagger's first layer; None if it has none."""
    if not isinstance(model, Tagger) or not model.solves:
        return None
    cell, layer = model.encoder.cells[0], params["encoder"][0]
    if not isinstance(cell, Cell) or cell.switch is None or cell.stencil != (-1, 1):
        return None
    task = trainer.task
    source = task.splits["test"]

    def seen(recipe: Recipe) -> Callable:
        def look(batch: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
            inputs, length = model.embed(params, batch), batch.length[0]
            scores, encoded = model.scores(params, inputs, batch.length, solve=recipe.settings())
            assert encoded.info is not None
            states = jax.tree.map(lambda leaf: leaf[0], encoded.states[0])
            share = sequence.switch(cell, layer, inputs[0], states, length=length)[:, 0]
            return scores[0], share, jnp.all(encoded.info.converged)

        return jax.jit(look)

    swept, exact = seen(config.solver.swept()), seen(config.solver.exact())

    def look(batch: Any) -> tuple[jax.Array, jax.Array]:
        scores, share, solved = swept(batch)
        if not solved:
            scores, share, _ = exact(batch)
        return jax.device_get((scores, share))

    def draw(number: int, path: Path) -> Path:
        one = source.batch((np.array([number]), source.shape[1]))
        length = int(one.length[0])
        scores, past = look(one)
        words, seen = None, {}
        if task.kind == "words":
            words = task.details["sentences"]["test"][number].words
        else:
            probability = jax.nn.sigmoid(scores[:length]) if scores.ndim == 1 else None
            seen = {"score": probability, "truth": one.labels[0, :length]}
        title = f"{label}: who listens to the past, who to the future; test sequence {number}"
        return plots.listening(past[:length], path, title, words=words, **seen)

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
        batch = _many(source)
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


def _count(source: Any) -> int:
    count, longest = source.shape
    return min(max(SHOWN // longest, 1), count)


def _many(source: Any) -> Any:
    return source.batch((np.arange(_count(source)), source.shape[1]))


def residuals(
    model: Tagger, trainer: Trainer, params: Any, config: Config, label: str, path: Path
) -> Path:
    """Draws how well many test sequences satisfy their equation, in training and when tested."""
    many, recipe = _many(trainer.task.splits["test"]), config.solver

    def left(recipe: Recipe) -> tuple[np.ndarray, bool]:
        @jax.jit
        def solve(batch: Any) -> tuple[jax.Array, jax.Array]:
            inputs = model.embed(params, batch)
            _, encoded = model.scores(params, inputs, batch.length, solve=recipe.settings())
            assert encoded.info is not None
            return encoded.info.residual[-1], jnp.all(encoded.info.converged)

        residual, solved = solve(many)
        return np.asarray(residual), bool(solved)

    in_training, _ = left(recipe)
    in_test, solved = left(recipe.swept())
    if not solved:
        in_test, _ = left(recipe.exact())
    found = {"training's tolerance": in_training, "test's tolerance": in_test}
    # What a solve without a tolerance of its own comes to.
    reached = float(jnp.finfo(jnp.float32).eps) ** (2 / 3)
    limits = {
        "training's tolerance": recipe.rtol or reached,
        "test's tolerance": recipe.test_rtol or reached,
    }
    long = many.length > 1  # a sequence of one step is exact in one
    return plots.residuals(
        {kind: values[long] for kind, values in found.items()},
        path,
        f"{label}: how well {long.sum()} test sequences satisfy their equation",
        limits,
    )
