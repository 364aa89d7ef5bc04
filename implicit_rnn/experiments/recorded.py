"""Figures of recorded results: what a file of `results/` says without the folders of its runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from implicit_rnn.experiments import plots
from implicit_rnn.experiments.options import ConfigError
from implicit_rnn.experiments.report import METRICS
from implicit_rnn.training.files import read_sealed

Line = tuple[np.ndarray, np.ndarray]
Panels = dict[str, dict[str, Line]]

_PART = "length "  # of a test set's name: sequences of this length alone


def draw(path: Path, output: Path) -> list[Path]:
    """Draws a recorded experiment: error by updates, by time, and by the length of sequences.

    Runs that differ in nothing but seeds share a line, their mean; what the runs of an experiment
    differ in beside that and their networks makes panels.

    Args:
      path: a file that `implicit-rnn record` wrote.
      output: the folder of the figures.
    """
    content = read_sealed(path)
    if not content.get("runs") or not content.get("labels"):
        raise ConfigError(f"{path} has no runs with labels: record the experiment again")
    try:
        return _drawn(content, path.stem, output)
    except (AttributeError, KeyError, StopIteration, TypeError, ValueError) as error:
        what = f"{type(error).__name__}: {error}"
        raise ConfigError(f"{path} is no recorded experiment ({what})") from error


def _drawn(content: Mapping[str, Any], stem: str, output: Path) -> list[Path]:
    runs, labels, title = content["runs"], content["labels"], content["title"]
    written: list[Path] = []
    for across, unit in {"update": "updates", "seconds": "seconds of training"}.items():

        def of_curve(run: Mapping[str, Any], across: str = across) -> Line | None:
            found = dict(run.get("curve", {}))
            value = [name for name in found if name.startswith("valid_")]
            if not value:
                return None
            return np.array(found[across], float), np.array(found[value[0]], float)

        written += _figure(
            _grouped(runs, labels, of_curve),
            output / f"{stem}_{unit.split()[0]}.png",
            title,
            (unit, "validation error"),
        )
    written += _figure(
        _grouped(runs, labels, _by_length),
        output / f"{stem}_lengths.png",
        title,
        ("length", "test error"),
    )
    return written


def _by_length(run: Mapping[str, Any]) -> Line | None:
    parts = {
        int(name.removeprefix(_PART)): part
        for name, part in run.get("parts", {}).items()
        if name.startswith(_PART)
    }
    if not parts:
        return None
    metric = next(metric for metric in METRICS if metric in run["test"])
    lengths = sorted(parts)
    return np.array(lengths, float), np.array([parts[n][metric] for n in lengths])


def _grouped(
    runs: Mapping[str, Any],
    labels: Mapping[str, Mapping[str, Any]],
    read: Callable[[Mapping[str, Any]], Line | None],
) -> Panels:
    """Title of a panel to its lines, means over seeds; without what `read` finds nothing in."""
    found: dict[str, dict[str, list[Line]]] = {}
    for name, run in runs.items():
        line, label = read(run), dict(labels[name])
        if line is None:
            continue
        network = str(label.pop("variant", name))
        told = [
            str(value) if isinstance(value, str) else f"{key.rsplit('.', 1)[-1]} {value}"
            for key, value in label.items()
            if key.rsplit(".", 1)[-1] != "seed"
        ]
        found.setdefault(", ".join(told), {}).setdefault(network, []).append(line)
    return {
        panel: {network: _mean(lines) for network, lines in networks.items()}
        for panel, networks in found.items()
    }


def _mean(lines: list[Line]) -> Line:
    """As far as all lines go."""
    count = min(len(x) for x, _ in lines)
    x, y = np.mean([[x[:count], y[:count]] for x, y in lines], axis=0)
    return x, y


def _figure(panels: Panels, path: Path, title: str, axes: tuple[str, str]) -> list[Path]:
    if not panels:
        return []
    if len(panels) > 1:
        return [plots.panels(panels, path, title, axes)]
    return [plots.curves(next(iter(panels.values())), path, title, axes)]
