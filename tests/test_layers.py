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


# Each may import those before it; beside them are `spectral` and `nn`, of the library as well.
LAYERS = ("cells", "spectral", "sequence", "nn", "models", "training", "experiments", "cli")


@pytest.mark.parametrize("layer", LAYERS)
def test_no_layer_imports_one_above_it(root: Path, layer: str) -> None:
    above = {*LAYERS[LAYERS.index(layer) + 1 :]}
    own = root / "implicit_rnn" / layer
    trees = (
        modules(root, f"implicit_rnn/{layer}")
        if own.is_dir()
        else {layer: ast.parse(own.with_suffix(".py").read_text())}
    )
    for path, tree in trees.items():
        parts = [name.split(".") for name in imported(tree)]
        found = {part[1] for part in parts if part[0] == "implicit_rnn" and len(part) > 1}
        assert not found & above, path


def test_every_part_of_the_package_has_a_layer(root: Path) -> None:
    package = root / "implicit_rnn"
    files = {path.stem for path in package.glob("*.py")} - {"__init__"}
    assert files | {path.parent.name for path in package.glob("*/__init__.py")} == set(LAYERS)


SHARED = {"data", "plots"}  # folders of what all experiments use


def test_an_experiment_knows_no_other(root: Path) -> None:
    folders = {path.parent.name for path in root.glob("implicit_rnn/experiments/*/__init__.py")}
    own = folders - SHARED
    assert {"tagging", "walk"} <= own
    for name in own:
        for path, tree in modules(root, f"implicit_rnn/experiments/{name}").items():
            parts = [part.split(".") for part in imported(tree)]
            found = {part[2] for part in parts if part[:2] == ["implicit_rnn", "experiments"]}
            assert not found & (own - {name}), path


def child(program: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)


def test_importing_the_library_loads_no_more_than_it_needs() -> None:
    done = child(
        "import sys, implicit_rnn; heavy = ('matplotlib', 'orbax', 'flax', 'optax', 'rich'); "
        "loaded = [name for name in sys.modules if name.split('.')[0] in heavy]; "
        "loaded += [name for name in sys.modules if name.startswith('implicit_rnn.experiments')]; "
        "assert not loaded, loaded"
    )
    assert not done.returncode, done.stderr


def test_training_loads_neither_figures_nor_experiments() -> None:
    done = child(
        "import sys, implicit_rnn.training, implicit_rnn.models, implicit_rnn.nn; "
        "loaded = [name for name in sys.modules if name.split('.')[0] == 'matplotlib']; "
        "loaded += [name for name in sys.modules if name.startswith('implicit_rnn.experiments')]; "
        "assert not loaded, loaded"
    )
    assert not done.returncode, done.stderr


def test_parts_that_need_more_are_imported_when_named() -> None:
    done = child(
        "import implicit_rnn as library; library.models.hopfield, library.models.energy, "
        "library.experiments, library.nn, library.training, library.spectral; "
        "assert 'models' in dir(library); library.nothing"
    )
    assert "has no attribute 'nothing'" in done.stderr.splitlines()[-1], done.stderr


LINES, FUNCTION = 350, 80


def test_files_and_functions_are_short(root: Path) -> None:
    for path, tree in (modules(root, "implicit_rnn") | modules(root, "solvers")).items():
        assert len((root / path).read_text().splitlines()) <= LINES, path
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                assert (node.end_lineno or 0) - node.lineno < FUNCTION, f"{path}: {node.name}"


def test_every_iteration_runs_in_the_one_loop(root: Path) -> None:
    trees = modules(root, "solvers") | modules(root, "implicit_rnn")
    homes = {
        # As `mesh` types it, in the loop, in a line search, over groups of a batch, and for norms
        # whose squares are out of range.
        "while_loop": ["mesh", "iterate", "fixed_point/newton", "batch/rows", "space"],
        # The direct solves of bands.py and their kernels count their rows: no stop rule, nothing to
        # report. Truncated sweeps of a batch are so many, whatever they find.
        "fori_loop": ["bands", "kernels/sweep", "batch/truncated"],
    }
    for loop, names in homes.items():
        found = {path for path, tree in trees.items() if mentions(tree, {loop})}
        assert found == {f"solvers/{name}.py" for name in names}


def test_jaxopt_is_imported_in_one_bridge_at_most(root: Path) -> None:
    trees = modules(root, "solvers") | modules(root, "implicit_rnn")
    bridges = [
        path
        for path, tree in trees.items()
        if any(name.split(".")[0] == "jaxopt" for name in imported(tree))
    ]
    assert len(bridges) <= 1, bridges
