"""The architecture: which way imports point, and where loops and jaxopt may be."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


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


@pytest.mark.parametrize(
    ("below", "above"),
    [
        ("cells", {"sequence", "models", "training", "experiments"}),
        ("sequence", {"models", "training", "experiments"}),
        ("models", {"training", "experiments"}),
    ],
)
def test_no_layer_imports_one_above_it(root: Path, below: str, above: set[str]) -> None:
    for path, tree in modules(root, f"implicit_rnn/{below}").items():
        parts = [name.split(".") for name in imported(tree)]
        found = {part[1] for part in parts if part[0] == "implicit_rnn" and len(part) > 1}
        assert not found & above, path


def test_parts_that_need_more_are_imported_when_named() -> None:
    program = (
        "import sys, implicit_rnn as library; assert 'flax' not in sys.modules; "
        "library.models.hopfield, library.models.energy, library.experiments, library.nn, "
        "library.training, library.spectral; assert 'models' in dir(library); "
        "library.nothing"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "has no attribute 'nothing'" in done.stderr.splitlines()[-1], done.stderr


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
