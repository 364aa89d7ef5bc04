"""The recursive tasks from a configuration to a table and pictures."""

from __future__ import annotations

from pathlib import Path

import pytest

from implicit_rnn.cli import main
from tests.implicit_rnn.experiments.data.test_pairs import write
from tests.implicit_rnn.experiments.problems import trained


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


def test_logical_inference_tells_errors_by_the_number_of_operators(tmp_path: Path, capsys):
    content = {
        "task": {"name": "logical_inference", "path": str(write(tmp_path / "logic")), "train": 40},
        "model": {
            "name": "sentence_pair", "encoder": "gru", "hidden": 2, "embedding_size": 2,
            "compare_size": 2,
        },
    }  # fmt: skip
    result = trained(content, tmp_path)
    parts = result["parts"]
    assert list(parts) == [str(k) for k in range(7, 13)]
    mean = sum(part["error"] for part in parts.values()) / 6  # of twelve pairs each
    assert result["test"]["error"] == pytest.approx(mean)
    assert "error 12" in capsys.readouterr().out
    assert main(["evaluate", str(tmp_path / "out"), "--split", "9"]) == 0
    assert f"{parts['9']['error']:.4f}" in capsys.readouterr().out
    assert main(["evaluate", str(tmp_path / "out"), "--split", "6"]) == 1
    assert "no split '6'; there are train, valid, test, 7" in capsys.readouterr().err


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
