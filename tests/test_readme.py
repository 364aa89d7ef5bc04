"""The example that a newcomer copies first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


def test_the_example_in_the_readme_runs_and_converges(
    root: Path, run_blocks: Callable[[Path], dict], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace = run_blocks(root / "README.md")
    assert bool(namespace["info"].converged.all())
    assert float(namespace["backward"].residual) < 1e-4
    assert 0 <= namespace["result"]["test"]["error"] <= 0.5
    assert (tmp_path / "runs" / "mine" / "result.json").exists()
