"""A run that is killed again and again comes to what it would have come to, bit for bit."""

from __future__ import annotations

import contextlib
import json
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from implicit_rnn.training.folder import Records
from implicit_rnn.training.tables import dump
from tests.implicit_rnn.experiments.problems import CONTENT, without_times

KILLS = 20
LONG = {"updates": 700, "log_every": 1, "evaluate_every": 40, "checkpoint_every": 7}
_LIMIT = 1500.0  # seconds that a session may take, on a machine that others use, too
_MOST = 30  # updates of a session: after so many it is killed at the latest


class Session(NamedTuple):
    """One start of the command, and its end.

    Attributes:
      when: what it was doing when it was struck.
      alive: whether it was still there to be struck.
      code: its own at its end.
      said: all that it printed.
    """

    when: str
    alive: bool
    code: int
    said: str


def command(config: Path, folder: Path) -> list[str]:
    words = ["train", str(config), "--no-figures", "--resume", "--output", str(folder)]
    return [sys.executable, "-m", "implicit_rnn.cli", *words]


def lines(folder: Path) -> int:
    path = folder / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def sealed(folder: Path) -> int:
    """The update of the last checkpoint; 0 without one."""
    return max((int(path.stem) for path in (folder / "checkpoints").glob("0*.json")), default=0)


def struck(start: list[str], folder: Path, number: signal.Signals, rng: random.Random) -> Session:
    """A session that is ended by a signal while it begins, after any update, or in any save."""
    begun = time.monotonic()
    child = subprocess.Popen(start, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    when = rng.choice(["beginning", "updates", "updates", "saving"])
    sessions = folder / "run.json"
    before = sessions.stat().st_mtime_ns if sessions.exists() else 0
    first = None
    while child.poll() is None:
        assert time.monotonic() - begun < _LIMIT, "it gets nowhere"
        if not sessions.exists() or sessions.stat().st_mtime_ns == before:
            time.sleep(0.001)
            continue
        if first is None:  # it has its folder, and has dropped what it does anew
            first = lines(folder)
            taken = time.monotonic() - begun
            least = rng.randrange(_MOST)
            if when == "beginning":  # imports are behind it: compilation, mostly
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(rng.uniform(0, 0.5) * taken)
                break
        if lines(folder) - first > least:
            if when == "updates":
                time.sleep(rng.uniform(0, 0.02))
                break
            if any((folder / "checkpoints").glob("*tmp*")):
                time.sleep(rng.choice([0, rng.uniform(0, 0.05)]))
                break
        time.sleep(0.0005)
    alive = child.poll() is None
    child.send_signal(number)
    said, _ = child.communicate(timeout=_LIMIT)
    return Session(when, alive, child.returncode, said)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("config") / "small.toml"
    path.write_text(dump(CONTENT | {"training": CONTENT["training"] | LONG}))
    return path


@pytest.fixture(scope="module")
def whole(config: Path) -> Path:
    """The run that nothing happened to."""
    subprocess.run(command(config, config.parent / "whole"), check=True, capture_output=True)
    return config.parent / "whole"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda n: n.name)
def test_a_run_killed_twenty_times_comes_to_the_same(
    config: Path, whole: Path, tmp_path: Path, number: signal.Signals
):
    folder, rng, found = tmp_path / "run", random.Random(number), []
    while len(found) < KILLS:
        session = struck(command(config, folder), folder, number, rng)
        assert session.alive, f"it ended by itself after {len(found)} kills: {session.said[-500:]}"
        last = sealed(folder)
        print(number.name, len(found) + 1, session.when, f"code {session.code}, sealed at {last}")
        if number == signal.SIGKILL:
            assert session.code == -signal.SIGKILL
        else:
            assert session.code == 128 + signal.SIGTERM, session
            assert "ended by SIGTERM" in session.said
            said = re.search(r"ended by SIGTERM at update (\d+)", session.said)
            assert last == (int(said[1]) if said else last), "nothing that was done is lost"
        found.append(session)
    assert {session.when for session in found} == {"beginning", "updates", "saving"}
    assert 0 < sealed(folder) < LONG["updates"]
    subprocess.run(command(config, folder), check=True, capture_output=True)
    sessions = json.loads((folder / "run.json").read_text())["sessions"]
    assert len(sessions) == KILLS + 1
    one, other = (without_times(Records(path / "metrics.jsonl").read()) for path in (folder, whole))
    assert one == other
    one, other = (json.loads((path / "result.json").read_text()) for path in (folder, whole))
    for name in ("test", "valid", "best_update", "updates"):
        assert one[name] == other[name]
