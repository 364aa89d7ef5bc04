"""A subset of CIFAR-10: small photographs of ten kinds of things, out of one file of arrays."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from implicit_rnn.experiments import data
from implicit_rnn.experiments.data.arrays import check_array, read_arrays

FILE = "cifar10_subset.npz"
SIDE, CHANNELS = 32, 3
CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip


def load(split: str, path: Path | None = None) -> tuple[np.ndarray, np.ndarray]:
    """All images of a split of the subset, and what they show.

    To train on, the 10,000 images of the official `data_batch_1`; to test, the first 4,000 of the
    official `test_batch`. The whole set has 50,000 and 10,000.

    Args:
      split: `"train"` or `"test"`.
      path: the `.npz` file, in place of the data set's own: for each split `x_SPLIT_enc` (see
        `decode`), uint8 `[3, count, 32, 32]`, and `y_SPLIT`, uint8 `[count]`.

    Returns:
      uint8 `[count, 32, 32, 3]`, red, green and blue, and uint8 `[count]`, indices of `CLASSES`.
    """
    if split not in ("train", "test"):
        raise ValueError(f'split must be "train" or "test", got {split!r}')
    path = data.sound("cifar10", FILE) if path is None else path
    names = f"x_{split}_enc", f"y_{split}"
    encoded, labels = read_arrays(path, names).values()
    check_array(path, names[0], encoded, (CHANNELS, None, SIDE, SIDE))
    check_array(path, names[1], labels, (None,))
    if encoded.shape[1] != len(labels):
        raise data.DataError(
            f"{path}: {names[1]} has {len(labels):,} labels for the {encoded.shape[1]:,} images of "
            f"{names[0]}"
        )
    bad = np.flatnonzero(labels >= len(CLASSES))
    if bad.size:
        raise data.DataError(
            f"{path}: entry {bad[0]} of {names[1]} is {labels[bad[0]]}, but classes are numbered "
            f"from 0 to {len(CLASSES) - 1}"
        )
    return decode(encoded), labels


def decode(encoded: np.ndarray) -> np.ndarray:
    """Images `[count, height, width, 3]` out of differences `[3, count, height, width]`.

    The file holds, modulo 256, red and blue less green, and of all three the differences from row
    to row and from column to column: photographs are smooth, and packed so they take less room.
    """
    sums = np.cumsum(encoded, axis=2, dtype=np.uint8)
    found = np.cumsum(sums, axis=3, dtype=np.uint8)
    found[[0, 2]] += found[1]
    return np.ascontiguousarray(found.transpose(1, 2, 3, 0))
