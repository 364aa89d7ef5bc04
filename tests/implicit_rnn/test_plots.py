"""Figures: they are written, whatever the traces hold."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from implicit_rnn import plots

DECAY = np.exp(-np.arange(30.0))


@pytest.mark.parametrize(
    "traces",
    [
        {},
        {"nothing": [np.nan, np.inf, 0.0]},
        {"one point": [1.0]},
        {"same": DECAY, "also": DECAY, "shorter": DECAY[:10]},
        {f"line {index}": DECAY ** (0.1 * index) for index in range(12)},
    ],
    ids=["none", "nothing finite", "one point", "coinciding", "more than colours"],
)
def test_any_traces_make_a_png(traces: dict, tmp_path: Path) -> None:
    path = plots.convergence(traces, tmp_path / "made" / "figure.png", "A title")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_twelve_runs_look_different(tmp_path: Path) -> None:
    assert len({plots._look(index) for index in range(12)}) == 12
    lines = {f"run {index}": ([0, 1], [index, 0]) for index in range(12)}
    path = plots.curves(lines, tmp_path / "figure.png", "A title", ("x", "y"))
    assert path.read_bytes().startswith(b"\x89PNG")
