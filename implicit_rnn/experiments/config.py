"""Configurations: TOML files, profiles and settings from the command line, checked key by key.

What a table may hold is what the function or dataclass that it configures takes by keyword.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import itertools
import math
import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from implicit_rnn.cells import CELLS
from implicit_rnn.experiments.networks import DECODER, ENCODERS
from implicit_rnn.experiments.options import (
    ConfigError,
    Table,
    check_options,
    known,
    named,
    prefixed,
    table_of,
    tables,
)
from implicit_rnn.experiments.ranges import range_of
from implicit_rnn.experiments.registry import MODELS, TASKS
from implicit_rnn.models.encoder import cell_kind, encoder
from implicit_rnn.training import optimiser, recipe
from implicit_rnn.training import settings as training
from implicit_rnn.training.optimiser import OptimiserSettings
from implicit_rnn.training.parallel import ParallelSettings
from implicit_rnn.training.ranges import ANY, Range
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
        is a run of its own; `grid`, keys like `"task.bias"` with lists of values, each a run, or
        `"task.seed training.seed"`, which go together; `paper`.
      profile: which profile to apply.
      settings: `a.b=value` each, applied last; values are TOML, or plain words.
    """
    try:
        content = tomllib.loads(_text(Path(path)))
    except FileNotFoundError:
        raise ConfigError(f"no such file: {path}") from None
    except IsADirectoryError:
        raise ConfigError(f"{path} is a folder; a configuration is a .toml file") from None
    except RecursionError:
        raise ConfigError(f"{path}: its tables or lists are nested too deeply") from None
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"{path}: not TOML: {error}") from None
    return resolve(content, str(path), profile, settings)


def _text(path: Path) -> str:
    """A file of a reasonable size, perhaps with the mark that some editors begin one with."""
    with open(path, "rb") as file:
        content = file.read(_LONGEST + 1)
    if len(content) > _LONGEST:
        raise ConfigError(f"{path} has more than {_LONGEST:,} bytes: no configuration")
    return content.decode("utf-8-sig")


def resolve(
    content: Table, where: str, profile: str | None = None, settings: Sequence[str] = ()
) -> Experiment:
    """The runs that the content of a file describes."""
    content = copy.deepcopy(content)
    profiles = tables(content.pop("profiles", {}), f"{where}: profiles")
    if profile is not None:
        known(profile, profiles, f"{where}: profile")
        named(profile, f"{where}: profile")
        _merge(content, profiles[profile])
    overrides = dict(_setting(text) for text in settings)
    for key in content:
        known(key, ["title", "grid", "variants", "paper", *_TABLES], f"{where}: table")
    title, paper = _shown(content, where)
    grid = table_of(content.pop("grid", {}), f"{where}: grid")
    variants = tables(content.pop("variants", {}), f"{where}: variants")
    for key, values in grid.items():
        if not isinstance(values, list) or not values:
            raise ConfigError(f"{where}: grid.{key}: a list of values wanted, got {values!r}")
    choices = [
        [(key, value) for value in _chosen(key, values, overrides, where)]
        for key, values in grid.items()
    ]
    if math.prod(map(len, choices)) * max(len(variants), 1) > _MOST_RUNS:
        raise ConfigError(
            f"{where}: the grid makes more than {_MOST_RUNS:,} runs: shorten its lists"
        )
    for name, table in variants.items():
        taken = [key for key in overrides if look_up(table, key) is not None]
        if taken:
            raise ConfigError(
                f"--set {taken[0]} would undo what variant {name!r} is: choose variants with "
                f"--only, or change {where}"
            )
    runs: dict[str, Config] = {}
    labels: dict[str, Table] = {}
    for point in itertools.product(*choices):
        for variant, table in variants.items() or [("", {})]:
            own = copy.deepcopy(content)
            _merge(own, table)
            for keys, value in [*point, *overrides.items()]:
                for key in keys.split() or [keys]:
                    _assign(own, key, value, where)
            label = {key: value for key, value in point}
            name = "-".join([*(f"{k.split('.')[-1]}={v}" for k, v in label.items()), variant])
            name = name.strip("-")
            if label or variants:
                named(name, f"{where}: run")
            if name in runs:
                raise ConfigError(f"{where}: two runs are called {name!r}")
            runs[name] = _checked(own, where)
            labels[name] = label | ({"variant": variant} if variant else {})
    return Experiment(title, runs, labels, paper)


def _chosen(keys: str, values: list, overrides: Table, where: str) -> list:
    """The values of a key of the grid, or of several keys that go together.

    One value from the command line stands for all of them.
    """
    together = keys.split()
    given = {key: overrides.pop(key) for key in together if key in overrides}
    if not given:
        return values
    value = next(iter(given.values()))
    if given != dict.fromkeys(together, value):
        raise ConfigError(
            f"{where}: the grid gives {' and '.join(together)} one value: set all of them to it"
        )
    return [value]


def _shown(content: Table, where: str) -> tuple[str, list[Table]]:
    """Takes title and rows of numbers out of the content of a file: what is only shown."""
    stem = os.fsencode(Path(where).stem).decode("utf-8", "replace")
    title, paper = content.pop("title", stem), content.pop("paper", [])
    if not isinstance(title, str):
        raise ConfigError(f"{where}: title: a string wanted, got {title!r}")
    if not isinstance(paper, list):
        raise ConfigError(f"{where}: paper: a list of tables wanted, got {paper!r}")
    for number, row in enumerate(paper):
        for key, value in table_of(row, f"{where}: paper[{number}]").items():
            if not isinstance(value, str | int | float):
                raise ConfigError(
                    f"{where}: paper[{number}].{key}: a number or a string wanted, got {value!r}"
                )
    return title, paper


def read(path: Path) -> Config:
    """The configuration that a run folder keeps."""
    runs = load(path).runs
    if list(runs) != [""]:
        raise ConfigError(f"{path}: the configuration of one run wanted, without variants or grid")
    return runs[""]


_TABLES = ("task", "model", "solver", "optimiser", "training", "parallel")
_MOST_RUNS = 10_000
_LONGEST = 10_000_000  # bytes


def _checked(content: Table, where: str) -> Config:
    for key in content:
        known(key, _TABLES, f"{where}: table")
        table_of(content[key], f"{where}: {key}")
    for name in ("task", "model"):
        if "name" not in content.get(name, {}):
            raise ConfigError(f"{where}: {name}.name is missing")
    task, model = dict(content["task"]), dict(content["model"])
    known(task["name"], TASKS, f"{where}: task.name")
    known(model["name"], MODELS, f"{where}: model.name")
    takes = _takes(model, f"{where}: model")

    def settings(name: str, kind: Callable, ranges: Mapping[str, Range], leave: str = "") -> Any:
        options = check_options(
            content.get(name, {}),
            [kind],
            f"{where}: {name}",
            (leave,),
            lambda option: ranges.get(option, ANY),
        )
        try:
            return kind(**options)
        except ValueError as error:
            raise ConfigError(f"{where}: {name}: {error}") from None

    return Config(
        task=_named(task, {task["name"]: TASKS[task["name"]]}, f"{where}: task"),
        model=_named(model, takes, f"{where}: model", ("task", "hidden_size")),
        # A recipe's clip is that of the optimiser's table.
        solver=settings("solver", Recipe, recipe.RANGES, "clip"),
        optimiser=settings("optimiser", OptimiserSettings, optimiser.RANGES),
        training=settings("training", RunSettings, training.RANGES),
        parallel=settings("parallel", ParallelSettings, {}),
    )


def _named(table: Table, takes: Mapping[str, Callable], where: str, leave: tuple = ()) -> Table:
    name = table.pop("name")
    checked = check_options(
        table, takes.values(), where, ("name", "options", *leave), partial(range_of, [*takes])
    )
    return {"name": name} | checked


def _takes(model: Table, where: str) -> dict[str, Callable]:
    """What the model's table configures, by name: the model, its encoder, if any, their cells."""
    made = MODELS[model["name"]]
    parameters = inspect.signature(made).parameters
    takes: dict[str, Callable] = {model["name"]: made}
    if "cell" in parameters:
        name = str(model.get("cell", parameters["cell"].default))
        known(name, CELLS, f"{where}.cell")
        return takes | {name: CELLS[name]}
    if "encoder" not in parameters:
        return takes
    takes |= _reads(str(model.get("encoder", parameters["encoder"].default)), where)
    if "decoder" in parameters:
        writer = str(model.get("decoder", parameters["decoder"].default))
        known(writer, CELLS, f"{where}.decoder")
        takes[DECODER + writer] = prefixed(CELLS[writer], DECODER)
    return takes


def _reads(name: str, where: str) -> dict[str, Callable]:
    """What the options of an encoder configure."""
    if name in ENCODERS:
        return {name: ENCODERS[name]}
    try:
        cell, _ = cell_kind(name)
    except ValueError as error:
        others = ", ".join(map(repr, ENCODERS))
        raise ConfigError(f"{where}.encoder: {error}, or {others}") from None
    return {"encoder": encoder, name.removeprefix("bi") if name not in CELLS else name: cell}


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
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"--set takes text in UTF-8, got {text!r}") from None
    if not sign or not key.strip():
        raise ConfigError(f"--set takes table.key=value, got {text!r}")
    try:
        content = tomllib.loads(f"value = {value}")
    except (ValueError, RecursionError):
        content = {}
    # What is more than one value, or none, is meant as a word.
    return key.strip(), content["value"] if list(content) == ["value"] else value.strip()


def _assign(content: Table, dotted: str, value: Any, where: str) -> None:
    table, _, key = dotted.partition(".")
    if not key:
        raise ConfigError(f"{where}: {dotted!r} is not of the form table.key")
    known(table, _TABLES, f"{where}: table")
    table_of(content.setdefault(table, {}), f"{where}: {table}")[key] = value
