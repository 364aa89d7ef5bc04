"""A run that is asked to end does so at once, wherever it is, and loses nothing."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from implicit_rnn.training import folder as folders
from tests.implicit_rnn.training.test_own import SETTINGS, Lines, rows, train

# Sixteen examples of the validation set: four batches an evaluation.
SMALL = dataclasses.replace(SETTINGS, evaluate_batch=4)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict], dict]:
    folder = tmp_path_factory.mktemp("whole") / "run"
    result = train(folder, settings=SMALL)
    return rows(folder), result["test"]


@pytest.fixture
def struck(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Numbers of batches of validation sets, counted over all runs, with which SIGTERM comes."""
    moments, loaded = [], 0
    made = Lines.__init__

    def init(self: Any) -> None:
        made(self)
        valid = self.splits["valid"]

        def batch(entry: Any) -> Any:
            nonlocal loaded
            loaded += 1
            if loaded in moments:
                os.kill(os.getpid(), signal.SIGTERM)
            return valid.batch(entry)

        self.splits["valid"] = valid._replace(batch=batch)

    monkeypatch.setattr(Lines, "__init__", init)
    return moments


def checkpoints(folder: Path) -> list[str]:
    return sorted(path.stem for path in (folder / "checkpoints").glob("*.json"))


@pytest.mark.parametrize("last", [False, True], ids=["half-way", "at the last update"])
def test_an_evaluation_is_ended_and_made_again(whole, struck, tmp_path: Path, last: bool):
    folder = tmp_path / "run"
    first = 9 if last else 5  # the third evaluation, or the second
    # Once more, in the evaluation that is made again; of the first one, two batches were made.
    struck += [first + 1, first + 2]
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt) as ended:
            train(folder, settings=SMALL, resume=True)
        assert ended.value.args == (signal.SIGTERM,)
        assert checkpoints(folder)[-1] == ("000012" if last else "000008")
        assert [row["update"] for row in rows(folder) if "valid_loss" in row] == [4, 8][: 1 + last]
    result = train(folder, settings=SMALL, resume=True)
    assert (rows(folder), result["test"]) == whole


def test_a_signal_with_the_last_line_ends_the_run_before_the_test(whole, tmp_path: Path):
    folder = tmp_path / "run"

    def end(row: dict) -> None:
        if row["update"] == SMALL.updates:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt):
        train(folder, settings=SMALL, on_log=end)
    assert not (folder / "result.json").exists()
    result = train(folder, settings=SMALL, resume=True)
    assert (rows(folder), result["test"]) == whole


def test_lines_go_back_to_those_of_the_checkpoint(tmp_path: Path):
    """Also where a line that came after it tells of the same update."""
    written = folders.Records(tmp_path / "metrics.jsonl")
    written.append({"update": 1, "loss": 2.0})
    then = written.sum
    written.append({"update": 1, "valid_loss": 3.0})
    said: list[str] = []
    again = folders.Records(tmp_path / "metrics.jsonl")
    again.rewind(1, then, said.append)
    assert again.read() == [{"update": 1, "loss": 2.0}]
    assert again.sum == then
    assert not said
