"""Figures: they are written, whatever the traces hold."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from implicit_rnn.experiments import plots
from implicit_rnn.experiments.plots.style import few_ticks, look_of

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


def test_a_single_point_has_a_single_tick() -> None:
    from matplotlib.figure import Figure

    axes = Figure().add_subplot()
    axes.plot([250], [0.1], "o")
    few_ticks(axes, [np.array([250.0])])
    assert [label.get_text() for label in axes.get_xticklabels()] == ["250"]
    low, high = axes.get_xlim()
    assert low < 200 < 300 < high


def test_twelve_runs_look_different(tmp_path: Path) -> None:
    assert len({look_of(index) for index in range(12)}) == 12
    lines = {f"run {index}": ([0, 1], [index, 0]) for index in range(12)}
    path = plots.curves(lines, tmp_path / "figure.png", "A title", ("x", "y"))
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("count", [1, 2, 5])
def test_panels_of_lines_and_of_paths_make_a_png(count: int, tmp_path: Path) -> None:
    groups = {f"panel {n}": {"a": ([0, 1, 2], [1.0, 0.1, np.nan])} for n in range(count)}
    groups["panel 0"]["b"] = ([0, 1], [5.0, 0.02])
    lines = plots.panels(groups, tmp_path / "lines.png", "A title", ("x", "y"))
    places = np.random.default_rng(0).normal(size=(6, 2))
    paths = plots.paths(
        {name: {"a": places, "b": places + 1} for name in groups}, tmp_path / "paths.png", "Title"
    )
    for path in (lines, paths):
        assert path.read_bytes().startswith(b"\x89PNG")
