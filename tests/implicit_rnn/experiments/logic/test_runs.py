"""Logical inference from a configuration to a table."""

from __future__ import annotations

from pathlib import Path

import pytest

from implicit_rnn.cli import main
from tests.implicit_rnn.experiments.logic.test_task import write
from tests.implicit_rnn.experiments.problems import trained


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
