"""The figures of a run or an experiment: learning curves, switch, recursion, residuals, errors."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from implicit_rnn import sequence
from implicit_rnn.cells import Cell, recursion_weights
from implicit_rnn.experiments import plots, report, runs
from implicit_rnn.experiments.config import Config
from implicit_rnn.experiments.graph import figures as graph
from implicit_rnn.experiments.hopfield import figures as hopfield
from implicit_rnn.experiments.hyper import figures as hyper
from implicit_rnn.experiments.logic.sentence_pair import SentencePair
from implicit_rnn.experiments.music.frames import FramesModel
from implicit_rnn.experiments.tagging.figures import mistaken
from implicit_rnn.experiments.train import restored
from implicit_rnn.models import Classifier, Seq2Seq, Tagger
from implicit_rnn.training import CheckpointError, Examples, State, Trainer

Reading = Tagger | Seq2Seq | SentencePair | Classifier | FramesModel  # models with an encoder

_OWN = (graph, hyper, hopfield)  # of models with figures of their own
_SHOWN = 20_000  # steps of the test set, with padding, whose residuals are drawn
_TELLING = 20  # words of a sentence whose switch is drawn
_MOST_WORDS = 60  # below the steps of a figure


def draw(output: Path) -> list[Path]:
    """Draws what there is to draw into `plots/`; returns the files."""
    folders = runs.run_folders(output)
    written = _learning(output, folders)
    for other in _OWN:
        written += other.draw(output, folders)
    for folder in folders:
        config = runs.configuration(folder)
        if config.model["name"] in [other.NAME for other in _OWN]:
            continue
        try:
            trainer, state, _ = restored(config, folder)
        except CheckpointError as error:
            print(f"left out: {error}", file=sys.stderr)
            continue
        model, stem = trainer.model, f"{folder.name}_" if len(folders) > 1 else ""
        if isinstance(model, Tagger) and model.solves:
            written += _solved(output / "plots", stem, model, trainer, state, config)
        if isinstance(model, Tagger) and trainer.task.kind == "words":
            written += mistaken(output / "plots", stem, model, trainer, state, config)
        if isinstance(model, Reading):
            written += _recursion(output / "plots", stem, model, trainer, state)
    return written


def _learning(output: Path, folders: list[Path]) -> list[Path]:
    """Validation metric against updates and against time, all runs of an runs.

    Runs that differ in nothing but seeds share a line, their mean.
    """
    rows = report.run_rows(output) if (output / runs.MARK).exists() else {}
    groups = runs.repetitions(folders)
    shown = [key for key in report.METRICS if runs.mean_curves(groups, f"valid_{key}")]
    if not shown:
        return []
    metric, levels = shown[0], {}
    for name, members in groups.items():
        level = rows.get(members[0].name, {}).get("paper", {}).get(f"paper's {metric}")
        if level is not None and len(groups) <= 4:
            levels[name] = level
    words = {"update": "updates", "seconds": "seconds of training"}
    return [
        plots.curves(
            runs.mean_curves(groups, f"valid_{metric}", axis),
            output / "plots" / f"learning_{axis}s.png".replace("ss.", "s."),
            f"Validation {metric} while training",
            (words[axis], metric),
            levels,
        )
        for axis in words
    ]


def _solved(
    folder: Path, stem: str, model: Tagger, trainer: Trainer, state: State, config: Config
) -> list[Path]:
    """The switch over one test sequence, and residuals over many."""
    source, details = trainer.task.splits["test"], trainer.task.details
    params = trainer.usable(state)
    cell, layer = model.encoder.cells[0], params["encoder"][0]
    assert isinstance(cell, Cell)  # a solved layer is one cell, not a pair
    exact = config.solver.exact()

    @jax.jit
    def solve(batch: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
        found = {}
        for kind, settings in (("training", config.solver.settings()), ("test", exact.settings())):
            scores, encoded = model.scores(
                params, model.embed(params, batch), batch.length, solve=settings
            )
            assert encoded.info is not None
            found[f"{kind}'s tolerance"] = encoded.info.residual[-1]
        return scores, found

    count, longest = source.shape
    many = source.batch((np.arange(min(max(_SHOWN // longest, 1), count)), longest))
    _, found = solve(many)
    reached = float(jnp.finfo(jnp.float32).eps) ** (
        2 / 3
    )  # by a solve with no tolerance of its own
    limits = {
        "training's tolerance": config.solver.rtol or reached,
        "test's tolerance": exact.rtol or reached,
    }
    long = many.length > 1  # a sequence of one step is exact in one
    written = [
        plots.residuals(
            {kind: np.asarray(values)[long] for kind, values in found.items()},
            folder / f"{stem}residuals.png",
            f"How well {long.sum()} test sequences satisfy their equation",
            limits,
        )
    ]
    if cell.switch is not None and cell.stencil == (-1, 1):
        words, seen = None, {}
        if trainer.task.kind == "words":
            lengths = [len(sentence.words) for sentence in details["sentences"]["test"]]
            number = int(np.argmin(np.abs(np.array(lengths) - _TELLING)))
            words = details["sentences"]["test"][number].words
        else:
            number = _telling(details["examples"]["test"])
        one = source.batch((np.array([number]), longest))
        length = int(one.length[0])
        inputs = model.embed(params, one)[0, :length]
        states, _ = sequence.implicit(cell, layer, inputs)
        shares = sequence.switch(cell, layer, inputs, states)
        if words is None:
            scores, _ = solve(one)
            seen = {"score": _probability(scores[0, :length]), "truth": one.labels[0, :length]}
        written.append(
            plots.listening(
                np.asarray(shares)[:, 0],
                folder / f"{stem}switch.png",
                f"Who listens to the past, who to the future: test sequence {number}",
                words=words,
                **seen,
            )
        )
    return written


def _recursion(
    folder: Path, stem: str, model: Reading, trainer: Trainer, state: State
) -> list[Path]:
    """How much an X-RNN's gates take from below, in its first layer (figures 5 to 8 of its paper).

    In the mean of many test sequences, and over one of about average length.
    """
    if not model.encoder.cells:
        return []
    source, params = trainer.task.splits["test"], trainer.usable(state)
    layer, own = model.encoder.cells[0], params["encoder"][0]
    if isinstance(layer, Cell):
        ways = {"": (layer, own)}
    else:
        ways = {"": (layer[0], own[0]), "_backwards": (layer[1], own[1])}
    count, longest = source.shape
    batch = source.batch((np.arange(min(max(_SHOWN // longest, 1), count)), longest))
    inside = np.arange(longest) < batch.length[:, None]
    number = int(np.argmin(np.abs(batch.length - batch.length.mean())))
    steps, words = int(batch.length[number]), None
    if steps <= _MOST_WORDS and "words" in trainer.task.details:
        words = [trainer.task.details["words"][token] for token in batch[0][number, :steps]]
    written = []
    for way, (cell, weights) in ways.items():
        if cell.name != "xrnn":
            continue
        inputs = model.embed(params, batch)
        found = jax.vmap(partial(recursion_weights, cell, weights))(inputs, batch.length)
        if found:
            direction = ", backwards" if way else ""
            written.append(
                plots.recursion(
                    {name: values[number, :steps] for name, values in found.items()},
                    folder / f"{stem}recursion{way}.png",
                    f"How much gates take from below{direction}: {len(batch.length)} test "
                    f"sequences, and one of them",
                    means={k: float(np.mean(np.asarray(v)[inside])) for k, v in found.items()},
                    words=words,
                )
            )
    return written


def _telling(examples: Examples) -> int:
    """A long sequence with both labels in about equal parts."""
    share = examples.labels.sum(axis=1) / np.maximum(examples.length, 1)
    return int(np.argmax(examples.length * (np.abs(share - 0.5) < 0.1)))


def _probability(scores: jax.Array) -> np.ndarray | None:
    return np.asarray(jax.nn.sigmoid(scores)) if jnp.ndim(scores) == 1 else None
