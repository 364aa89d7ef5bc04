"""Configurations: TOML files, profiles and settings from the command line, checked key by key.

What a table may hold is what the function or dataclass that it configures takes by keyword: its
signature is the schema. An unknown key is refused with the nearest right one.
"""

from __future__ import annotations

import copy
import dataclasses
import difflib
import inspect
import itertools
import json
import tomllib
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from implicit_rnn.cells import CELLS
from implicit_rnn.experiments.networks import DECODER, ENCODERS
from implicit_rnn.experiments.registry import MODELS, TASKS
from implicit_rnn.models.encoder import cell_kind, encoder
from implicit_rnn.training.optimiser import OptimiserSettings
from implicit_rnn.training.recipe import Recipe
from implicit_rnn.training.settings import TrainingSettings

Table = dict[str, Any]


class ConfigError(ValueError):
    """A configuration that cannot be used: what is wrong, where, and what would be right."""


@dataclasses.dataclass(frozen=True)
class Config:
    """A checked configuration of one run."""

    task: Table  # `name` and options of the task
    model: Table  # `name` and options of the model and of its encoder
    solver: Recipe
    optimiser: OptimiserSettings
    training: TrainingSettings

    def table(self) -> Table:
        """As nested tables, with every default: what a run folder keeps."""
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
      path: the file. Tables `task`, `model`, `solver`, `optimiser`, `training`; `profiles.NAME`
        with tables that replace some of their keys; `variants.NAME`, of which each is a run of its
        own; `grid`, keys like `"task.bias"` with lists of values, each a run; `paper`.
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
        _known(profile, profiles, f"{where}: profile")
        _merge(content, profiles[profile])
    overrides = dict(_setting(text) for text in settings)
    known = ["title", "grid", "variants", "paper", *_TABLES]
    for key in content:
        _known(key, known, f"{where}: table")
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


def check_options(
    table: Mapping[str, Any], takes: Iterable[Callable], where: str, leave: Iterable[str] = ()
) -> Table:
    """The table with defaults filled in, or a `ConfigError` for what the callables do not take."""
    allowed: dict[str, inspect.Parameter] = {}
    hints: dict[str, Any] = {}
    for function in takes:
        target = function.__init__ if inspect.isclass(function) else function
        hints |= typing.get_type_hints(target)
        for parameter in inspect.signature(target).parameters.values():
            if parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD):
                allowed.setdefault(parameter.name, parameter)
    for name in ("self", *leave):
        allowed.pop(name, None)
    for key, value in table.items():
        _known(key, allowed, f"{where}: key")
        if not _fits(value, hints.get(key, Any)):
            raise ConfigError(
                f"{where}.{key}: {_words(hints[key])} wanted, got {value!r} "
                f"({type(value).__name__})"
            )
    missing = [k for k, p in allowed.items() if p.default is p.empty and k not in table]
    if missing:
        raise ConfigError(f"{where}: {missing[0]!r} is missing")
    defaults = {key: p.default for key, p in allowed.items() if p.default is not p.empty}
    given = {k: tuple(v) if isinstance(v, list) else v for k, v in table.items()}
    return defaults | given


def dump(table: Mapping[str, Any]) -> str:
    """Nested tables as TOML."""
    lines: list[str] = []

    def write(part: Mapping[str, Any], path: tuple[str, ...]) -> None:
        plain = {k: v for k, v in part.items() if not isinstance(v, Mapping) and v is not None}
        if path and (plain or not part):
            lines.append(f"[{'.'.join(path)}]")
        lines.extend(f"{_key(key)} = {_value(value)}" for key, value in plain.items())
        if plain:
            lines.append("")
        for key, value in part.items():
            if isinstance(value, Mapping):
                write(value, (*path, _key(key)))

    write(table, ())
    return "\n".join(lines)


_TABLES = ("task", "model", "solver", "optimiser", "training")


def _checked(content: Table, where: str) -> Config:
    for key in content:
        _known(key, _TABLES, f"{where}: table")
    for name in ("task", "model"):
        if "name" not in content.get(name, {}):
            raise ConfigError(f"{where}: {name}.name is missing")
    task, model = dict(content["task"]), dict(content["model"])
    _known(task["name"], TASKS, f"{where}: task.name")
    _known(model["name"], MODELS, f"{where}: model.name")
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
        training=settings("training", TrainingSettings),
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
        _known(name, CELLS, f"{where}.cell")
        return [made, CELLS[name]]
    if "encoder" not in parameters:
        return [made]
    takes = [made, *_reads(str(model.get("encoder", parameters["encoder"].default)), where)]
    if "decoder" in parameters:
        writer = str(model.get("decoder", parameters["decoder"].default))
        _known(writer, CELLS, f"{where}.decoder")
        takes.append(_prefixed(CELLS[writer], DECODER))
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


def _prefixed(function: Callable, prefix: str) -> Callable:
    """What takes the keywords of a function, with a prefix before each name."""

    def taking(**options: Any) -> Any:
        return function(**{key.removeprefix(prefix): value for key, value in options.items()})

    known, hints = inspect.signature(function), typing.get_type_hints(function)
    own = [p for p in known.parameters.values() if p.kind == p.KEYWORD_ONLY]
    renamed = [p.replace(name=prefix + p.name) for p in own]
    taking.__signature__ = known.replace(parameters=renamed)  # type: ignore[attr-defined]
    taking.__annotations__ = {prefix + name: hint for name, hint in hints.items()}
    return taking


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
    _known(table, _TABLES, f"{where}: table")
    content.setdefault(table, {})[key] = value


def _known(key: str, known: Iterable[str], what: str) -> None:
    names = sorted(known)
    if key in names:
        return
    near = difflib.get_close_matches(str(key), names, 1, 0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(names) or 'none'}"
    raise ConfigError(f"{what} {key!r} is unknown; {hint}")


def _fits(value: Any, hint: Any) -> bool:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any or isinstance(hint, str):
        return True
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, option) for option in inner)
    if origin is typing.Literal:
        return value in inner
    if origin in (tuple, list, Sequence):
        item = inner[0] if inner else Any
        return isinstance(value, list | tuple) and all(_fits(v, item) for v in value)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if hint is type(None):
        return value is None
    return isinstance(value, hint) if inspect.isclass(hint) else True


def _words(hint: Any) -> str:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return "one of " + ", ".join(map(repr, inner))
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_words(option) for option in inner if option is not type(None))
    if origin in (tuple, list, Sequence):
        return "a list of " + _words(inner[0])
    words = {int: "an integer", float: "a number", str: "a string", bool: "true or false"}
    return words.get(hint, str(hint))


def _key(key: str) -> str:
    return key if key.replace("_", "").replace("-", "").isalnum() else json.dumps(key)


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    return repr(value) if isinstance(value, float) else json.dumps(value)
