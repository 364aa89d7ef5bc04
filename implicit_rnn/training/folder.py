"""A run's folder: who may write to it, and what it says about the run."""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import importlib.metadata
import json
import os
import platform
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from implicit_rnn.training.tables import dump

PACKAGES = ("implicit-rnn", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")


class FolderError(RuntimeError):
    """A run folder that cannot be used: taken, not empty, or not a run's."""


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds the folder for this process; the lock goes with the process, however it ends."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            raise FolderError(
                f"{folder} is in use by another run (process {holder}): wait for it, "
                "or choose another folder (--output)"
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def keep_configuration(folder: Path, configuration: Mapping[str, Any]) -> None:
    """Writes `config.toml`; refuses another than the folder was trained with, compared as text."""
    path, new = folder / "config.toml", dump(configuration)
    trained = (folder / "checkpoints").exists() or (folder / "result.json").exists()
    if trained and path.exists() and (old := path.read_text()) != new:
        had, wanted = set(old.splitlines()), set(new.splitlines())
        changed = sorted(wanted - had) or sorted(had - wanted)
        raise FolderError(
            f"{folder} was begun with another configuration ({'; '.join(changed[:3])}): "
            "choose another folder (--output)"
        )
    write_text(path, new)


def write_text(path: Path, text: str) -> Path:
    """Writes a file all at once: a reader sees the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with open(temporary, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    return path


def write_json(path: Path, content: Mapping[str, Any]) -> Path:
    """Writes a JSON file all at once; numbers that are not finite become null."""
    return write_text(path, json.dumps(plain(content), indent=1, allow_nan=False) + "\n")


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


def begun(path: Path, command: str) -> dict[str, Any]:
    """Notes that a run begins, or goes on; returns the environment that it began in."""
    now, past = environment(command), {}
    with contextlib.suppress(OSError, ValueError):
        past = json.loads(path.read_text())
    sessions = [*past.get("sessions", []), now]
    write_json(path, {"sessions": sessions})
    return sessions[0]


class Records:
    """`metrics.jsonl`: one JSON object a line, appended as training goes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def rewind(self, update: int) -> None:
        """Drops what was written after an update, and a line that a kill cut short."""
        kept = [row for row in self.read() if row["update"] <= update]
        write_text(self.path, "".join(json.dumps(row) + "\n" for row in kept))

    def append(self, row: Mapping[str, Any]) -> None:
        with open(self.path, "a") as file:
            file.write(json.dumps(plain(row), allow_nan=False) + "\n")

    def read(self) -> list[dict[str, Any]]:
        if not self.path.exists():
            return []
        rows = []
        for line in self.path.read_text().splitlines():
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError:
                break
        return rows


def plain(value: Any) -> Any:
    """As JSON knows it: arrays as numbers, NaN and infinities as None."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and value not in (float("inf"), float("-inf")) and value == value:
        return value
    return None if isinstance(value, float) else value
