"""Files that are written all at once, and that tell when they are not what was written."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SEAL = "sum"  # under which a sealed file keeps its checksum


class FolderError(RuntimeError):
    """A run folder that cannot be used: taken, not empty, damaged, or not a run's."""


def write_text(path: Path, text: str) -> Path:
    """Writes a file all at once: a reader sees the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)  # a full disk has room again
        if isinstance(error, OSError):
            error.filename, error.filename2 = str(path), None  # not that of the temporary one
        raise
    return path


def write_json(path: Path, content: Mapping[str, Any]) -> Path:
    """Writes a JSON file all at once; numbers that are not finite become null."""
    return write_text(path, json.dumps(plain(content), indent=1, allow_nan=False) + "\n")


def write_sealed(path: Path, content: Mapping[str, Any]) -> Path:
    """`write_json`, with a checksum of the content, which `read_sealed` looks at."""
    whole = plain(content)
    return write_json(path, whole | {SEAL: digest(whole)})


def read_sealed(path: Path) -> dict[str, Any]:
    """What `write_sealed` wrote; a file without a checksum, written by hand, is taken as it is.

    Raises:
      FolderError: the file is no JSON object, or is not what was written.
    """
    try:
        content = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise FolderError(f"{path} is damaged: it is not JSON ({error})") from None
    if not isinstance(content, dict):
        raise FolderError(f"{path} is damaged: it must hold a JSON object, got {content!r:.40}")
    if SEAL in content and content.pop(SEAL) != digest(content):
        raise FolderError(f"{path} is damaged: its checksum differs from its content")
    return content


def set_aside(path: Path) -> Path:
    """Copies a file that cannot be used to a name of its own beside it; nothing is ever deleted."""
    number, aside = 1, path.with_name(f"{path.name}.damaged")
    while aside.exists():
        number, aside = number + 1, path.with_name(f"{path.name}.damaged-{number + 1}")
    if path.is_dir():
        path.rename(aside)
    else:
        shutil.copy2(path, aside)
    return aside


def in_words(error: BaseException) -> str:
    """An error as a sentence: of the system's, what was wrong with which file."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror + (f": {error.filename}" if error.filename else "")
    return str(error)


def digest(content: Any) -> str:
    """A checksum of JSON, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


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
