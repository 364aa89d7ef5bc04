"""Runs that learn hyperparameters: from the command line to the figures."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import numpy as np
import pytest

from implicit_rnn.cli import main
from implicit_rnn.experiments.config import load
from implicit_rnn.experiments.hyper.descent import by_name, from_names, values
from implicit_rnn.experiments.hyper.figures import plane
from implicit_rnn.training.folder import Records
from implicit_rnn.training.tables import dump

SMALL = {
    "title": "small",
    "task": {"name": "hyper", "train": 60, "held_out": 20, "minibatch": 20, "steps": 8},
    "model": {"name": "hyper_optimiser", "hidden": [5], "truncation": 4, "scale": 0.3},
    "optimiser": {"rate": 0.2, "schedule": "constant", "clip": 0.0},
    "training": {
        "updates": 5, "batch": 1, "log_every": 1, "evaluate_every": 5, "evaluate_batch": 1,
    },
    "grid": {"model.rule": ["neumann"]},
}  # fmt: skip


def meta_steps(folder: Path) -> list[dict]:
    return [row for row in Records(folder / "metrics.jsonl").read() if "step_loss" in row]


@pytest.mark.slow
def test_a_small_run_learns_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    config, output = tmp_path / "small.toml", tmp_path / "run"
    config.write_text(dump(SMALL))
    assert main(["train", str(config), "--output", str(output)]) == 0
    printed = capsys.readouterr().out
    assert "test loss" in printed
    assert {path.name for path in (output / "plots").iterdir()} == {
        "learning_updates.png", "learning_seconds.png", "meta_loss.png", "training_loss.png",
        "rates.png", "paths.png", "solver_steps.png", "solver_residuals.png",
    }  # fmt: skip
    rows = meta_steps(output / "rule=neumann")
    assert [row["update"] for row in rows] == [1, 2, 3, 4, 5]
    assert rows[-1]["loss"] < rows[0]["loss"]
    assert rows[0]["rate_weights_1"] == pytest.approx(np.exp(-1), rel=1e-6)
    result = json.loads((output / "rule=neumann" / "result.json").read_text())
    assert result["parameters"] == 8
    assert result["backward_steps"] == [4.0, 4.0]
    assert main(["train", str(config), "--output", str(output), "--resume", "--no-figures"]) == 0
    assert "is finished" in capsys.readouterr().out


def test_a_line_of_metrics_holds_the_hyperparameters() -> None:
    params = {
        name: {
            part: jax.numpy.asarray(np.random.default_rng(n).normal(size=3), np.float32)
            for part in ("weights", "biases")
        }
        for n, name in enumerate(("rate", "momentum", "decay"))
    }
    row = json.loads(json.dumps({k: float(v) for k, v in by_name(values(params)).items()}))
    again = from_names(row | {"loss": 1.0, "update": 3})
    assert set(again) == set(params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), again, params)


def test_the_plane_of_paths_keeps_their_distances_where_they_lie_in_one() -> None:
    rng = np.random.default_rng(0)
    flat = {"early": {"a": rng.normal(size=(6, 2)), "b": rng.normal(size=(5, 2))}}
    raised = np.linalg.qr(rng.normal(size=(9, 2)))[0].T
    seen = plane({"early": {name: points @ raised + 3 for name, points in flat["early"].items()}})
    for name, points in flat["early"].items():
        wanted = np.linalg.norm(points - points[0], axis=1)
        found = seen["early"][name]
        np.testing.assert_allclose(np.linalg.norm(found - found[0], axis=1), wanted, rtol=1e-9)


def test_every_profile_of_the_configuration_can_be_read(root: Path) -> None:
    path = root / "configs" / "hyper.toml"
    assert len(load(path, "paper").runs) == 4 * 2 * 4
    assert len(load(path, "rules").runs) == 8
    paper = load(path, "paper").runs["rule=neumann-steps=1000-truncation=50"]
    assert paper.model["hidden"] == (50, 50, 50)
    assert paper.optimiser.rate == 0.05


@pytest.mark.slow
def test_the_quick_profile_learns_by_every_rule(root: Path, tmp_path: Path) -> None:
    path = root / "configs" / "hyper.toml"
    command = ["train", str(path), "--profile", "quick", "--output", str(tmp_path / "run")]
    assert main(command) == 0
    for folder in (tmp_path / "run").glob("rule=*"):
        rows = meta_steps(folder)
        assert rows[-1]["loss"] < 0.15 * rows[0]["loss"], folder.name
