"""Semantic parsing from a configuration: the cell that writes has options of its own."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import numpy as np
import pytest

from implicit_rnn.cli import main
from implicit_rnn.experiments.config import read, resolve
from implicit_rnn.experiments.options import ConfigError
from implicit_rnn.experiments.train import trainer_of
from implicit_rnn.training.tables import dump
from tests.implicit_rnn.experiments.parsing.test_task import write

CONTENT = {
    "task": {"name": "parsing", "corpus": "geo"},
    "model": {
        "name": "seq2seq", "encoder": "lstm", "hidden": 3, "embedding_size": 2,
        "attention": "bilinear", "decoder": "xrnn", "decoder_hidden": 2, "decoder_depth": 2,
        "feature_dropout": 0.1,
    },
    "training": {
        "updates": 4, "batch": 6, "buckets": 1, "log_every": 2, "evaluate_every": 2,
        "evaluate_batch": 12,
    },
}  # fmt: skip


def config(*settings: str):
    return resolve(CONTENT, "small.toml", None, settings).runs[""]


def test_the_decoder_has_options_of_its_own(tmp_path: Path):
    found = config("task.corpus=expressions", "task.train=40", "model.decoder_base=linear_state")
    assert found.model["decoder_depth"] == 2
    assert found.model["decoder_recursion"] == "dynamic"  # a default, filled in
    assert "depth" not in found.model
    (tmp_path / "config.toml").write_text(dump(found.table()))
    assert read(tmp_path / "config.toml") == found
    parts = trainer_of(found)
    shapes = jax.eval_shape(parts.init).params["decoder"]["cell"]
    assert shapes["forget"]["base"]["recurrent"].shape == (2, 6)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("model.decoder_dept=2", "did you mean 'decoder_depth'?"),
        ("model.decoder_depth=high", r"model.decoder_depth: an integer wanted, got 'high'"),
        ("model.decoder_hidden_size=3", "'decoder_hidden_size' is unknown"),
        ("model.decoder=lstn", "model.decoder 'lstn' is unknown; did you mean 'lstm'?"),
    ],
)
def test_a_wrong_option_of_the_decoder_is_named(setting: str, message: str):
    with pytest.raises(ConfigError) as error:
        config(setting)
    assert message in str(error.value)


def test_static_recursion_cannot_decode():
    with pytest.raises(ConfigError, match="depends on the whole sequence"):
        trainer_of(config("task.corpus=expressions", "model.decoder_recursion=static"))


def test_an_update_changes_no_type():
    """Or the second update would compile once more."""
    parts = trainer_of(config("task.corpus=expressions", "task.train=40"))
    source = parts.task.splits["train"]
    batch = source.batch(source.plan(6, 1, np.random.default_rng(0))[0])
    before = jax.eval_shape(parts.init)
    after = jax.eval_shape(parts.step, before, batch, None)
    for (path, old), new in zip(
        jax.tree_util.tree_leaves_with_path(before), jax.tree.leaves(after), strict=True
    ):
        assert (old.shape, old.dtype, old.weak_type) == (new.shape, new.dtype, new.weak_type), path


def test_a_run_tells_exact_matches_of_all_and_of_unseen_pairs(tmp_path: Path, capsys):
    content = {**CONTENT, "task": {**CONTENT["task"], "path": str(write(tmp_path / "data"))}}
    (tmp_path / "small.toml").write_text(dump(content))
    command = ["train", str(tmp_path / "small.toml"), "--output", str(tmp_path / "out")]
    assert main([*command, "--no-figures"]) == 0
    printed = capsys.readouterr().out
    assert "test exact" in printed
    assert "exact unseen" in printed
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert list(result["parts"]) == ["unseen"]
    kept = json.loads((tmp_path / "out" / "vocabulary.json").read_text())
    assert "lambda" in kept["target"]
    # A beam of one is greedy decoding, of which the loss has told the exact matches.
    beam = ["evaluate", str(tmp_path / "out"), "--beam", "1", "--length-penalty", "0"]
    assert main(beam) == 0
    assert "exact" in capsys.readouterr().out
    found = json.loads((tmp_path / "out" / "result.json").read_text())["searched"]
    assert {record["split"]: record["exact"] for record in found} == {
        "test": result["test"]["exact"], "unseen": result["parts"]["unseen"]["exact"],
    }  # fmt: skip


@pytest.mark.slow
def test_the_quick_profile_learns_arithmetic(root: Path, tmp_path: Path):
    config = str(root / "configs" / "parsing.toml")
    output = tmp_path / "out"
    assert main(["train", config, "--profile", "quick", "--output", str(output)]) == 0
    rows = json.loads((output / "table.json").read_text())["rows"]
    assert [row["variant"] for row in rows] == ["lstm", "xrnn"]
    assert max(row["test exact"] for row in rows) > 0.3
    assert np.ptp([row["parameters"] for row in rows]) < 0.1 * rows[0]["parameters"]
