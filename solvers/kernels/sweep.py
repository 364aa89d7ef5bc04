"""What the kernels of all platforms do to a row of channels, and how they walk along time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax import lax

Row = tuple[jax.Array, ...]

TOGETHER = 8  # rows that are read before the first of them is used


class Sweep(NamedTuple):
    """A walk along time."""

    advance: Callable[[Row, Row], Row]  # (carry, what is read) -> carry, which is written, too
    reads: int  # arrays
    writes: int
    reverse: bool  # against time

    def run(
        self, time: int, read: Callable[[Any], Row], write: Callable[[Any, Row], None], carry: Row
    ) -> Row:
        """Along `time` rows; returns the last carry."""

        def rows(first: Any, count: int, carry: Row) -> Row:
            places = [time - 1 - first - k if self.reverse else first + k for k in range(count)]
            found = [read(t) for t in places]
            for t, row in zip(places, found, strict=True):
                carry = self.advance(carry, row)
                write(t, carry)
            return carry

        turns, rest = divmod(time, TOGETHER)
        if turns:
            carry = lax.fori_loop(0, turns, lambda i, c: rows(i * TOGETHER, TOGETHER, c), carry)
        return rows(turns * TOGETHER, rest, carry)


def _recur(carry: Row, row: Row) -> Row:
    return (row[0] * carry[0] + row[1],)


def _eliminate(carry: Row, row: Row) -> Row:
    """A row in terms of the next unknown alone, `x[t] = coupling[t] x[t+1] + value[t]`."""
    (coupling, value), (lower, diagonal, upper, rhs) = carry, row
    pivot = 1 / (diagonal + lower * coupling)
    return -upper * pivot, (rhs - lower * value) * pivot


def recurring(reverse: bool) -> Sweep:
    """`x[t] = coupling[t] x[t-1] + rhs[t]`."""
    return Sweep(_recur, reads=2, writes=1, reverse=reverse)


ELIMINATION = Sweep(_eliminate, reads=4, writes=2, reverse=False)
SUBSTITUTION = recurring(reverse=True)  # of what the elimination writes


def result_like(array: jax.Array) -> jax.ShapeDtypeStruct:
    """The type of a kernel's result; inside `shard_map` it has to say that it varies along no axis.

    Nothing here does: `platforms` hands over arrays of one device.
    """
    if hasattr(jax.sharding, "ManualAxisType"):
        kind: dict[str, Any] = {"manual_axis_type": jax.sharding.ManualAxisType()}
    else:  # before JAX 0.10
        kind = {"vma": frozenset()}
    return jax.ShapeDtypeStruct(array.shape, array.dtype, **kind)
