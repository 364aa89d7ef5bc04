"""Arrays out of an `.npz` file, or an error that names the file and what is wrong with it."""

from __future__ import annotations

import math
import struct
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.lib import format as npy

from implicit_rnn.experiments import data

# What zipfile, zlib and numpy say of a file that is none: each in its own way.
_BAD_FILE = (
    ValueError, EOFError, OSError, NotImplementedError, RuntimeError, struct.error,
    zipfile.BadZipFile, zlib.error, SyntaxError, MemoryError, OverflowError, TypeError,
)  # fmt: skip


def read_arrays(path: Path, names: Iterable[str]) -> dict[str, np.ndarray]:
    """The arrays with these names; nothing in the file is ever executed.

    What an array is said to hold must be what the file has, and not more than `data.MOST` bytes:
    looked at before memory is asked for.

    Args:
      path: the file.
      names: which arrays it must hold.
    """
    try:
        with zipfile.ZipFile(path) as file:
            return {name: _read(path, file, name) for name in names}
    except FileNotFoundError:
        raise data.DataError(f"no such file: {path}") from None
    except data.DataError:
        raise
    except _BAD_FILE as error:
        raise data.DataError(f"{path} is damaged ({error}): fetch it again") from None


def _read(path: Path, file: zipfile.ZipFile, name: str) -> np.ndarray:
    """One array: a header in numpy's format, then its numbers."""
    try:
        entry = file.getinfo(f"{name}.npy")
    except KeyError:
        raise data.DataError(f"{path} lacks an array: {name}") from None
    with file.open(entry) as member:
        version = npy.read_magic(member)
        read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
        if version not in read:
            raise data.DataError(f"{path}: {name} is in version {version} of numpy's format")
        shape, by_columns, dtype = read[version](member)
        if dtype.kind not in "biuf":
            raise data.DataError(f"{path}: {name} must hold numbers, got {dtype}")
        size, begin = math.prod(shape) * dtype.itemsize, member.tell()
        if min(shape, default=0) < 0 or begin + size != entry.file_size or size > data.MOST:
            raise data.DataError(
                f"{path}: {name} is said to be {' x '.join(map(str, shape))} of {dtype}, but has "
                f"{entry.file_size - begin:,} bytes (at most {data.MOST:,}): fetch it again"
            )
        content = member.read(size)
        if len(content) != size or member.read(1):  # the last read also compares checksums
            raise data.DataError(f"{path}: {name} ends early: fetch it again")
    return np.frombuffer(content, dtype).reshape(shape, order="F" if by_columns else "C")


def check_array(path: Path, name: str, array: np.ndarray, shape: tuple[int | None, ...]) -> None:
    """Refuses an array that does not hold bytes, or not in this shape; None is any size."""
    fits = len(shape) == array.ndim and all(
        wanted in (None, size) for wanted, size in zip(shape, array.shape, strict=True)
    )
    if array.dtype != np.uint8 or not fits:
        words = " x ".join("any" if size is None else str(size) for size in shape)
        raise data.DataError(
            f"{path}: {name} must hold bytes (uint8) of shape {words}, got {array.dtype} of shape "
            f"{' x '.join(map(str, array.shape))}"
        )
