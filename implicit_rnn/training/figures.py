"""The figures of a run or an experiment: learning curves, the switch, residuals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from implicit_rnn import plots, sequence
from implicit_rnn.cells import Cell
from implicit_rnn.models import Tagger
from implicit_rnn.tasks import Examples
from implicit_rnn.training import experiment, loop
from implicit_rnn.training.folder import Records

_SHOWN = 500  # sequences of the test set whose residuals are drawn


def draw(output: Path) -> list[Path]:
    """Draws what there is to draw into `plots/`; returns the files."""
    folders = experiment.run_folders(output)
    written = _learning(output, folders)
    for folder in folders:
        config = experiment.configuration(folder)
        trainer, state, _ = loop.restore(config, folder)
        model = trainer.model
        if isinstance(model, Tagger) and model.solves and "examples" in trainer.task.details:
            name = folder.name if len(folders) > 1 else ""
            written += _solved(output / "plots", name, model, trainer, state, config)
    return written


def _learning(output: Path, folders: list[Path]) -> list[Path]:
    """Validation metric against updates and against time, all runs of an experiment."""
    over: dict[str, dict[str, tuple]] = {"update": {}, "seconds": {}}
    metric, levels = "error", {}
    rows = {row["run"]: row for row in _rows(output, folders)}
    for folder in folders:
        found = [row for row in Records(folder / "metrics.jsonl").read() if "valid_loss" in row]
        if not found:
            continue
        metric = next(key for key in ("error", "bits", "loss") if f"valid_{key}" in found[0])
        name = folder.name if len(folders) > 1 else "run"
        level = rows.get(folder.name, {}).get(f"paper's {metric}")
        if level is not None and len(folders) <= 4:
            levels[name] = level
        for axis in over:
            over[axis][name] = (
                [row[axis] for row in found], [row[f"valid_{metric}"] for row in found]
            )  # fmt: skip
    words = {"update": "updates", "seconds": "seconds of training"}
    return [
        plots.curves(
            lines, output / "plots" / f"learning_{axis}s.png".replace("ss.", "s."),
            f"Validation {metric} while training", (words[axis], metric), levels,
        )
        for axis, lines in over.items()
        if lines
    ]  # fmt: skip


def _rows(output: Path, folders: list[Path]) -> list[dict[str, Any]]:
    if not (output / experiment.MARK).exists():
        return []
    names = json.loads((output / experiment.MARK).read_text())["runs"]
    finished = [name for name in names if (output / name / "result.json").exists()]
    rows = zip(finished, experiment.results(output), strict=True)
    return [{"run": (output / name).name, **row} for name, row in rows]


def _solved(
    folder: Path, name: str, model: Tagger, trainer: loop.Trainer, state: loop.State, config: Any
) -> list[Path]:
    """The switch over one test sequence, and residuals over many."""
    examples: Examples = trainer.task.details["examples"]["test"]
    params = state.average if config.optimiser.ema else state.params
    cell, layer = model.encoder.cells[0], params["encoder"][0]
    assert isinstance(cell, Cell)  # a solved layer is one cell, not a pair
    stem = f"{name}_" if name else ""
    exact = config.solver.exact()

    @jax.jit
    def solve(batch: Examples) -> tuple[jax.Array, dict[str, jax.Array]]:
        found = {}
        for kind, settings in (("training", config.solver.settings()), ("test", exact.settings())):
            scores, encoded = model.scores(
                params, jnp.asarray(batch.inputs), jnp.asarray(batch.length), solve=settings
            )
            assert encoded.info is not None
            found[f"{kind}'s tolerance"] = encoded.info.residual[-1]
        return scores, found

    many = examples.take(np.arange(min(_SHOWN, len(examples.length))))
    _, found = solve(many)
    limits = {"training's tolerance": config.solver.rtol, "test's tolerance": exact.rtol}
    long = many.length > 1  # a sequence of one step is exact in one
    written = [
        plots.residuals(
            {kind: np.asarray(values)[long] for kind, values in found.items()},
            folder / f"{stem}residuals.png",
            f"How well {long.sum()} test sequences satisfy their equation", limits,
        )
    ]  # fmt: skip
    if cell.switch is not None and cell.stencil == (-1, 1):
        number = _telling(examples)
        one = examples.take(np.array([number]))
        length = int(one.length[0])
        scores, _ = solve(one)
        states, _ = sequence.implicit(cell, layer, jnp.asarray(one.inputs[0]), length=length)
        shares = sequence.switch(cell, layer, jnp.asarray(one.inputs[0]), states, length=length)
        written.append(
            plots.listening(
                np.asarray(shares)[:length, 0], folder / f"{stem}switch.png",
                f"Who listens to the past, who to the future: test sequence {number}",
                score=_probability(scores[0, :length]), truth=one.labels[0, :length],
            )
        )  # fmt: skip
    return written


def _telling(examples: Examples) -> int:
    """A long sequence with both labels in about equal parts."""
    share = examples.labels.sum(axis=1) / np.maximum(examples.length, 1)
    return int(np.argmax(examples.length * (np.abs(share - 0.5) < 0.1)))


def _probability(scores: jax.Array) -> np.ndarray | None:
    return np.asarray(jax.nn.sigmoid(scores)) if jnp.ndim(scores) == 1 else None
