"""The reference: a page for every public namespace, a section for every public name.

What is public is what `__all__` lists or, in a module without it, what the module itself
defines under a name without an underscore. A public name without a docstring is a gap, and so is
a method of a public class, unless it does what that of its base class says: `pages` lists gaps,
and the build refuses them.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import inspect
import re
from pathlib import Path

import griffe

ROOT = Path(__file__).parents[2]
# In this order: a name that several have is described where it comes first.
NAMESPACES = (
    "implicit_rnn", "implicit_rnn.cells", "implicit_rnn.models", "implicit_rnn.nn",
    "implicit_rnn.spectral", "implicit_rnn.training",
    "solvers", "solvers.linear", "solvers.adjoint", "solvers.batch", "solvers.bands",
    "solvers.diagnose", "solvers.penalties", "solvers.jaxopt_bridge",
)  # fmt: skip
# Described where configurations choose from them.
REGISTRIES = {"Tasks": "TASKS", "Models": "MODELS"}


_INDEX = """Every public name of `implicit_rnn` and `solvers`. Names in code lead to their
descriptions, here and in the guides; the search knows all of them."""
_CHOICES = "[Tasks and models](experiments.md), and the [command line](command_line.md)."
_OPTIONS = """What a [configuration](../training.md#a-configuration) chooses from: options of a
table are arguments of the function that its name stands for."""


@functools.cache
def packages() -> dict[str, griffe.Object]:
    """Both packages, read without being imported."""
    loader = griffe.GriffeLoader(search_paths=[ROOT], docstring_parser=griffe.Parser.google)
    found = {name: loader.load(name) for name in ("solvers", "implicit_rnn")}
    loader.resolve_aliases(external=False)
    return found


def module_of(namespace: str) -> griffe.Object:
    """A namespace as it was read."""
    found = packages()[namespace.split(".")[0]]
    for part in namespace.split(".")[1:]:
        found = found.members[part]
    return found


@functools.cache
def members(namespace: str) -> dict[str, griffe.Object]:
    """The public names of a namespace, without the namespaces that have pages of their own.

    What a name stands for is asked of the imported module: `solvers.fixed_point` is a function
    there, and a folder of the same name on disk.
    """
    module, read = importlib.import_module(namespace), module_of(namespace)
    names = getattr(module, "__all__", None) or [
        name
        for name, found in read.members.items()
        if not name.startswith("_")
        and not found.is_alias
        and not found.is_module
        and not (found.is_attribute and not found.docstring)
    ]
    found = {}
    for name in sorted(names, key=lambda name: (name.lower(), name)):
        thing = getattr(module, name)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            found[name] = module_of(thing.__module__).members[thing.__qualname__]
        elif not inspect.ismodule(thing):
            member = read.members[name]
            found[name] = member.final_target if member.is_alias else member
    return found


@functools.cache
def homes() -> dict[str, str]:
    """Every public name in full, and the path under which it is described."""
    return {
        f"{namespace}.{name}": obj.path
        for namespace in NAMESPACES
        for name, obj in members(namespace).items()
    }


def navigation() -> list[dict[str, str]]:
    """Entries for the reference's part of the navigation."""
    entries = [{name: f"reference/{name}.md"} for name in NAMESPACES]
    return [*entries, {"Tasks and models": "reference/experiments.md"},
            {"Command line": "reference/command_line.md"}]  # fmt: skip


def pages() -> tuple[list[str], dict[str, str]]:
    """The gaps, and every page of the reference as Markdown."""
    problems: list[str] = []
    described: set[str] = set()
    made = {"reference/index.md": _index()}
    for namespace in NAMESPACES:
        found = members(namespace)
        lines = [f"# {namespace}", "", _text(module_of(namespace)), "", *_table(found), ""]
        for name, obj in found.items():
            full = f"{namespace}.{name}"
            problems += _gaps(full, obj)
            if obj.path not in described:  # else where it comes first
                described.add(obj.path)
                options = f"    options: {{heading: {full}, toc_label: {name}}}"
                lines += [f"::: {obj.path}", options, ""]
        made[f"reference/{namespace}.md"] = "\n".join(lines)
    made["reference/experiments.md"] = _experiments()
    made["reference/command_line.md"] = _command_line()
    return problems, made


def _text(obj: griffe.Object) -> str:
    return obj.docstring.value if obj.docstring else ""


def _summary(obj: griffe.Object) -> str:
    """The first sentence of a docstring, for a cell of a table."""
    first = _text(obj).partition("\n\n")[0].replace("\n", " ")
    return re.split(r"(?<=[.])\s", first, maxsplit=1)[0].replace("|", "\\|")


def _table(found: dict[str, griffe.Object]) -> list[str]:
    rows = [f"| [`{name}`][{obj.path}] | {_summary(obj)} |" for name, obj in found.items()]
    return ["| name | what it is |", "| --- | --- |", *rows]


def _index() -> str:
    lines = ["# Reference", "", _INDEX, ""]
    for namespace in NAMESPACES:
        table = _table(members(namespace))
        lines += [f"## [{namespace}]({namespace}.md)", "", *table, ""]
    return "\n".join([*lines, "## What configurations choose from", "", _CHOICES, ""])


def _gaps(full: str, obj: griffe.Object) -> list[str]:
    """What of a public name is not described."""
    if not obj.docstring:
        return [f"{full} has no docstring ({obj.relative_filepath}:{obj.lineno})"]
    if not obj.is_class:
        return []
    inherited = {name for base in obj.mro() for name in base.members}
    return [
        f"{full}.{name} has no docstring ({obj.relative_filepath}:{member.lineno})"
        for name, member in obj.members.items()
        if member.is_function
        and not member.docstring
        and not name.startswith("_")
        and name not in inherited
    ]


def _experiments() -> str:
    from implicit_rnn.experiments import registry

    lines = ["# Tasks and models", "", _OPTIONS, ""]
    for title, name in REGISTRIES.items():
        lines += [f"## {title}", ""]
        for key, function in getattr(registry, name).items():
            lines += [f"### `{key}`", "", f"::: {function.__module__}.{function.__name__}",
                      "    options:", "      heading_level: 4", ""]  # fmt: skip
    return "\n".join(lines)


def _command_line() -> str:
    from implicit_rnn.cli import parser

    root = parser()
    lines = ["# Command line", "", "```text", root.format_help().rstrip(), "```", ""]
    for action in root._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, command in action.choices.items():
                lines += [f"## {name}", "", "```text", command.format_help().rstrip(), "```", ""]
    return "\n".join(lines)
