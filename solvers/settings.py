"""Records of settings that compare by value, and the checks their numbers pass."""

from __future__ import annotations

import dataclasses
import math
import numbers
from typing import Any

import jax
import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class Settings:
    """What methods, linear solvers and adjoints are: frozen, equal where their settings are.

    Arrays count by their values, functions and traced values by identity.
    """

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash((type(self), self._key()))

    def _key(self) -> tuple:
        return tuple(comparable(getattr(self, f.name)) for f in dataclasses.fields(self))

    @property
    def closed(self) -> bool:
        """Whether there is neither an array nor a function in it that could hide one."""
        return all(_is_plain(getattr(self, f.name)) for f in dataclasses.fields(self))


def comparable(value: Any) -> Any:
    """A hashable stand-in for a setting."""
    if isinstance(value, tuple | list):
        return type(value), tuple(comparable(item) for item in value)
    if isinstance(value, dict):
        return dict, tuple((key, comparable(item)) for key, item in value.items())
    if isinstance(value, jax.core.Tracer):
        return Same(value)
    if isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        return "key", str(value.dtype), comparable(jax.random.key_data(value))
    if isinstance(value, jax.Array | np.ndarray):
        array = np.asarray(value)
        return "array", str(array.dtype), array.shape, array.tobytes()
    try:
        hash(value)
    except TypeError:
        return Same(value)
    return value


class Same:
    """An object that equals itself alone; keeps it alive, so that its address is not reused."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


def _is_plain(value: Any) -> bool:
    if hasattr(type(value), "closed"):
        return value.closed is True
    if isinstance(value, tuple | list):
        return all(_is_plain(item) for item in value)
    return value is None or isinstance(value, bool | int | float | str)


def require_count(name: str, value: Any, least: int = 0) -> int:
    """`value` as an int; refuses what is not a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")
    return int(value)


def require_callable(name: str, value: Any) -> None:
    """Refuses what is neither None nor a function."""
    if value is not None and not callable(value):
        raise TypeError(f"{name} must be a function, got {value!r}")


def require_number(
    name: str,
    value: Any,
    least: float = 0.0,
    most: float = math.inf,
    *,
    open_at_least: bool = False,
) -> None:
    """Refuses a number that is NaN or outside its range; a traced one cannot be looked at."""
    if value is None or isinstance(value, jax.core.Tracer):
        return
    try:
        # Under vmap or jit a concrete array is one number for each example.
        entries = np.asarray(value, dtype=float)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be a number, got {value!r}") from None
    inside = (entries > least if open_at_least else entries >= least) & (entries <= most)
    if not np.all(inside):
        bounds = f"{'above' if open_at_least else 'at least'} {least:g}"
        if most != math.inf:
            bounds += f" and at most {most:g}"
        raise ValueError(f"{name} must be {bounds}, got {value!r}")
