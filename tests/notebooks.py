"""Executes notebooks: `python -m tests.notebooks [NAME ...]` runs them and saves their outputs."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[1] / "notebooks"


def paths() -> list[Path]:
    """Every notebook there is."""
    return sorted(FOLDER.glob("*.ipynb"))


def execute(path: Path, environment: Mapping[str, str]) -> nbformat.NotebookNode:
    """The notebook with fresh outputs; a cell that raises ends it with its error."""
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(path.parent)}}
    client = NotebookClient(
        notebook, timeout=1800, resources=resources, record_timing=False, coalesce_streams=True
    )
    return client.execute(env={**os.environ, **environment})


if __name__ == "__main__":
    chosen = sys.argv[1:] or [path.stem for path in paths()]
    for path in (FOLDER / f"{name}.ipynb" for name in chosen):
        print(path, flush=True)
        nbformat.write(execute(path, {}), path)
