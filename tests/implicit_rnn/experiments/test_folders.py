"""Folders of experiments that are damaged, or another's: said, kept aside, or refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from implicit_rnn.experiments import runs, train
from implicit_rnn.experiments.config import resolve
from implicit_rnn.training import FolderError, files
from tests.implicit_rnn.experiments.problems import CONTENT

VARIANTS = {"a": {"model": {"hidden": 3}}, "b": {"model": {"hidden": 4}}}


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An experiment whose runs end at once, with a result."""

    def ends(config, folder, **how):
        content = {"config": files.plain(config.table()), "test": {"error": 0.5}, "parameters": 1,
                   "updates": 1, "skipped": 0, "seconds": 1.0}  # fmt: skip
        files.write_sealed(folder / "result.json", content)

    monkeypatch.setattr(train, "train_run", ends)
    begin(tmp_path)
    return tmp_path


def begin(folder: Path, variants: dict = VARIANTS) -> None:
    train.train(resolve(CONTENT | {"variants": variants}, "small.toml"), folder, resume=True)


@pytest.mark.parametrize("content", [b"[1]", b"\xff", b"", b"{}", b'{"title": 3}'])
def test_a_damaged_experiment_file_is_kept_aside(started: Path, capsys, content: bytes):
    (started / runs.MARK).write_bytes(content)
    begin(started)
    assert "it is kept as experiment.json.damaged" in capsys.readouterr().out
    assert (started / "experiment.json.damaged").read_bytes() == content
    assert [*runs.experiment(started)["runs"]] == ["a", "b"]


def test_the_folder_of_another_experiment_is_refused(started: Path):
    with pytest.raises(FolderError, match="holds another experiment"):
        begin(started, {"c": {}})
    assert [*runs.experiment(started)["runs"]] == ["a", "b"]


@pytest.mark.parametrize("content", [b"[1]", b"\xff", b"{}", None])
def test_a_damaged_result_or_that_of_another_run_is_kept_aside(started: Path, capsys, content):
    mine, other = (started / name / "result.json" for name in "ab")
    if content is None:
        content = other.read_bytes()
    mine.write_bytes(content)
    begin(started)
    assert "it is kept as result.json.damaged" in capsys.readouterr().out
    assert mine.with_name("result.json.damaged").read_bytes() == content
    assert json.loads(mine.read_text())["config"]["model"]["hidden"] == 3
    begin(started)  # and nothing more is said
    assert "kept as" not in capsys.readouterr().out
