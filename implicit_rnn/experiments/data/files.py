"""Files of data sets: where they are, and whether they are whole."""

from __future__ import annotations

import gzip
import hashlib
import os
import zlib
from pathlib import Path
from typing import BinaryIO, cast

from implicit_rnn.experiments.data.catalogue import DATASETS, File

BLOCK = 1 << 16  # bytes read at a time
MOST = 1 << 30  # bytes that a file may hold, unpacked: forty times the largest that is known
_BAD_PACKING = (EOFError, zlib.error, gzip.BadGzipFile)


class DataError(RuntimeError):
    """A data set that is missing or damaged: which file, and what to do."""


def cache() -> Path:
    """The user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "implicit_rnn"


def folders() -> list[Path]:
    """Where data sets are looked for: `$IMPLICIT_RNN_DATA`, then the user's cache."""
    named = os.environ.get("IMPLICIT_RNN_DATA")
    return [*([Path(named)] if named else []), cache()]


def find(name: str, file: str) -> Path:
    """The path of a file of a data set; ends in `.gz` where it lies there gzipped."""
    for folder in folders():
        for path in (folder / name / file, folder / name / f"{file}.gz"):
            if path.exists():
                return path
    looked = " and ".join(str(folder / name) for folder in folders())
    raise DataError(
        f"data set {name!r}: {file} is not in {looked}. Fetch it with `implicit-rnn data fetch "
        f"{name}`, or set IMPLICIT_RNN_DATA to the folder that holds {name}/"
    )


def checked(name: str, file: str) -> Path:
    """`find`, and `verify`: for files that are read whole anyway."""
    path = find(name, file)
    verify(path, next(known for known in DATASETS[name].files if known.path == file))
    return path


def sound(name: str, file: str) -> Path:
    """`find`, where a file of the published size must be the published one.

    Others, a smaller set in the same format perhaps, are left to the reader to judge.
    """
    path = find(name, file)
    for known in DATASETS[name].files:
        whole = path.name == known.path.rsplit("/", 1)[-1]
        if whole and path.stat().st_size == known.size:
            verify(path, known)
    return path


def contents(path: Path, most: int = MOST) -> bytes:
    """The bytes of a file, unpacked if its name ends in `.gz`; not more than so many are read."""
    found = bytearray()
    try:
        with _opened(path, path.suffix == ".gz") as file:
            # Block by block: to be read at once, the most would have to be allocated.
            while len(found) <= most and (block := file.read(BLOCK)):
                found += block
    except _BAD_PACKING:
        raise DataError(f"{path} is damaged (no whole gzip file): fetch it again") from None
    if len(found) > most:
        raise DataError(f"{path} holds more than {most:,} bytes: it is not what it should be")
    return bytes(found)


def verify(path: Path, file: File) -> None:
    """Raises `DataError` unless the file, unpacked, has the right size and checksum."""
    packed = path.suffix == ".gz" and not file.path.endswith(".gz")
    try:
        size, checksum = _measured(path, packed)
    except _BAD_PACKING:
        raise DataError(f"{path} is damaged (no whole gzip file): fetch it again") from None
    if size != file.size:
        raise DataError(f"{path} has {size:,} bytes, {file.size:,} expected: fetch it again")
    if checksum != file.sha256:
        raise DataError(f"{path} is damaged (its checksum differs): fetch it again")


def _opened(path: Path, packed: bool) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path) if packed else open(path, "rb"))


def _measured(path: Path, packed: bool) -> tuple[int, str]:
    """Size and checksum of a file, or of what is packed in it; little beyond `MOST` is read."""
    digest, size = hashlib.sha256(), 0
    with _opened(path, packed) as file:
        while size <= MOST and (block := file.read(BLOCK)):
            digest.update(block)
            size += len(block)
    return size, digest.hexdigest()
