"""Several starts of one solve: where they end, and what is counted."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest

from implicit_rnn.cli import main
from implicit_rnn.experiments.starts import Ends, _rows
from implicit_rnn.training.tables import dump
from tests.implicit_rnn.experiments.problems import CONTENT, TRAINING


def test_starts_of_a_network_at_its_beginning_end_in_one_state(tmp_path, capsys):
    content = copy.deepcopy(CONTENT) | {
        "training": TRAINING,
        "variants": {"igru": {"model": {}}, "lstm": {"model": {"encoder": "lstm"}}},
    }
    config, out = tmp_path / "small.toml", tmp_path / "out"
    config.write_text(dump(content))
    main(["train", str(config), "--output", str(out), "--no-figures"])
    table = tmp_path / "starts.json"
    assert main(["starts", str(out), "--draws", "1", "--output", str(table)]) == 0
    rows = json.loads(table.read_text())["rows"]
    assert [row["start"] for row in rows] == [
        "chosen", "zeros", "random 1", "any of them",
    ]  # fmt: skip
    result = json.loads((out / "igru" / "result.json").read_text())
    for row in rows[:-1]:
        assert row["run"] == "igru"
        assert row["converged"] == 1
        assert row["elsewhere"] == row["changed"] == 0
        assert row["error"] == pytest.approx(result["test"]["error"])
    capsys.readouterr()
    assert main(["starts", str(out / "lstm")]) == 1
    assert "nothing to start" in capsys.readouterr().err
    assert main(["starts", str(out / "igru"), "--split", "tset"]) == 1
    assert "no split 'tset'" in capsys.readouterr().err


def test_only_sequences_that_converge_elsewhere_are_counted_as_such():
    def ends(distance, converged, wrong, changed):
        columns = (distance, converged, wrong, changed, [4, 4, 2, 0])
        distance, converged, *counts = map(np.array, columns)
        return Ends(distance, converged.astype(bool), *counts)

    rows = _rows(
        {
            "chosen": ends([0, 0, 0, 0], [1, 1, 1, 1], [1, 0, 1, 0], [0, 0, 0, 0]),
            "zeros": ends([0.5, 0.4, 0.001, 9], [1, 0, 1, 1], [3, 4, 1, 0], [2, 4, 0, 0]),
        }
    )  # fmt: skip
    assert rows[0] == {
        "start": "chosen", "converged": 1, "elsewhere": 0, "changed": 0, "error": 0.2,
        "error there": 0.25,
    }  # fmt: skip
    assert rows[1] == {
        "start": "zeros", "converged": pytest.approx(2 / 3), "elsewhere": pytest.approx(1 / 3),
        "changed": 0.6, "error": 0.8, "error there": 0.75,
    }  # fmt: skip
    assert rows[2] == {"start": "any of them", "elsewhere": pytest.approx(1 / 3)}
