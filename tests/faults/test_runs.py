"""A run that is ended, starved and damaged tells so, and loses nothing: the command in children."""

from __future__ import annotations

import json
import resource
import signal
from pathlib import Path

import pytest

from implicit_rnn.training.tables import dump
from tests.faults.child import end, run, start, strike
from tests.faults.judge import metrics, outcome
from tests.implicit_rnn.experiments.problems import CONTENT

SMALL = CONTENT | {"model": {"name": "tagger", "encoder": "gru", "hidden": 3}}


def no_large_files() -> None:
    """What a disk says that has room for notes, and for no checkpoint."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, 2**16))


@pytest.mark.slow
def test_ended_starved_and_damaged_a_run_tells_so_and_comes_to_the_same(tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text(dump(SMALL))
    train = ["train", tmp_path / "small.toml", "--no-figures", "--resume", "--output"]
    assert run(*train, tmp_path / "whole").code == 0
    folder = tmp_path / "run"

    child = start([*train, folder])
    there = folder / "checkpoints" / "000007.json"
    assert strike(child, signal.SIGTERM, there.exists)
    ended = end(child)
    assert ended.code == 143
    assert ended.sentence == "implicit-rnn: ended by SIGTERM"
    assert "ended by SIGTERM at update" in ended.out
    update = int(ended.out.split("at update ")[1].split(";")[0])
    assert (folder / "checkpoints" / f"{update:06d}.json").exists()

    # Nor has the user's cache room for programs, which nothing depends on.
    own = {"JAX_COMPILATION_CACHE_DIR": "", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    starved = run(*train, folder, limit=no_large_files, changes=own)
    assert starved.code == 1
    assert f"the last good checkpoint is {update:06d} in {folder}" in starved.sentence
    assert "--resume" in starved.sentence
    assert (tmp_path / "cache" / "implicit_rnn" / "programs").exists()

    lines = (folder / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    damaged = [lines[0], b"[1]\n", b"\xff\n", *lines[1:]]
    (folder / "metrics.jsonl").write_bytes(b"".join(damaged))
    (folder / "checkpoints" / "7note.json").write_text("to do")
    (folder / "run.json").write_text("[1]")
    ended = run(*train, folder)
    assert ended.code == 0, ended
    assert "metrics.jsonl is damaged (line 2 cannot be read): it is kept as" in ended.out
    assert "run.json is damaged: it must hold a JSON object" in ended.out
    assert (folder / "metrics.jsonl.damaged").read_bytes() == b"".join(damaged)
    assert (folder / "run.json.damaged").read_text() == "[1]"
    assert (folder / "checkpoints" / "7note.json").read_text() == "to do"
    assert metrics(folder) == metrics(tmp_path / "whole")
    assert outcome(folder) == outcome(tmp_path / "whole")

    ended = run("evaluate", folder, "--average", "50")
    assert ended.code == 1
    assert "checkpoints, 50 are wanted" in ended.sentence
    assert not ended.out

    (folder / "result.json").write_text(json.dumps([1]))
    ended = run(*train, folder)
    assert (ended.code, outcome(folder)) == (0, outcome(tmp_path / "whole"))
    assert "result.json is damaged" in ended.out


@pytest.mark.slow
def test_a_run_none_of_whose_solves_converge_stops_with_the_diagnosis(tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text(dump(CONTENT))
    hopeless = ["solver.max_steps=1", "solver.rtol=1e-9", "solver.free_sweeps=false"]
    hopeless += ["task.min_length=5"]  # a shorter one may be exact at once
    ended = run(
        "train",
        tmp_path / "small.toml",
        "--no-figures",
        "--output",
        tmp_path / "run",
        *[part for setting in hopeless for part in ("--set", setting)],
    )
    assert ended.code == 1
    assert "no solve of 21 updates in a row converged" in ended.sentence
    assert "raise solver.max_steps" in ended.sentence
    assert (tmp_path / "run" / "checkpoints" / "000021.json").exists()
    assert not (tmp_path / "run" / "result.json").exists()
