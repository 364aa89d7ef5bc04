"""The architecture: which way imports point, and where loops and jaxopt may be."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path


def modules(root: Path, package: str) -> dict[str, ast.Module]:
    files = sorted((root / package).rglob("*.py"))
    return {path.relative_to(root).as_posix(): ast.parse(path.read_text()) for path in files}


def imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def mentions(tree: ast.Module, names: set[str]) -> bool:
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return bool(names & (used | {name.rsplit(".", 1)[-1] for name in imported(tree)}))


def test_solvers_know_nothing_of_networks(root: Path) -> None:
    for path, tree in modules(root, "solvers").items():
        assert not [n for n in imported(tree) if n.split(".")[0] == "implicit_rnn"], path


def test_every_iteration_runs_in_the_one_loop(root: Path) -> None:
    trees = modules(root, "solvers") | modules(root, "implicit_rnn")
    # The direct solves of bands.py count their rows: no stop rule, nothing to report.
    for loop, home in (("while_loop", "solvers/iterate.py"), ("fori_loop", "solvers/bands.py")):
        assert [path for path, tree in trees.items() if mentions(tree, {loop})] == [home]


def test_jaxopt_is_imported_in_one_bridge_at_most(root: Path) -> None:
    trees = modules(root, "solvers") | modules(root, "implicit_rnn")
    bridges = [
        path
        for path, tree in trees.items()
        if any(name.split(".")[0] == "jaxopt" for name in imported(tree))
    ]
    assert len(bridges) <= 1, bridges
