"""Arrays out of an `.npz` file, or an error that names the file and what is wrong with it."""

from __future__ import annotations

import math
import re
import struct
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import IO

import numpy as np

from implicit_rnn.experiments import data

# What zipfile and zlib say of a file that is none: each in its own way.
_BAD_FILE = (
    ValueError, EOFError, OSError, NotImplementedError, RuntimeError, struct.error, OverflowError,
    zipfile.BadZipFile, zlib.error,
)  # fmt: skip
_SAID = re.compile(
    rb"\{'descr': '([<>|=][biuf][0-9]{1,2})', 'fortran_order': (True|False), "
    rb"'shape': \(((?:[0-9]{1,12},? ?)*)\), \}\s*"
)
_LONGEST = 4096  # bytes of such words


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
        shape, by_columns, dtype = _header(member, f"{path}: {name}")
        size, begin = math.prod(shape) * dtype.itemsize, member.tell()
        if begin + size != entry.file_size or size > data.MOST:
            raise data.DataError(
                f"{path}: {name} is said to be {' x '.join(map(str, shape))} of {dtype}, but has "
                f"{entry.file_size - begin:,} bytes (at most {data.MOST:,}): fetch it again"
            )
        content = member.read(size)
        if len(content) != size or member.read(1):  # the last read also compares checksums
            raise data.DataError(f"{path}: {name} ends early: fetch it again")
    return np.frombuffer(content, dtype).reshape(shape, order="F" if by_columns else "C")


def _header(member: IO[bytes], where: str) -> tuple[tuple[int, ...], bool, np.dtype]:
    """What an array is said to be: its shape, whether column after column, and its type.

    Numpy's own reader would have Python parse the words; these are the ones that it writes.
    """
    begin = member.read(8)
    long = begin[6:7] == b"\x02"  # version 2 of the format
    length = int.from_bytes(member.read(4 if long else 2), "little")
    said = _SAID.fullmatch(member.read(min(length, _LONGEST)))
    if begin[:6] != b"\x93NUMPY" or said is None:
        raise data.DataError(f"{where} is no array of numbers in numpy's format: fetch it again")
    shape = tuple(int(part) for part in said[3].split(b",") if part.strip())
    return shape, said[2] == b"True", np.dtype(said[1].decode())


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
