"""Pixels and music from a configuration to a table and pictures."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import pytest

from implicit_rnn.cli import main
from implicit_rnn.experiments.config import load, resolve
from implicit_rnn.experiments.options import ConfigError
from implicit_rnn.experiments.registry import build
from tests.implicit_rnn.experiments.problems import trained

VARIANTS = {
    "pixels": ["xrnn", "xrnn-radam", "lstm", "gru"],
    "music": ["xrnn", "lstm", "gru", "tcn"],
}


@pytest.mark.slow
def test_pixels_are_classified_and_drawn(tmp_path: Path, capsys):
    content = {
        "task": {"name": "pixels", "pool": 4, "train": 24, "valid": 8, "test": 10},
        "model": {"name": "classifier", "encoder": "xrnn", "hidden": 2, "pooling": "mean"},
    }
    result = trained(content, tmp_path)
    assert 0 <= result["test"]["error"] <= 1
    assert "test error" in capsys.readouterr().out
    pictures = {path.name for path in (tmp_path / "out" / "plots").iterdir()}
    assert pictures == {"learning_updates.png", "learning_seconds.png", "recursion.png"}


@pytest.mark.parametrize("name", list(VARIANTS))
def test_variants_have_about_as_many_parameters(root: Path, name: str):
    runs = load(root / "configs" / f"{name}.toml").runs
    assert list(runs) == VARIANTS[name]
    sizes = []
    for config in runs.values():
        _, model = build(config.task, config.model)
        shapes = jax.eval_shape(model.init, jax.random.key(0))
        sizes.append(sum(leaf.size for leaf in jax.tree.leaves(shapes)))
        assert config.training == next(iter(runs.values())).training
    assert max(sizes) < 1.05 * min(sizes)


def test_profiles_stand_beside_the_papers_numbers(root: Path):
    pixels = load(root / "configs" / "pixels.toml", "cifar")
    assert all(config.task["images"] == "cifar10_subset" for config in pixels.runs.values())
    assert "subset" in pixels.title
    rows = {(row["variant"], row["task.images"]): row for row in pixels.paper}
    assert rows[("xrnn", "mnist")]["error"] == pytest.approx(1 - 0.9904)
    # A subset is not beside the whole set without a word.
    whole = rows[("xrnn", "cifar10_subset")]
    assert whole["error with all 50,000 images"] == pytest.approx(1 - 0.7301)
    assert "error" not in whole
    music = load(root / "configs" / "music.toml", "piano")
    numbers = {(row["variant"], row["task.music"]): row["nll"] for row in music.paper}
    assert numbers[("xrnn", "piano")] == 7.49
    assert numbers[("tcn", "jsb")] == 8.13
    assert numbers[("gru", "nottingham")] == 3.13
    for config in music.runs.values():
        assert (config.task["music"], config.task["window"] > 0) == ("piano", True)
    assert music.runs["xrnn"].model["depth"] == 2


def test_options_of_a_tcn_are_checked():
    content = {
        "task": {"name": "music"},
        "model": {"name": "frames", "encoder": "tcn", "kernel": 3},
    }
    assert resolve(content, "small").runs[""].model["levels"] == 4
    with pytest.raises(ConfigError, match="key 'kernels' is unknown; did you mean 'kernel'"):
        resolve({**content, "model": content["model"] | {"kernels": 3}}, "small")
    with pytest.raises(ConfigError, match=r"unknown encoder 'tnc'.*, or 'tcn'"):
        resolve({**content, "model": {"name": "frames", "encoder": "tnc"}}, "small")


@pytest.mark.slow
@pytest.mark.parametrize("name", list(VARIANTS))
def test_quick_profiles_learn(root: Path, tmp_path: Path, name: str):
    config = str(root / "configs" / f"{name}.toml")
    assert main(["train", config, "--profile", "quick", "--output", str(tmp_path)]) == 0
    rows = json.loads((tmp_path / "table.json").read_text())["rows"]
    assert [row["variant"] for row in rows] == VARIANTS[name]
    for row in rows:
        if name == "pixels":
            assert row["test error"] < 0.8  # one in ten is right by chance
        else:
            assert row["test nll"] < 12  # frequencies of keys alone give more
    assert (tmp_path / "plots" / "xrnn_recursion.png").exists()
