"""Associative memories from the command line: a verdict in the table, and figures."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from implicit_rnn.cli import main
from implicit_rnn.experiments import plots
from implicit_rnn.experiments.config import load
from implicit_rnn.experiments.hopfield.figures import recall
from implicit_rnn.models.hopfield import hopfield

RULES = ["bptt", "tbptt", "rbp", "cg_rbp", "neumann"]


def train(root: Path, output: Path, *settings: str, only: tuple[str, ...] = ("*",)) -> list[dict]:
    """Rows of the table of the quick profile."""
    chosen = [part for setting in settings for part in ("--set", setting)]
    command = ["train", str(root / "configs" / "hopfield.toml"), "--profile", "quick", *chosen]
    assert main([*command, "--only", *only, "--output", str(output)]) == 0
    return json.loads((output / "table.json").read_text())["rows"]


def test_a_run_is_judged_and_drawn(root: Path, tmp_path: Path) -> None:
    settings = ("training.updates=3", "training.evaluate_every=2", "model.hidden=3")
    rows = train(root, tmp_path, *settings, only=("rule=rbp", "rule=tbptt"))
    assert [(row["model.rule"], row["success"]) for row in rows] == [("tbptt", 0), ("rbp", 0)]
    result = json.loads((tmp_path / "rule=rbp" / "result.json").read_text())
    assert result["verdict"] == {"success": 0.0}
    assert result["backward_steps"] == [4.0, 4.0]
    lines = (tmp_path / "rule=rbp" / "metrics.jsonl").read_text().splitlines()
    assert sum("valid_loss" not in line for line in lines) == 3  # one for every update
    figures = {path.name for path in (tmp_path / "plots").iterdir()}
    assert figures == {
        "learning_updates.png", "learning_seconds.png", "memory.png", "settling.png",
        "recalled.png",
    }  # fmt: skip


def test_profiles_are_those_of_the_paper(root: Path) -> None:
    path = root / "configs" / "hopfield.toml"
    paper = load(path, "paper")
    assert [config.model["rule"] for config in paper.runs.values()] == RULES
    for config in paper.runs.values():
        assert config.task["images"] == "mnist"
        model = config.model
        assert (model["hidden"], model["steps"], model["truncation"]) == (1024, 50, 20)
        assert (model["time_constant"], model["gain"], model["scale"]) == (1.0, 0.5, 1e-3)
        assert (config.optimiser.name, config.optimiser.rate) == ("adam", 1e-3)
    cells = {
        (config.model["rule"], config.model["truncation"])
        for config in load(path, "paper_table").runs.values()
    }
    assert len(cells) == 12
    numbers = [row for row in load(path).paper if row["model.rule"] == "rbp"]
    assert [row["success"] for row in numbers] == [0.01, 0.04, 0.99]


def test_what_is_recalled_settles(tmp_path: Path) -> None:
    model = hopfield(4, 3)
    rng = np.random.default_rng(0)
    params = {"halves": 0.3 * rng.normal(size=(11, 11)).astype(np.float32)}
    observed = rng.integers(0, 2, (5, 4)).astype(np.float32)
    found = recall(model, params, observed, 30)
    states = np.asarray(model.settle(params, observed)[0])
    np.testing.assert_array_equal(found.images, states[:, 3:] > 0.5)
    first = np.linalg.norm(model.trajectory(params, observed[0], 1)[1])
    assert found.differences[0] == pytest.approx(first, rel=0.5)
    assert found.differences[-1] < 1e-4 * found.differences[0]
    rows = {"few": found.images[:2].reshape(-1, 2, 2), "more": np.zeros((5, 2, 2))}
    path = plots.gallery(rows, tmp_path / "gallery.png", "A title")
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_all_rules_but_one_store_the_digits(root: Path, tmp_path: Path) -> None:
    """As in figure 1 of the 2018 paper: RBP from uniform draws explodes, all others agree."""
    rows = {row["model.rule"]: row for row in train(root, tmp_path)}
    assert list(rows) == RULES
    for rule, row in rows.items():
        assert row["success"] == (rule != "rbp")
        assert row["test error"] > 0.25 if rule == "rbp" else row["test error"] < 0.12
