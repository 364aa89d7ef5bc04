"""The real command in a child process, started, struck and waited for."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
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
    with warnings.catch_warnings():
        # With a limit Python forks first; jax, if it was used here, fears for what then goes on.
        warnings.simplefilter("ignore", RuntimeWarning)
        return subprocess.Popen(
            [sys.executable, *program, *words],
            cwd=ROOT,
            env=environment(changes),
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=limit,
        )


class Forked:
    """`implicit-rnn` in a fork of this process, which has imported everything already.

    Where many short commands are wanted imports are half of their time. What is struck while it
    imports must be started (`start`); and a process that has used jax cannot be forked.

    Args:
      arguments: of the command.
    """

    def __init__(self, arguments: Sequence[str | Path]) -> None:
        self.returncode: int | None = None
        self._files = [tempfile.TemporaryFile("w+") for _ in range(2)]  # noqa: SIM115
        sys.stdout.flush()
        sys.stderr.flush()
        # One that comes at once is to find the handlers of the fork, not those of this process.
        held = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # jax, of threads that it has not yet
            self.pid = os.fork()
        if not self.pid:
            self._run([str(argument) for argument in arguments], held)
        signal.pthread_sigmask(signal.SIG_SETMASK, held)

    @staticmethod
    def import_all() -> None:
        """What the command imports, so that forks need not."""
        import orbax.checkpoint  # noqa: F401

        from implicit_rnn.experiments import commands, figures, report_page  # noqa: F401

    def _run(self, words: list[str], held: set[signal.Signals]) -> None:
        """As Python runs a module, to the end of the process."""
        code: Any = 1
        try:
            import jax

            from implicit_rnn.cli import main

            for file, number in zip(self._files, (1, 2), strict=True):
                os.dup2(file.fileno(), number)
            os.chdir(ROOT)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, held)
            # As `environment` has it: this was read when jax was imported.
            jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
            code = main(words)
        except SystemExit as ended:
            code = ended.code
        except KeyboardInterrupt:
            traceback.print_exc()
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(BaseException):
                threading._shutdown()  # type: ignore[attr-defined]
                atexit._run_exitfuncs()
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code if isinstance(code, int) else 1)

    def poll(self) -> int | None:
        """The exit code, if it has ended."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Waits for its end."""
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("implicit-rnn", timeout)
            time.sleep(0.002)
        assert self.returncode is not None
        return self.returncode

    def communicate(self, timeout: float = LIMIT) -> tuple[str, str]:
        """What it has said by its end."""
        self.wait(timeout)
        for file in self._files:
            file.seek(0)
        return self._files[0].read(), self._files[1].read()

    def send_signal(self, number: int) -> None:
        """Sends a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Ends it at once."""
        self.send_signal(signal.SIGKILL)


Child = subprocess.Popen | Forked


def end(child: Child, limit: float = LIMIT) -> Ended:
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
        [sys.executable, "-c", _SEVERAL.format(before=before), json.dumps(words)],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert not done.returncode, done.stderr
    return [Ended(*json.loads(line)) for line in done.stdout.splitlines()]


def strike(child: Child, number: signal.Signals, when: Callable[[], bool]) -> bool:
    """Sends a signal once something is so; whether the child was still there."""
    deadline = time.monotonic() + LIMIT
    while not when():
        if child.poll() is not None:
            return False
        assert time.monotonic() < deadline, "what was waited for has not come"
        time.sleep(0.0005)
    child.send_signal(number)
    return True
