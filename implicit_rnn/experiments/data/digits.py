"""300 handwritten digits of 8 x 8 pixels that come with the package: nothing has to be fetched."""

from __future__ import annotations

import importlib.resources

import numpy as np

SIDE = 8
_LEVELS = "0123456789abcdefg"


def load() -> tuple[np.ndarray, np.ndarray]:
    """The images, and the digits that they show.

    Part of "Optical Recognition of Handwritten Digits" (E. Alpaydin and C. Kaynak, UCI Machine
    Learning Repository, 1998), which scikit-learn distributes as `load_digits`.

    Returns:
      uint8 `[300, 8, 8]`, 0 paper and 16 ink, and uint8 `[300]`.
    """
    text = (
        importlib.resources.files("implicit_rnn.experiments.data")
        .joinpath("digits.txt")
        .read_text("ascii")
    )
    lines = [line.split() for line in text.splitlines() if not line.startswith("#")]
    pixels = [[_LEVELS.index(level) for level in image] for _, image in lines]
    labels = [int(digit) for digit, _ in lines]
    return np.array(pixels, np.uint8).reshape(-1, SIDE, SIDE), np.array(labels, np.uint8)
