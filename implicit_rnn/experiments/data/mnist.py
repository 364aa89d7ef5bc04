"""MNIST: images of handwritten digits out of the IDX files that it is distributed in."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from implicit_rnn.experiments import data

SPLITS = {"train": "train", "test": "t10k"}  # what the files' names begin with
SIDE = 28
_UNSIGNED_BYTE = 8  # IDX's code of the only type that MNIST uses


def load(split: str) -> tuple[np.ndarray, np.ndarray]:
    """All images of a split, and the digits that they show.

    Args:
      split: `"train"` (60,000 images) or `"test"` (10,000).

    Returns:
      uint8 `[count, 28, 28]`, 0 paper and 255 ink, and uint8 `[count]`.
    """
    if split not in SPLITS:
        raise ValueError(f'split must be "train" or "test", got {split!r}')
    paths = [
        data.sound("mnist", f"{SPLITS[split]}-{name}-ubyte")
        for name in ("images-idx3", "labels-idx1")
    ]
    images, labels = read_idx(paths[0], 3), read_idx(paths[1], 1)
    if images.shape[1:] != (SIDE, SIDE):
        raise data.DataError(
            f"{paths[0]} holds images of {images.shape[1]} x {images.shape[2]} pixels, "
            f"{SIDE} x {SIDE} expected"
        )
    if len(images) != len(labels):
        raise data.DataError(
            f"{paths[1]} holds {len(labels):,} labels for the {len(images):,} images of {paths[0]}"
        )
    if labels.size and labels.max() > 9:
        raise data.DataError(f"{paths[1]} holds the label {labels.max()}, which is no digit")
    return images, labels


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """An array of bytes out of an IDX file: a magic number, the sizes, the values.

    Args:
      path: the file, gzipped if its name ends in `.gz`.
      dimensions: how many the array must have; the magic number tells.
    """
    content = data.contents(path)
    magic, wanted = int.from_bytes(content[:4], "big"), 256 * _UNSIGNED_BYTE + dimensions
    if magic != wanted:
        raise data.DataError(f"{path} is no such IDX file: it begins with {magic}, not {wanted}")
    header = 4 + 4 * dimensions
    shape = [int.from_bytes(content[at : at + 4], "big") for at in range(4, header, 4)]
    expected = header + math.prod(shape)
    if len(content) != expected:
        raise data.DataError(
            f"{path} has {len(content):,} bytes unpacked, {expected:,} expected of an array "
            f"of {' x '.join(map(str, shape))}: fetch it again"
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)
