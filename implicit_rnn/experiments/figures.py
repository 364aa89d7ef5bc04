"""The figures of a run or an experiment: learning curves, solves, switch, recursion, errors."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import NamedTuple

from implicit_rnn.experiments import pictures, plots, report, runs
from implicit_rnn.experiments.config import Config
from implicit_rnn.experiments.graph import figures as graph
from implicit_rnn.experiments.hopfield import figures as hopfield
from implicit_rnn.experiments.hyper import figures as hyper
from implicit_rnn.experiments.registry import Tasks
from implicit_rnn.experiments.tagging.figures import mistaken
from implicit_rnn.experiments.tested import Tested
from implicit_rnn.experiments.train import restored
from implicit_rnn.models import Tagger
from implicit_rnn.training import CheckpointError, State, Trainer
from implicit_rnn.training.folder import Records

_OWN = (graph, hyper, hopfield)  # of models with figures of their own


class Shown(NamedTuple):
    """A trained network, and what there is to draw of single test sequences."""

    config: Config
    label: str
    trainer: Trainer
    state: State
    tested: Tested
    kinds: dict[str, pictures.Draw]


class Gallery:
    """Networks of an experiment, each restored, and its pictures compiled, once."""

    def __init__(self, tasks: Tasks | None = None) -> None:
        self._shown: dict[Path, Shown] = {}
        self._tasks = tasks or Tasks()

    def __call__(self, folder: Path) -> Shown:
        """The network of a run; raises `CheckpointError` if it cannot be read."""
        if folder not in self._shown:
            config, label = runs.configuration(folder), runs.label_of(folder)
            trainer, state, _ = restored(config, folder, tasks=self._tasks)
            params = trainer.usable(state)
            tested = Tested(trainer, params, config.solver)
            kinds = pictures.kinds(trainer, params, tested, label)
            self._shown[folder] = Shown(config, label, trainer, state, tested, kinds)
        return self._shown[folder]


def draw(output: Path, gallery: Gallery | None = None) -> list[Path]:
    """Draws what there is to draw into `plots/`; returns the files."""
    gallery, folders = gallery or Gallery(), runs.run_folders(output)
    _look_at(folders)
    written = learning(output, folders) + solves(output, folders)
    for other in _OWN:
        written += other.draw(output, folders)
    for folder in folders:
        if runs.configuration(folder).model["name"] in [other.NAME for other in _OWN]:
            continue
        try:
            shown = gallery(folder)
        except CheckpointError as error:
            print(f"left out: {error}", file=sys.stderr)
            continue
        config, label, trainer, state, tested, kinds = shown
        model = trainer.model
        plotted, stem = output / "plots", f"{folder.name}_" if len(folders) > 1 else ""
        if isinstance(model, Tagger) and model.solves:
            path = plotted / f"{stem}residuals.png"
            written.append(pictures.residuals(tested, config.solver, label, path))
        if isinstance(model, Tagger) and trainer.task.kind == "words":
            written += mistaken(plotted, stem, model, trainer, state, config)
        for kind, show in kinds.items():
            (number,) = pictures.telling(trainer, 1)
            written.append(show(number, plotted / f"{stem}{kind}.png"))
    return written


def _look_at(folders: list[Path]) -> None:
    """Says what is damaged of the lines that figures are drawn from."""
    say = partial(print, file=sys.stderr)
    for folder in folders:
        ended = (folder / "result.json").exists()
        expected = runs.outcome(folder).get("lines") if ended else None
        Records(folder / "metrics.jsonl").check(expected, say)


def learning(output: Path, folders: list[Path]) -> list[Path]:
    """Validation metric against updates and against time, all runs of an experiment.

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


def solves(output: Path, folders: list[Path]) -> list[Path]:
    """Steps that solves took while training, and how large their residuals were left."""
    groups, written = runs.repetitions(folders), []
    for what, (title, unit) in {
        "steps": ("Steps of a solve while training", "mean steps"),
        "residual": ("Relative residuals of solves while training", "mean relative residual"),
    }.items():
        lines = {
            f"{name}, {way}s": line
            for way in ("forward", "backward")
            for name, line in runs.mean_curves(groups, f"{way}_{what}").items()
        }
        if lines:
            path = output / "plots" / f"solver_{what}.png".replace("residual.", "residuals.")
            written.append(plots.curves(lines, path, title, ("updates", unit)))
    return written
