"""Folders of runs: one by one, those of an experiment, and repetitions of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from implicit_rnn.experiments.config import Config, read
from implicit_rnn.experiments.options import ConfigError, named
from implicit_rnn.training import folder as folders
from implicit_rnn.training.files import read_sealed

MARK = "experiment.json"
_RESULT: dict[str, type] = {
    "config": dict, "test": dict, "parameters": int, "updates": int, "skipped": int,
    "seconds": float,
}  # fmt: skip
_BESIDE: dict[str, type] = {"parts": dict, "verdict": dict, "translations": list, "searched": list}


def configuration(folder: Path) -> Config:
    """The configuration that a run folder keeps."""
    path = folder / "config.toml"
    if not path.exists():
        raise ConfigError(f"{folder} is no run folder: it has no config.toml")
    return read(path)


def run_folders(output: Path) -> list[Path]:
    """The folders of all runs: those of an experiment, or the one run that this is."""
    if (output / MARK).exists():
        names = experiment(output)["runs"]
        return [output / name for name in names if (output / name / "config.toml").exists()]
    configuration(output)
    return [output]


def experiment(output: Path) -> dict[str, Any]:
    """What an experiment's folder says of itself: `title`, `runs` with their labels, `paper`."""
    path = output / MARK
    content = read_sealed(path)
    parts = {"title": str, "runs": dict, "paper": list}
    if not all(isinstance(content.get(name), kind) for name, kind in parts.items()):
        raise folders.FolderError(f"{path} is damaged: title, runs and paper wanted")
    for name in content["runs"]:
        if name:
            named(name, f"{path}: run")
    return content


def outcome(folder: Path) -> dict[str, Any]:
    """What a finished run says of itself."""
    path = folder / "result.json"
    content = read_sealed(path)
    lacking = [key for key in _RESULT if key not in content]
    if lacking:
        raise folders.FolderError(f"{path} is damaged: it has no {lacking[0]}")
    for key, kind in (_RESULT | _BESIDE).items():
        value = content.get(key, kind())
        if not isinstance(value, (int, float) if kind is float else kind):
            raise folders.FolderError(f"{path} is damaged: its {key} is {value!r:.40}")
    for numbers in (content["test"], content.get("verdict", {})):
        for key, value in numbers.items():
            if not isinstance(value, int | float | None):
                raise folders.FolderError(f"{path} is damaged: its {key} is {value!r:.40}")
    return content


def only_run(output: Path) -> Path:
    """The folder of a run: this one, or that of an experiment with a single run."""
    found = run_folders(output)
    if len(found) != 1:
        names = ", ".join(str(folder) for folder in found)
        raise folders.FolderError(f"{output} holds {len(found)} runs; name one: {names}")
    return found[0]


def repetitions(folders: Sequence[Path]) -> dict[str, list[Path]]:
    """The folders of runs by label; those that differ in nothing but seeds share one."""
    groups: dict[str, list[Path]] = {}
    for folder in folders:
        groups.setdefault(label_of(folder), []).append(folder)
    return groups


def label_of(folder: Path) -> str:
    """What a figure calls a run: its variant first, then what else it differs in, but for seeds.

    A run that stands alone goes by its encoder or rule, or by its model.
    """
    mark = next((path / MARK for path in (folder, folder.parent) if (path / MARK).exists()), None)
    told = {}
    if mark is not None:
        known = experiment(mark.parent)["runs"]
        told = dict(known.get(folder.name if mark.parent != folder else "", {}))
    parts = [str(told.pop("variant"))] if "variant" in told else []
    parts += [
        value if isinstance(value, str) else f"{key.rsplit('.', 1)[-1]} {value}"
        for key, value in told.items()
        if key.rsplit(".", 1)[-1] != "seed"
    ]
    if parts:
        return ", ".join(parts)
    model = configuration(folder).model
    return str(model.get("encoder") or model.get("rule") or model["name"])


def mean_curves(
    groups: Mapping[str, Sequence[Path]], key: str, over: str = "update"
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """What `metrics.jsonl` says of a key, by update or another key: `(x, y)` for every group.

    The mean over the runs of a group, as far as all of them are; a group whose runs do not all have
    the key is left out.
    """
    lines = {}
    for name, members in groups.items():
        rows = [folders.Records(folder / "metrics.jsonl").read() for folder in members]
        found = [
            [(row[over], row[key]) for row in own if over in row and key in row] for own in rows
        ]
        count = min(map(len, found))
        if count:
            x, y = np.mean([np.array(own[:count], float) for own in found], axis=0).T
            lines[name] = (x, y)
    return lines
