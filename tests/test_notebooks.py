"""Notebooks run from top to bottom, and are kept with what they printed and drew."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from tests.notebooks import execute, paths

QUICK = {"IMPLICIT_RNN_QUICK": "1"}
every_notebook = pytest.mark.parametrize("path", paths(), ids=lambda path: path.stem)


def outputs(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [output for cell in cells for output in cell.outputs]


def test_there_are_notebooks() -> None:
    names = {path.stem for path in paths()}
    assert names == {
        "equilibrium_layer",
        "exercises",
        "flax_classifier",
        "hyperparameters",
        "own_network",
        "quickstart",
        "recurrent_backprop",
        "solvers",
        "tagging",
        "xrnn",
    }


# Trainings, and every solver, which are tested elsewhere as well.
LONG = (
    "hyperparameters", "own_network", "quickstart", "recurrent_backprop", "solvers", "tagging",
    "xrnn",
)  # fmt: skip


@pytest.mark.parametrize(
    "path",
    [pytest.param(p, marks=pytest.mark.slow if p.stem in LONG else []) for p in paths()],
    ids=lambda path: path.stem,
)
def test_a_notebook_runs(path: Path) -> None:
    found = outputs(execute(path, QUICK))
    assert not [output for output in found if output.get("name") == "stderr"], "a cell warned"


@every_notebook
def test_a_notebook_is_kept_with_its_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    kinds = {output.output_type for output in outputs(notebook)}
    assert "stream" in kinds
    assert "error" not in kinds
    assert any("image/png" in output.get("data", {}) for output in outputs(notebook))
    counts = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1)), "make notebooks runs them in order"
    assert path.stat().st_size < 600_000


@every_notebook
def test_a_notebook_begins_with_an_installation_for_colab(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    first = next(cell.source for cell in notebook.cells if cell.cell_type == "code")
    assert "REPOSITORY = " in first
    assert "%pip install" in first
