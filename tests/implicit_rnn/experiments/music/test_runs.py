"""Music from a configuration to a table and pictures."""

from __future__ import annotations

from pathlib import Path

from implicit_rnn.cli import main
from implicit_rnn.training.tables import dump
from tests.implicit_rnn.experiments.problems import trained


def test_music_is_judged_by_its_likelihood(tmp_path: Path, capsys):
    content = {
        "task": {"name": "music", "window": 16},
        "model": {"name": "frames", "encoder": "tcn", "hidden": 2, "levels": 1, "kernel": 2},
    }
    result = trained(content, tmp_path)
    # With every key at one half a frame has 88 bits.
    assert 5 < result["test"]["nll"] < 88
    assert result["test"]["nll"] == result["test"]["loss"]
    assert "test nll" in capsys.readouterr().out
    pictures = {path.name for path in (tmp_path / "out" / "plots").iterdir()}
    assert pictures == {"learning_updates.png", "learning_seconds.png"}


def test_music_refuses_an_encoder_that_looks_ahead(tmp_path: Path, capsys):
    config = tmp_path / "small.toml"
    content = {"task": {"name": "music"}, "model": {"name": "frames", "encoder": "bigru"}}
    config.write_text(dump(content))
    assert main(["train", str(config), "--output", str(tmp_path / "out")]) == 1
    assert "'bigru' sees the frames that are to be predicted" in capsys.readouterr().err
