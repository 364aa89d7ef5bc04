"""Configurations: TOML files, profiles and settings from the command line, checked key by key.

What a table may hold is what the function or dataclass that it configures takes by keyword.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import itertools
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from implicit_rnn.cells import CELLS
from implicit_rnn.experiments.networks import DECODER, ENCODERS
from implicit_rnn.experiments.options import ConfigError, Table, check_options, known, prefixed
from implicit_rnn.experiments.registry import MODELS, TASKS
from implicit_rnn.models.encoder import cell_kind, encoder
from implicit_rnn.training.optimiser import OptimiserSettings
from implicit_rnn.training.parallel import ParallelSettings
from implicit_rnn.training.recipe import Recipe
from implicit_rnn.training.settings import TrainingSettings


@dataclasses.dataclass(frozen=True)
class RunSettings(TrainingSettings):
    """The `training` table: `TrainingSettings`, and where a run is told of.

    Attributes:
      tensorboard: also write event files (needs tensorboardX).
    """

    tensorboard: bool = False


@dataclasses.dataclass(frozen=True)
class Config:
    """A checked configuration of one run."""

    task: Table  # `name` and options of the task
    model: Table  # `name` and options of the model and of its encoder
    solver: Recipe
    optimiser: OptimiserSettings
    training: RunSettings
    parallel: ParallelSettings

    def table(self) -> Table:
        """As nested tables, with every default: what a run folder keeps.

        Without `parallel`: a run goes on over any devices.
        """
        tables = {
            "task": self.task,
            "model": self.model,
            "solver": {k: v for k, v in dataclasses.asdict(self.solver).items() if k != "clip"},
            "optimiser": dataclasses.asdict(self.optimiser),
            "training": dataclasses.asdict(self.training),
        }
        return {
            name: {key: value for key, value in table.items() if value is not None}
            for name, table in tables.items()
        }


@dataclasses.dataclass(frozen=True)
class Experiment:
    """Runs that belong together, each under its name; a single run is called "".

    Attributes:
      title: one line.
      runs: configurations by name, in order.
      labels: by name, what tells a run from its siblings: `variant` and values of the grid.
      paper: rows of numbers to put beside: labels and metrics.
    """

    title: str
    runs: dict[str, Config]
    labels: dict[str, Table]
    paper: list[Table]


def load(path: Path, profile: str | None = None, settings: Sequence[str] = ()) -> Experiment:
    """Reads a TOML file.

    Args:
      path: the file. Tables `task`, `model`, `solver`, `optimiser`, `training`, `parallel`;
        `profiles.NAME` with tables that replace some of their keys; `variants.NAME`, of which each
        is a run of its own; `grid`, keys like `"task.bias"` with lists of values, each a run;
        `paper`.
      profile: which profile to apply.
      settings: `a.b=value` each, applied last; values are TOML, or plain words.
    """
    try:
        content = tomllib.loads(Path(path).read_text())
    except FileNotFoundError:
        raise ConfigError(f"no such file: {path}") from None
    except IsADirectoryError:
        raise ConfigError(f"{path} is a folder; a configuration is a .toml file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not TOML: {error}") from None
    return resolve(content, str(path), profile, settings)


def resolve(
    content: Table, where: str, profile: str | None = None, settings: Sequence[str] = ()
) -> Experiment:
    """The runs that the content of a file describes."""
    content = copy.deepcopy(content)
    profiles = content.pop("profiles", {})
    if profile is not None:
        known(profile, profiles, f"{where}: profile")
        _merge(content, profiles[profile])
    overrides = dict(_setting(text) for text in settings)
    tables = ["title", "grid", "variants", "paper", *_TABLES]
    for key in content:
        known(key, tables, f"{where}: table")
    title, grid = content.pop("title", Path(where).stem), content.pop("grid", {})
    variants, paper = content.pop("variants", {}), content.pop("paper", [])
    for key, values in grid.items():
        if not isinstance(values, list):
            raise ConfigError(f"{where}: grid.{key}: a list of values wanted, got {values!r}")
    choices = [
        # One value from the command line stands for all of the grid's.
        [(key, value) for value in ([overrides.pop(key)] if key in overrides else values)]
        for key, values in grid.items()
    ]
    for name, table in variants.items():
        taken = [key for key in overrides if look_up(table, key) is not None]
        if taken:
            raise ConfigError(
                f"--set {taken[0]} would undo what variant {name!r} is: choose variants with "
                f"--only, or change {where}"
            )
    runs, labels = {}, {}
    for point in itertools.product(*choices):
        for variant, table in variants.items() or [("", {})]:
            own = copy.deepcopy(content)
            _merge(own, table)
            for key, value in [*point, *overrides.items()]:
                _assign(own, key, value, where)
            label = {key: value for key, value in point}
            name = "-".join([*(f"{k.split('.')[-1]}={v}" for k, v in label.items()), variant])
            name = name.strip("-")
            runs[name] = _checked(own, where)
            labels[name] = label | ({"variant": variant} if variant else {})
    return Experiment(title, runs, labels, paper)


def read(path: Path) -> Config:
    """The configuration that a run folder keeps."""
    return load(path).runs[""]


_TABLES = ("task", "model", "solver", "optimiser", "training", "parallel")


def _checked(content: Table, where: str) -> Config:
    for key in content:
        known(key, _TABLES, f"{where}: table")
    for name in ("task", "model"):
        if "name" not in content.get(name, {}):
            raise ConfigError(f"{where}: {name}.name is missing")
    task, model = dict(content["task"]), dict(content["model"])
    known(task["name"], TASKS, f"{where}: task.name")
    known(model["name"], MODELS, f"{where}: model.name")
    takes = _takes(model, f"{where}: model")

    def settings(name: str, kind: Callable, leave: tuple[str, ...] = ()) -> Any:
        options = check_options(content.get(name, {}), [kind], f"{where}: {name}", leave)
        try:
            return kind(**options)
        except ValueError as error:
            raise ConfigError(f"{where}: {name}: {error}") from None

    return Config(
        task=_named(task, [TASKS[task["name"]]], f"{where}: task"),
        model=_named(model, takes, f"{where}: model", ("task", "hidden_size")),
        # A recipe's clip is that of the optimiser's table.
        solver=settings("solver", Recipe, ("clip",)),
        optimiser=settings("optimiser", OptimiserSettings),
        training=settings("training", RunSettings),
        parallel=settings("parallel", ParallelSettings),
    )


def _named(table: Table, takes: list[Callable], where: str, leave: tuple = ()) -> Table:
    name = table.pop("name")
    return {"name": name} | check_options(table, takes, where, ("name", "options", *leave))


def _takes(model: Table, where: str) -> list[Callable]:
    """What the model's table configures: the model, its encoder, if any, and their cells."""
    made = MODELS[model["name"]]
    parameters = inspect.signature(made).parameters
    if "cell" in parameters:
        name = str(model.get("cell", parameters["cell"].default))
        known(name, CELLS, f"{where}.cell")
        return [made, CELLS[name]]
    if "encoder" not in parameters:
        return [made]
    takes = [made, *_reads(str(model.get("encoder", parameters["encoder"].default)), where)]
    if "decoder" in parameters:
        writer = str(model.get("decoder", parameters["decoder"].default))
        known(writer, CELLS, f"{where}.decoder")
        takes.append(prefixed(CELLS[writer], DECODER))
    return takes


def _reads(name: str, where: str) -> list[Callable]:
    """What the options of an encoder configure."""
    if name in ENCODERS:
        return [ENCODERS[name]]
    try:
        cell, _ = cell_kind(name)
    except ValueError as error:
        others = ", ".join(map(repr, ENCODERS))
        raise ConfigError(f"{where}.encoder: {error}, or {others}") from None
    return [encoder, cell]


def look_up(table: Mapping[str, Any], dotted: str) -> Any:
    for key in dotted.split("."):
        table = table.get(key, {}) if isinstance(table, Mapping) else {}
    return table if table != {} else None


def _merge(into: Table, other: Mapping[str, Any]) -> None:
    for key, value in other.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = copy.deepcopy(value)


def _setting(text: str) -> tuple[str, Any]:
    key, sign, value = text.partition("=")
    if not sign or not key.strip():
        raise ConfigError(f"--set takes table.key=value, got {text!r}")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value.strip()


def _assign(content: Table, dotted: str, value: Any, where: str) -> None:
    table, _, key = dotted.partition(".")
    if not key:
        raise ConfigError(f"{where}: {dotted!r} is not of the form table.key")
    known(table, _TABLES, f"{where}: table")
    content.setdefault(table, {})[key] = value
