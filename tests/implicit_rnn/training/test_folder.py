"""A run's folder: nothing in it is lost, and what was changed is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from implicit_rnn.training.checkpoint import CheckpointError
from implicit_rnn.training.files import (
    FolderError,
    digest,
    read_sealed,
    set_aside,
    write_sealed,
    write_text,
)
from implicit_rnn.training.folder import Records, begun, locked
from implicit_rnn.training.restore import require_same
from implicit_rnn.training.tables import dump


def records(path: Path, *updates: int) -> Records:
    found = Records(path)
    for update in updates:
        found.append({"update": update, "loss": 0.5})
    return found


@pytest.mark.parametrize("bad", [b"[1]\n", b"\xff\n", b"3\n", b'{"update": "x"}\n', b'{"upd\n'])
def test_a_line_that_cannot_be_read_costs_no_other_and_the_file_is_kept(tmp_path: Path, bad: bytes):
    path, said = tmp_path / "metrics.jsonl", []
    expected = records(path, 5, 10, 15).sum
    whole = path.read_bytes().splitlines(keepends=True)
    damaged = b"".join([whole[0], bad, *whole[1:]])
    path.write_bytes(damaged)
    found = Records(path)
    found.rewind(15, expected, said.append)
    assert [row["update"] for row in found.read()] == [5, 10, 15]
    assert path.read_bytes() == b"".join(whole)
    assert (tmp_path / "metrics.jsonl.damaged").read_bytes() == damaged
    assert len(said) == 1
    assert "line 2 cannot be read" in said[0]
    assert "metrics.jsonl.damaged" in said[0]


def test_lines_after_a_checkpoint_are_dropped_and_nothing_is_said(tmp_path: Path):
    path, said = tmp_path / "metrics.jsonl", []
    expected = records(path, 5, 10).sum
    records(path, 15)
    found = Records(path)
    found.rewind(10, expected, said.append)
    assert [row["update"] for row in found.read()] == [5, 10]
    assert found.sum == expected
    assert not said


@pytest.mark.parametrize("how", ["a digit", "a line less", "gone"])
def test_lines_that_are_not_those_that_were_written_are_told(tmp_path: Path, how: str):
    path, said = tmp_path / "metrics.jsonl", []
    expected = records(path, 5, 10).sum
    whole = path.read_bytes()
    path.write_bytes({"a digit": whole.replace(b"0.5", b"0.7", 1)}.get(how, whole[:28]))
    if how == "gone":
        path.unlink()
    Records(path).rewind(10, expected, said.append)
    assert len(said) == 1
    assert (tmp_path / "metrics.jsonl.damaged").exists() == (how != "gone")


@pytest.mark.parametrize("how", ["as they were", "changed", "unreadable", "gone"])
def test_lines_of_a_run_that_has_ended_stay_as_they_are(tmp_path: Path, how: str):
    path, said = tmp_path / "metrics.jsonl", []
    written = Records(path)
    for update in (5, 10):
        written.append({"update": update, "loss": 0.5})
    text = path.read_text()
    damaged = {"changed": text.replace("0.5", "0.6"), "unreadable": text.replace("0.5", "0,5")}
    path.write_text(damaged.get(how, text))
    if how == "gone":
        path.unlink()
    before = path.exists() and path.read_text()
    Records(path).check(written.sum, said.append)
    words = {"changed": "are not those that were", "unreadable": "line 1 cannot", "gone": "is gone"}
    assert [words[how] in text for text in said] == [True] * (how in words)
    assert (path.exists() and path.read_text()) == before


def test_a_run_json_that_holds_something_else_is_kept_aside(tmp_path: Path):
    path, said = tmp_path / "run.json", []
    for content in ("[1]", '{"sessions": 3}', "\ud800"):
        path.write_bytes(content.encode("utf-8", "surrogatepass"))
        begun(path, "first", said.append)
    assert begun(path, "second", said.append)["command"] == "first"
    assert len(said) == 3
    kept = sorted(entry.name for entry in tmp_path.iterdir())
    assert kept == ["run.json", *(f"run.json.damaged{tail}" for tail in ("", "-2", "-3"))]


def test_a_sealed_file_tells_when_it_was_changed(tmp_path: Path):
    path = write_sealed(tmp_path / "result.json", {"test": {"error": 0.25}, "none": float("nan")})
    assert read_sealed(path) == {"test": {"error": 0.25}, "none": None}
    path.write_text(path.read_text().replace("0.25", "0.15"))
    with pytest.raises(FolderError, match="its checksum differs"):
        read_sealed(path)
    path.write_text(json.dumps({"test": 1}))  # by hand
    assert read_sealed(path) == {"test": 1}


def test_what_cannot_be_written_leaves_the_old_file_and_no_other(tmp_path: Path):
    path = write_text(tmp_path / "file", "old")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "\ud800")
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
    assert path.read_text() == "old"


def test_a_folder_that_another_host_has_taken_is_left_alone(tmp_path: Path):
    with locked(tmp_path) as hold:
        hold.check()
        (tmp_path / "lock.holder").write_text(
            "7 elsewhere abcd"
        )  # a host that does not see our locks
        with pytest.raises(FolderError, match=r"taken by another run .process 7 on elsewhere"):
            hold.check()
        (tmp_path / "lock.holder").unlink()
        with pytest.raises(FolderError, match="taken by another run"):
            hold.check()


def test_what_is_set_aside_never_takes_the_place_of_another(tmp_path: Path):
    path = tmp_path / "file"
    for text in ("a", "b"):
        path.write_text(text)
        set_aside(path)
    assert (tmp_path / "file.damaged").read_text() == "a"
    assert (tmp_path / "file.damaged-2").read_text() == "b"


def test_files_beside_a_checkpoint_are_those_it_was_trained_with(tmp_path: Path):
    text, words = dump({"training": {"updates": 3}}), {"words": ["a", "b"]}
    record = {"update": 7, "configuration": digest(text), "kept": {"words.json": digest(words)}}
    (tmp_path / "config.toml").write_text(text)
    (tmp_path / "words.json").write_text(json.dumps(words, indent=1))
    require_same(tmp_path, record)
    for name in ("config.toml", "words.json"):
        whole = (tmp_path / name).read_bytes()
        for bad in (whole.replace(b"a", b"c", 1), whole[:-3], b"\xff"):
            (tmp_path / name).write_bytes(bad)
            with pytest.raises(CheckpointError, match=f"{name} is not the one that checkpoint"):
                require_same(tmp_path, record)
        (tmp_path / name).write_bytes(whole)
