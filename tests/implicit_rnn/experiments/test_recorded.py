"""Figures of recorded results: what makes a panel, what a line, and what is drawn at all."""

from __future__ import annotations

import json

import numpy as np
import pytest

from implicit_rnn.cli import main
from implicit_rnn.experiments import plots, recorded


def run(error: float, by_length: dict[int, float] | None = None) -> dict:
    found = {
        "test": {"error": error, "loss": 9.0},
        "curve": {"update": [10, 20], "seconds": [1.0, 2.5], "valid_error": [0.5, error]},
    }
    parts = {f"length {n}": {"error": value} for n, value in (by_length or {}).items()}
    return found | ({"parts": parts | {"domain": {"error": 1.0}}} if parts else {})


@pytest.fixture
def seen(monkeypatch):
    """What is given to the two kinds of figures, by file."""
    found = {}

    def keep(lines, path, title, labels):
        found[path.name] = (lines, labels)
        return path

    monkeypatch.setattr(plots, "panels", keep)
    monkeypatch.setattr(plots, "curves", keep)
    return found


def test_seeds_share_a_line_and_the_grid_makes_panels(tmp_path, seen):
    labels, runs = {}, {}
    for puzzle in ("key", "marks"):
        for variant in ("igru", "bilstm"):
            for seed in (0, 1):
                name = f"{puzzle}-{variant}-{seed}"
                labels[name] = {"training.seed": seed, "task.puzzle": puzzle, "variant": variant}
                runs[name] = run(0.1 + 0.2 * seed, {40: 0.4 * seed, 8: 0.2})
    path = tmp_path / "passes.json"
    path.write_text(json.dumps({"title": "t", "labels": labels, "runs": runs}))
    recorded.draw(path, tmp_path)
    assert set(seen) == {"passes_updates.png", "passes_seconds.png", "passes_lengths.png"}
    panels, axes = seen["passes_lengths.png"]
    assert axes == ("length", "test error")
    assert {name: [*lines] for name, lines in panels.items()} == {
        "key": ["igru", "bilstm"], "marks": ["igru", "bilstm"],
    }  # fmt: skip
    np.testing.assert_allclose(panels["key"]["igru"], [[8, 40], [0.2, 0.2]])
    panels, _ = seen["passes_seconds.png"]
    np.testing.assert_allclose(panels["marks"]["bilstm"], [[1, 2.5], [0.5, 0.2]])


def test_one_panel_and_runs_without_a_curve(tmp_path, seen):
    runs = {"igru": run(0.1), "old": {"test": {"error": 0.3}}}
    labels = {name: {"variant": name} for name in runs}
    path = tmp_path / "time.json"
    path.write_text(json.dumps({"title": "t", "labels": labels, "runs": runs}))
    recorded.draw(path, tmp_path)
    assert set(seen) == {"time_updates.png", "time_seconds.png"}
    lines, axes = seen["time_seconds.png"]
    assert [*lines] == ["igru"]
    assert axes == ("seconds of training", "validation error")


def test_the_command_draws_a_file(tmp_path, capsys):
    path, out = tmp_path / "time.json", tmp_path / "images"
    content = {"title": "t", "labels": {"igru": {"variant": "igru"}}, "runs": {"igru": run(0.1)}}
    path.write_text(json.dumps(content))
    assert main(["plot", str(path), "--output", str(out)]) == 0
    assert (out / "time_seconds.png").stat().st_size > 1000
    path.write_text(json.dumps({"title": "t", "rows": []}))
    assert main(["plot", str(path)]) == 1
    assert "record the experiment again" in capsys.readouterr().err
