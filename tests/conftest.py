"""Settings and fixtures that all tests share."""

from __future__ import annotations

import os
import re
import sys
import types
from collections.abc import Callable
from pathlib import Path

import matplotlib
import pytest
from hypothesis import settings

matplotlib.use("Agg")

# Nearly all of the time of the tests is compilation, of programs that run once and on little data:
# without optimisation it takes a third of the time. Read when jax starts, here and in the processes
# that tests start; what is set already stays.
QUICK_COMPILATION = {
    "--xla_backend_optimization_level": "0",
    "--xla_llvm_disable_expensive_passes": "true",
    "--xla_cpu_use_fusion_emitters": "false",
}
_given = os.environ.get("XLA_FLAGS", "")
os.environ["XLA_FLAGS"] = " ".join(
    [_given, *(f"{key}={value}" for key, value in QUICK_COMPILATION.items() if key not in _given)]
).strip()

# Compilation makes the first example slow, and a failure must come back when the test is rerun.
settings.register_profile("default-here", deadline=None, max_examples=25, derandomize=True)
settings.load_profile("default-here")

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def root() -> Path:
    """The top of the repository."""
    return ROOT


@pytest.fixture
def run_blocks(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], dict]:
    """Executes the ```python blocks of a Markdown file, in one namespace, and returns that."""

    def run(path: Path) -> dict:
        text = path.read_text()
        # Records look for the module that they are defined in.
        module = types.ModuleType(path.stem)
        monkeypatch.setitem(sys.modules, path.stem, module)
        namespace = vars(module)
        for block in re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            # Blank lines in front make line numbers in a traceback those of the file.
            above = "\n" * text[: block.start(1)].count("\n")
            exec(compile(above + block[1], str(path), "exec", dont_inherit=True), namespace)
        return namespace

    return run
