"""A run's folder: who may write to it, and what it says about the run."""

from __future__ import annotations

import contextlib
import datetime
import errno
import hashlib
import importlib.metadata
import json
import os
import platform
import secrets
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import filelock

from implicit_rnn.training.files import (
    FolderError,
    digest,
    plain,
    read_sealed,
    set_aside,
    write_sealed,
    write_text,
)
from implicit_rnn.training.tables import dump

PACKAGES = ("implicit-rnn", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
# The lock itself, and who has it: some systems let nobody read a file that is locked.
LOCKS = ("lock", "lock.holder")


class Hold:
    """A folder that this process holds; another host whose locks are not ours may still take it.

    Args:
      path: the file that names the holder.
      mark: what this process has written there.
    """

    def __init__(self, path: Path, mark: str) -> None:
        self._path, self._mark = path, mark

    def check(self) -> None:
        """Refuses to go on in a folder that another process has taken since; before every write."""
        holder = _read(self._path)
        if holder != self._mark:
            raise FolderError(
                f"{self._path.parent} has been taken by another run ({_words(holder)}): this one "
                "ends, and has written nothing since"
            )


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[Hold]:
    """Holds the folder for this process; the lock goes with the process, however it ends."""
    if folder.exists() and not folder.is_dir():
        raise FolderError(f"{folder} is a file: name a folder (--output)")
    folder.mkdir(parents=True, exist_ok=True)
    mark = f"{os.getpid()} {socket.gethostname()} {secrets.token_hex(4)}"
    lock, holder = (folder / name for name in LOCKS)
    try:
        held = filelock.FileLock(lock).acquire(blocking=False)
    except filelock.Timeout:
        raise FolderError(
            f"{folder} is in use by another run ({_words(_read(holder))}): wait for it, "
            "or choose another folder (--output)"
        ) from None
    with held:
        holder.write_text(mark, "utf-8")
        for path in folder.glob("*.tmp"):  # what a kill in the middle of a write has left
            path.unlink(missing_ok=True)
        yield Hold(holder, mark)


def holder_of(folder: Path) -> str:
    """A checksum of who holds a folder; of nothing if nobody does."""
    return digest(_read(folder / LOCKS[1]))


def _read(holder: Path) -> str:
    """What a file of a holder says; nothing if it is not there."""
    try:
        return holder.read_text("utf-8", "replace").strip()
    except FileNotFoundError:
        return ""


def _words(mark: str) -> str:
    """Who a mark is of."""
    number, _, rest = mark.partition(" ")
    return f"process {number or 'unknown'}" + (f" on {rest.split()[0]}" if rest.split() else "")


def keep_configuration(folder: Path, configuration: Mapping[str, Any]) -> str:
    """Writes `config.toml`; refuses another than the folder was trained with, compared as text.

    Returns:
      A checksum of the configuration.
    """
    path, new = folder / "config.toml", dump(configuration)
    trained = (folder / "checkpoints").exists() or (folder / "result.json").exists()
    if trained and path.exists() and (old := path.read_bytes()) != new.encode():
        had, wanted = set(old.decode("utf-8", "replace").splitlines()), set(new.splitlines())
        changed = sorted(wanted - had - {""}) or sorted(had - wanted) or ["in another order"]
        raise FolderError(
            f"{folder} was begun with another configuration ({'; '.join(changed[:3])}): "
            f"choose another folder (--output), or mend {path}"
        )
    write_text(path, new)
    return digest(new)


def configuration_digest(configuration: Mapping[str, Any]) -> str:
    """The checksum that `keep_configuration` returns."""
    return digest(dump(configuration))


def environment(command: str) -> dict[str, Any]:
    """What must be known to repeat a run: command, versions, machine, time."""
    import jax

    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return {
        "command": command,
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": versions,
        "device": jax.devices()[0].platform,
        "devices": jax.device_count(),
        "processes": jax.process_count(),
        "processors": os.cpu_count(),
    }


def begun(path: Path, command: str, say: Callable[[str], None]) -> dict[str, Any]:
    """Notes that a run begins, or goes on; returns the environment that it began in."""
    now, past = environment(command), []
    if path.exists():
        try:
            past = read_sealed(path).get("sessions", [])
        except FolderError as error:
            say(f"{error}: it is kept as {set_aside(path).name}")
    if not isinstance(past, list) or not all(isinstance(session, dict) for session in past):
        say(f"{path} holds no list of sessions: it is kept as {set_aside(path).name}")
        past = []
    write_sealed(path, {"sessions": [*past, now]})
    return [*past, now][0]


class Records:
    """`metrics.jsonl`: one JSON object a line, an `update` and numbers, appended as training goes.

    Args:
      path: the file.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._sum = path, hashlib.sha256()

    @property
    def sum(self) -> str:
        """A checksum of all lines that were kept by `rewind`, or appended since."""
        return self._sum.hexdigest()

    def rewind(self, update: int, expected: str | None, say: Callable[[str], None]) -> None:
        """Drops what was written after a checkpoint: training goes on from there.

        A file that holds what cannot be read, or whose lines are not those that were written, is
        kept beside the new one, and said to be.

        Args:
          update: the one that a run goes on from.
          expected: the checksum that `sum` gave then; None: not known.
          say: prints.
        """
        lines, kept = list(self._lines()), []
        for line, row in lines:
            if self.sum == expected:
                break
            if row is not None and row["update"] <= update:
                self._sum.update(line)
                kept.append(line)
        wrong = self._wrong(lines, expected, f"its lines up to update {update}")
        if wrong and self.path.exists():
            say(f"{self.path} is damaged ({wrong}): it is kept as {set_aside(self.path).name}")
        elif wrong:
            say(f"{self.path} is gone: it begins again at update {update}")
        write_text(self.path, b"".join(kept).decode())

    def check(self, expected: str | None, say: Callable[[str], None]) -> None:
        """Says if the lines of a run that has ended are not those that were written.

        Args:
          expected: the checksum that `sum` gave at the end; None: not known.
          say: prints.
        """
        lines = list(self._lines())
        for line, _ in lines:
            self._sum.update(line)
        wrong = self._wrong(lines, expected, "its lines")
        if wrong and self.path.exists():
            say(f"{self.path} is damaged ({wrong}): figures show what is left of it")
        elif wrong:
            say(f"{self.path} is gone: there are no learning curves without it")

    def _wrong(self, lines: list, expected: str | None, what: str) -> str:
        """What is wrong with lines that have been summed up; nothing, if nothing is."""
        bad = [number for number, (_, row) in enumerate(lines, 1) if row is None]
        if bad:
            return f"line {bad[0]} cannot be read"
        return "" if expected in (None, self.sum) else f"{what} are not those that were written"

    def append(self, row: Mapping[str, Any]) -> None:
        """Writes a line."""
        line = (json.dumps(plain(row), allow_nan=False) + "\n").encode()
        with open(self.path, "ab", buffering=0) as file:
            before = file.tell()
            if file.write(line) != len(line):  # a disk that is nearly full takes a part
                file.truncate(before)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        self._sum.update(line)

    def read(self) -> list[dict[str, Any]]:
        """All lines that can be read."""
        return [row for _, row in self._lines() if row is not None]

    def _lines(self) -> Iterator[tuple[bytes, dict[str, Any] | None]]:
        """Every line with what it says; None for one that cannot be read."""
        if not self.path.exists():
            return
        for line in self.path.read_bytes().splitlines(keepends=True):
            yield line, _row(line)


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
    whole = isinstance(row, dict) and isinstance(row.get("update"), int) and line.endswith(b"\n")
    if not whole or not all(isinstance(value, int | float | None) for value in row.values()):
        return None
    return row
