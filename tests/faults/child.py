"""The real command in a child process, started, struck and waited for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
LIMIT = 1500  # seconds that a command may take on a machine that others use, too

# Several commands one after the other, as the real entry point runs each.
_SEVERAL = """
import contextlib, io, json, sys
{before}
from implicit_rnn.cli import main
for arguments in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(arguments)
        except SystemExit as ended:
            code = ended.code
        except BaseException:
            import traceback
            code = -1
            traceback.print_exc()
    print(json.dumps([code, out.getvalue(), err.getvalue()]))
"""


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def sentence(self) -> str:
        """What it said about its end, in a line; an `AssertionError` if there is more or none."""
        lines = self.err.strip().splitlines()
        assert lines, f"code {self.code}, nothing said"
        assert lines[0].startswith("implicit-rnn: "), self.err
        assert not any(line.startswith("Traceback") for line in lines), self.err
        assert len(lines) == 1 or all(line.startswith("  ") for line in lines[1:]), self.err
        return self.err.strip()


def environment(changes: Mapping[str, str] | None = None) -> dict[str, str]:
    """Of a child: programs compiled quickly, and kept from child to child."""
    own = {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **(changes or {})}
    return os.environ | {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"} | own


def start(
    arguments: Sequence[str | Path],
    *,
    before: str = "",
    changes: Mapping[str, str] | None = None,
    limit: Callable[[], None] | None = None,
) -> subprocess.Popen:
    """Starts `implicit-rnn` with these arguments.

    Args:
      arguments: of the command.
      before: Python to execute first: a clock, a lock that is none.
      changes: of the environment.
      limit: called in the child before it begins.
    """
    words = [str(argument) for argument in arguments]
    program = ["-m", "implicit_rnn.cli"]
    if before:
        program = ["-c", f"{before}\nimport sys\nfrom implicit_rnn.cli import main\n"
                   "sys.exit(main(sys.argv[1:]))"]  # fmt: skip
    return subprocess.Popen(
        [sys.executable, *program, *words], cwd=ROOT, env=environment(changes), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=limit,
    )  # fmt: skip


def end(child: subprocess.Popen, limit: float = LIMIT) -> Ended:
    """Waits for a command; one that hangs is killed, and an error."""
    try:
        out, err = child.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        child.kill()
        out, err = child.communicate()
        raise AssertionError(f"a hang: {out[-300:]} {err[-300:]}") from None
    return Ended(child.returncode, out, err)


def run(*arguments: str | Path, **how: Any) -> Ended:
    """Runs the command to its end."""
    return end(start(arguments, **how))


def several(*commands: Sequence[str | Path], before: str = "") -> list[Ended]:
    """Runs commands one after the other in one child process."""
    words = [[str(argument) for argument in arguments] for arguments in commands]
    done = subprocess.run(
        [sys.executable, "-c", _SEVERAL.format(before=before), json.dumps(words)], cwd=ROOT,
        env=environment(), capture_output=True, text=True, timeout=LIMIT,
    )  # fmt: skip
    assert not done.returncode, done.stderr
    return [Ended(*json.loads(line)) for line in done.stdout.splitlines()]


def strike(child: subprocess.Popen, number: signal.Signals, when: Callable[[], bool]) -> bool:
    """Sends a signal once something is so; whether the child was still there."""
    deadline = time.monotonic() + LIMIT
    while not when():
        if child.poll() is not None:
            return False
        assert time.monotonic() < deadline, "what was waited for has not come"
        time.sleep(0.0005)
    child.send_signal(number)
    return True
