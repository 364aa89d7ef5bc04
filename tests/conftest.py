"""Settings and fixtures that all tests share."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import matplotlib
import pytest
from hypothesis import settings

matplotlib.use("Agg")

# Compilation makes the first example slow, and a failure must come back when the test is rerun.
settings.register_profile("default-here", deadline=None, max_examples=25, derandomize=True)
settings.load_profile("default-here")

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def root() -> Path:
    """The top of the repository."""
    return ROOT


@pytest.fixture(scope="session")
def run_blocks() -> Callable[[Path], dict]:
    """Executes the ```python blocks of a Markdown file, in one namespace, and returns that."""

    def run(path: Path) -> dict:
        text = path.read_text()
        namespace: dict = {"__name__": path.stem}
        for block in re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            # Blank lines in front make line numbers in a traceback those of the file.
            above = "\n" * text[: block.start(1)].count("\n")
            exec(compile(above + block[1], str(path), "exec", dont_inherit=True), namespace)
        return namespace

    return run
