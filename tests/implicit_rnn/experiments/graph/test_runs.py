"""Graph networks from the command line: what they learn, what is drawn, what the paper did."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from implicit_rnn.cli import main
from implicit_rnn.experiments.config import load
from implicit_rnn.sequence.equilibrium import RULES

FIGURES = {
    "learning_updates.png", "learning_seconds.png", "settling.png", "training_loss.png",
    "solver_steps.png", "solver_residuals.png",
}  # fmt: skip


def train(root: Path, output: Path, *options: str) -> dict[str, dict]:
    """Rows of the table of the quick profile, by variant."""
    command = ["train", str(root / "configs" / "graph.toml"), "--profile", "quick", *options]
    assert main([*command, "--output", str(output)]) == 0
    rows = json.loads((output / "table.json").read_text())["rows"]
    assert {path.name for path in (output / "plots").iterdir()} == FIGURES
    return {row["variant"]: row for row in rows}


def test_a_network_beats_logistic_regression_and_starts_warm(root: Path, tmp_path: Path) -> None:
    settings = ("training.updates=30", "training.evaluate_every=15", "task.components=8")
    chosen = [part for setting in settings for part in ("--set", setting)]
    rows = train(root, tmp_path, *chosen, "--only", "neumann", "logistic")
    assert rows["neumann"]["test error"] < 0.85 * rows["logistic"]["test error"]  # 30 updates
    assert rows["neumann"]["converged"] == 1
    first, last = map(float, rows["neumann"]["forward steps"].split("-"))
    assert last < 0.7 * first
    assert rows["neumann"]["backward steps"] == "5.0-5.0"


@pytest.mark.slow
def test_every_rule_learns_and_a_random_start_of_rbp_does_not(root: Path, tmp_path: Path) -> None:
    rows = train(root, tmp_path)
    alone = rows.pop("logistic")["test error"]
    assert rows.pop("rbp-uniform")["test error"] > 0.8 * alone
    assert set(rows) == set(RULES)
    for name, row in rows.items():
        assert row["test error"] < 0.7 * alone, name
        assert row["converged"] == 1, name


def test_profiles_are_those_of_the_paper(root: Path) -> None:
    path = root / "configs" / "graph.toml"
    for network, width in (("cora", 64), ("pubmed", 16)):
        runs = load(path, network).runs
        assert len(runs) == 10 * (len(RULES) + 2)
        for config in runs.values():
            task, model = config.task, config.model
            assert (task["network"], task["components"]) == (network, width)
            assert (task["split"], task["train"], task["valid"]) == ("random", 0.01, 0.49)
            if model["name"] == "graph":
                assert (model["hidden"], model["steps"], model["truncation"]) == (None, 100, 5)
    assert {config.task["split"] for config in load(path, "planetoid").runs.values()} == {
        "planetoid"
    }
    numbers = [row for row in load(path).paper if row["variant"] == "neumann"]
    assert [(row["task.network"], row["error"]) for row in numbers] == [
        ("cora", 0.5337), ("pubmed", 0.4644),
    ]  # fmt: skip
    published = load(root / "configs" / "graph_published.toml").runs["neumann"]
    assert (published.model["inputs"], published.model["normalise"]) == ("initial", "none")
    assert (published.optimiser.name, published.optimiser.rate) == ("momentum", 1e-3)
    assert published.training.updates == 2000
