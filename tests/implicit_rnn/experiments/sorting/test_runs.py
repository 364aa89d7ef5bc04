"""The recursive tasks from a configuration to a table and pictures."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.implicit_rnn.experiments.problems import trained


@pytest.mark.slow
def test_sorting_tells_exact_matches_and_perplexity(tmp_path: Path, capsys):
    content = {
        "task": {
            "name": "sorting", "train": 40, "valid": 20, "test": 20, "length": 3, "values": 6,
        },
        "model": {
            "name": "seq2seq", "encoder": "bixrnn", "hidden": 2, "embedding_size": 2,
            "decoder_hidden": 2, "attention": "bilinear",
        },
    }  # fmt: skip
    result = trained(content, tmp_path)
    assert 0 <= result["test"]["exact"] <= 1
    printed = capsys.readouterr().out
    assert "test exact" in printed
    assert "test perplexity" in printed
    assert "parts" not in result
    pictures = {path.name for path in (tmp_path / "out" / "plots").iterdir()}
    assert pictures >= {"recursion.png", "recursion_backwards.png"}


@pytest.mark.slow
def test_a_transformer_trains_with_either_block(tmp_path: Path):
    for block in ("feed_forward", "recursive"):
        content = {
            "task": {
                "name": "tree_traversal", "train": 40, "valid": 20, "test": 20, "depth": 3,
            },
            "model": {
                "name": "transformer", "width": 4, "heads": 2, "layers": 1, "hidden": 4,
                "block": block, "aggregate": "recursive",
            },
        }  # fmt: skip
        folder = tmp_path / block
        folder.mkdir()
        assert 0 <= trained(content, folder)["test"]["exact"] <= 1
