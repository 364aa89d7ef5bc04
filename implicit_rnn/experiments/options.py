"""Options checked against what takes them: the signature of a function is the schema.

An unknown key is refused with the nearest right one.
"""

from __future__ import annotations

import difflib
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from implicit_rnn.training.folder import LOCKS
from implicit_rnn.training.ranges import ANY, Range, check_number

Table = dict[str, Any]

# What a run, or a profile, may be called: it becomes a folder.
_LONGEST = 200  # bytes
_TAKEN = ("plots", "checkpoints", "events", "profile", "translations", *LOCKS)


class ConfigError(ValueError):
    """A configuration that cannot be used: what is wrong, where, and what would be right."""


def check_options(
    table: Mapping[str, Any],
    takes: Iterable[Callable],
    where: str,
    leave: Iterable[str] = (),
    range_of: Callable[[str], Range] = lambda option: ANY,
) -> Table:
    """The table with defaults filled in, or a `ConfigError` for what the callables do not take.

    Args:
      table: options by name.
      takes: functions or records that are to be given them.
      where: what messages begin with.
      leave: what the callables take from elsewhere.
      range_of: by an option's name, which numbers it may be.
    """
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
        known(key, allowed, f"{where}: key")
        if not _fits(value, hints.get(key, Any)):
            raise ConfigError(
                f"{where}.{key}: {_words(hints[key])} wanted, got {value!r} "
                f"({type(value).__name__})"
            )
        try:
            check_number(f"{where}.{key}", value, range_of(key))
        except ValueError as error:
            raise ConfigError(str(error)) from None
    missing = [k for k, p in allowed.items() if p.default is p.empty and k not in table]
    if missing:
        raise ConfigError(f"{where}: {missing[0]!r} is missing")
    defaults = {key: p.default for key, p in allowed.items() if p.default is not p.empty}
    given = {k: tuple(v) if isinstance(v, list) else v for k, v in table.items()}
    return defaults | given


def named(name: str, what: str) -> str:
    """A name out of a configuration, where it is one: no path, and nothing a folder has already."""
    odd = [character for character in name if character in "/\\" or not character.isprintable()]
    if odd or not name or name.startswith((".", "~")) or name != name.strip():
        raise ConfigError(
            f"{what} {name!r} is no name: printable characters wanted, none of them / or \\, the "
            "first no . or ~, no blanks at either end"
        )
    if len(name.encode()) > _LONGEST:
        raise ConfigError(f"{what} {name[:40]!r}... is too long: at most {_LONGEST} bytes wanted")
    if name in _TAKEN or name.endswith((".json", ".jsonl", ".toml")):
        raise ConfigError(
            f"{what} {name!r} is what a file of the results is called: choose another"
        )
    return name


def tables(value: Any, what: str) -> Table:
    """A table, all of whose entries are tables."""
    for name, entry in table_of(value, what).items():
        table_of(entry, f"{what}.{name}")
    return value


def table_of(value: Any, what: str) -> Table:
    """A table, or a `ConfigError`."""
    if not isinstance(value, dict):
        raise ConfigError(f"{what}: a table wanted, got {value!r}")
    return value


def known(key: str, choices: Iterable[str], what: str) -> None:
    """Refuses a key that is none of the choices."""
    names = sorted(choices)
    if key in names:
        return
    near = difflib.get_close_matches(str(key), names, 1, 0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(names) or 'none'}"
    raise ConfigError(f"{what} {key!r} is unknown; {hint}")


def prefixed(function: Callable, prefix: str) -> Callable:
    """What takes the keywords of a function, with a prefix before each name."""

    def taking(**options: Any) -> Any:
        return function(**{key.removeprefix(prefix): value for key, value in options.items()})

    known, hints = inspect.signature(function), typing.get_type_hints(function)
    own = [p for p in known.parameters.values() if p.kind == p.KEYWORD_ONLY]
    renamed = [p.replace(name=prefix + p.name) for p in own]
    taking.__signature__ = known.replace(parameters=renamed)  # type: ignore[attr-defined]
    taking.__annotations__ = {prefix + name: hint for name, hint in hints.items()}
    return taking


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
        # Of these, what a configuration can say: no object of a class.
        return " or ".join(_words(option) for option in inner if _words(option) != str(option))
    if origin in (tuple, list, Sequence):
        return "a list of " + _words(inner[0])
    words = {int: "an integer", float: "a number", str: "a string", bool: "true or false"}
    return words.get(hint, str(hint))
