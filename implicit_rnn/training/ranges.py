"""Which numbers a setting may be: finite ones, within a range."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from typing import Any, NamedTuple

_MOST = 2**31 - 1  # of an integer: what a program of 32 bits counts with
_LARGEST = 3e38  # of any other number, in float32


class Range(NamedTuple):
    """Numbers from `least` to `most`, without an end that is open."""

    least: float = -math.inf
    most: float = math.inf
    least_open: bool = False
    most_open: bool = False
    infinite: bool = False  # whether infinity, too, is one of them
    largest: float = math.inf  # what programs can take, should it be less than for other numbers

    def holds(self, value: float) -> bool:
        """Whether a number is one of them; NaN never is."""
        above = value > self.least if self.least_open else value >= self.least
        return above and (value < self.most if self.most_open else value <= self.most)

    def words(self) -> str:
        """What a number must be."""
        parts = []
        if self.least != -math.inf:
            parts.append(f"{'above' if self.least_open else 'at least'} {self.least:g}")
        if self.most != math.inf:
            parts.append(f"{'below' if self.most_open else 'at most'} {self.most:g}")
        return " and ".join(parts)


ANY, NOT_NEGATIVE, POSITIVE = Range(), Range(0), Range(0, least_open=True)
COUNT = Range(1)
SIZE = Range(1, largest=10**6)  # of a side of matrices: no product of two may overflow
SHARE = Range(0, 1)
DROPPED = Range(0, 1, most_open=True)  # a share that something must be left of
UNLIMITED = Range(0, least_open=True, infinite=True)
SEED = Range(0, 2**31 - 1)


def check_number(name: str, value: Any, allowed: Range = ANY) -> None:
    """Refuses a number that is not finite, too large for the programs, or out of its range.

    Args:
      name: of the setting, for the message.
      value: a number, or a list of them; what is no number is not looked at.
      allowed: its range.
    """
    if isinstance(value, list | tuple):
        for number, item in enumerate(value):
            check_number(f"{name}[{number}]", item, allowed)
        return
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not real:
        return
    if allowed.infinite and value == math.inf:
        return
    if not -math.inf < value < math.inf:
        raise ValueError(f"{name} must be a finite number, got {value}")
    if not allowed.holds(value):
        words = "positive" if allowed == POSITIVE else allowed.words()
        raise ValueError(f"{name} must be {words}, got {value}")
    limit = min(_MOST if isinstance(value, int) else _LARGEST, allowed.largest)
    if abs(value) > limit:
        raise ValueError(f"{name} must be at most {limit:g} in size, got {str(value)[:20]}")


def check_settings(settings: Any, ranges: Mapping[str, Range]) -> None:
    """`check_number` for every field of a record of settings; each has its range, or any."""
    for name, value in vars(settings).items():
        check_number(name, value, ranges.get(name, ANY))
