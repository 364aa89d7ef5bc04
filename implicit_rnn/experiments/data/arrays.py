"""Arrays out of an `.npz` file, or an error that names the file and what is wrong with it."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from implicit_rnn.experiments import data


def read_arrays(path: Path, names: Iterable[str]) -> dict[str, np.ndarray]:
    """The arrays with these names; nothing in the file is ever executed.

    Args:
      path: the file.
      names: which arrays it must hold.
    """
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as file:
            return {name: file[name] for name in names}
    except FileNotFoundError:
        raise data.DataError(f"no such file: {path}") from None
    except KeyError as error:
        raise data.DataError(f"{path} lacks an array: {error.args[0]}") from None
    except (ValueError, EOFError, OSError, zipfile.BadZipFile, zlib.error) as error:
        raise data.DataError(f"{path} is damaged ({error}): fetch it again") from None


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
