"""The figures of learnt hyperparameters: meta-losses, the trainings they lead to, and their paths.

All are drawn from the lines of `metrics.jsonl`, which hold the hyperparameters of every meta-step.
"""

from __future__ import annotations

import json
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.flatten_util import ravel_pytree

from implicit_rnn.experiments import plots
from implicit_rnn.experiments.config import Config
from implicit_rnn.experiments.hyper.descent import PARTS, Training, descend, from_names
from implicit_rnn.experiments.hyper.model import HyperOptimiser, hyper_optimiser
from implicit_rnn.experiments.registry import MODELS, TASKS
from implicit_rnn.experiments.runs import configuration
from implicit_rnn.experiments.task import Task
from implicit_rnn.training.folder import Records

NAME = next(name for name, made in MODELS.items() if made is hyper_optimiser)
_POINTS = 100  # of a path
_SHARES = (0.2, 0.4)  # of the meta-steps, after which paths are drawn: 20 and 40 of the paper's 100
_SMOOTH = 40  # a curve of losses is the mean over this part of its steps


class Run(NamedTuple):
    """A run as figures need it."""

    name: str
    config: Config
    rows: list[dict[str, Any]]  # of its meta-steps


def draw(output: Path, folders: list[Path]) -> list[Path]:
    """Draws what the runs among these folders that learn hyperparameters have to show."""
    panels: dict[tuple[int, int], list[Run]] = {}
    for folder in folders:
        config = configuration(folder)
        rows = [row for row in Records(folder / "metrics.jsonl").read() if "step_loss" in row]
        if config.model["name"] == NAME and rows:
            own = panels.setdefault((config.model["truncation"], config.task["steps"]), [])
            rule = config.model["rule"]
            taken = any(run.name == rule for run in own)
            own.append(Run(folder.name if taken else rule, config, rows))
    if not panels:
        return []
    groups = {
        f"{steps:,} steps, truncation {truncation}": panels[truncation, steps]
        for truncation, steps in sorted(panels)
    }
    plotted = output / "plots"
    last = {name: {run.name: _losses(run) for run in runs} for name, runs in groups.items()}
    written = [
        plots.panels(
            {
                name: {run.name: _columns(run.rows, "update", "loss") for run in runs}
                for name, runs in groups.items()
            },
            plotted / "meta_loss.png",
            "Meta-loss",
            ("meta-step", "loss after training"),
        ),
        plots.panels(
            last,
            plotted / "training_loss.png",
            "Training with the hyperparameters of the end",
            ("step", "loss"),
        ),
    ]
    for name, runs in groups.items():
        stem = "" if len(groups) == 1 else "_" + name.replace(",", "").replace(" ", "_")
        written.append(_rates(runs, plotted / f"rates{stem}.png", name))
        written.append(_paths(runs, plotted / f"paths{stem}.png", name))
    return written


def _rates(runs: list[Run], path: Path, name: str) -> Path:
    """What became of every learning rate, one panel a rule."""
    lines = {
        run.name: {
            f"{part} {layer}": _columns(run.rows, "update", f"rate_{part}_{layer}")
            for part in PARTS
            for layer in range(1, len(run.config.model["hidden"]) + 2)
        }
        for run in runs
    }
    return plots.panels(lines, path, f"Learning rates by layer: {name}", ("meta-step", "rate"))


def _paths(runs: list[Run], path: Path, name: str) -> Path:
    """The weights of one training with the hyperparameters of two meta-steps, in a plane.

    The plane is that of the two principal components of all that is drawn.
    """
    panels: dict[str, dict[str, np.ndarray]] = {}
    for share in _SHARES:
        for run in runs:
            row = run.rows[max(round(share * len(run.rows)) - 1, 0)]
            title = f"meta-step {row['update']}"
            panels.setdefault(title, {})[run.name] = _weights(run, row)
    return plots.paths(plane(panels), path, f"Paths of the weights: {name}")


def plane(panels: dict[str, dict[str, np.ndarray]]) -> dict[str, dict[str, np.ndarray]]:
    """Paths `[points, weights]` as seen in the plane of their two principal components."""
    everything = np.concatenate([points for lines in panels.values() for points in lines.values()])
    everything = everything[np.isfinite(everything).all(axis=1)]
    centre = everything.mean(axis=0)
    axes = np.linalg.svd(everything - centre, full_matrices=False)[2][:2]
    return {
        title: {name: (points - centre) @ axes.T for name, points in lines.items()}
        for title, lines in panels.items()
    }


def _weights(run: Run, row: dict[str, Any]) -> np.ndarray:
    """Where the weights of a training are, `[points, weights]`."""
    model, order, data = _training(run)
    every = max(len(order) // _POINTS, 1)
    order = order[: len(order) // every * every]
    start = model.start()
    points = _followed(from_names(row), start, order, *data, every=every)
    first = ravel_pytree(start.weights)[0]
    return np.concatenate([np.asarray(first)[None], np.asarray(points)])


def _losses(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """Losses of the mini-batches of a training with the last hyperparameters, smoothed."""
    model, order, data = _training(run)
    _, losses = _descend(from_names(run.rows[-1]), model.start(), order, *data)
    width = max(len(losses) // _SMOOTH, 1)
    smooth = np.convolve(np.asarray(losses, np.float64), np.full(width, 1 / width), "valid")
    return np.arange(len(smooth)) + (width - 1) / 2, smooth


def _training(run: Run) -> tuple[HyperOptimiser, np.ndarray, tuple[np.ndarray, np.ndarray]]:
    """The model, and the order and the examples of the one training that validates it."""
    task = _task(json.dumps(run.config.task))
    options = {key: value for key, value in run.config.model.items() if key != "name"}
    source = task.splits["valid"]
    batch = source.batch(source.plan(1, 1, None)[0])
    return hyper_optimiser(task, **options), batch.order[0], (batch.inputs, batch.labels)


@cache
def _task(table: str) -> Task:
    options = json.loads(table)
    return TASKS[options.pop("name")](**options)


def _columns(rows: list[dict[str, Any]], x: str, y: str) -> tuple[list[float], list[float]]:
    return [row[x] for row in rows], [row[y] for row in rows]


_descend = jax.jit(descend)


@partial(jax.jit, static_argnames="every")
def _followed(
    params: Any, state: Training, order: jax.Array, inputs: jax.Array, labels: jax.Array, every: int
) -> jax.Array:
    """The weights after every so many steps."""

    def some(state: Training, order: jax.Array) -> tuple[Training, jax.Array]:
        state, _ = descend(params, state, order, inputs, labels)
        return state, ravel_pytree(state.weights)[0]

    return jax.lax.scan(some, state, order.reshape(-1, every, order.shape[1]))[1]
