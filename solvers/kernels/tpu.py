"""Kernels for TPUs: a tile of channels after the other, each along blocks of time.

Arrays are `[time, rows, LANES]`: the channels of all examples beside each other.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu

from solvers.kernels.sweep import ELIMINATION, SUBSTITUTION, Row, Sweep, recurring, result_like

LANES, SUBLANES = 128, 32  # of a tile, at most
LEAST = 8  # rows take the memory of so many, if they are fewer
BLOCK, WHOLE = 2**19, 2**23  # bytes of vector memory: of one block, and of a solve in one piece


def recurrence(coupling: jax.Array, rhs: jax.Array, reverse: bool, interpret: bool) -> jax.Array:
    """As `kernels.recurrence`."""
    rows = [_in_lanes(array) for array in (coupling, rhs)]
    (x,) = _by_blocks("recurrence", recurring(reverse), rows, interpret)
    return _from_lanes(x, rhs.shape)


def tridiagonal(
    lower: jax.Array, diagonal: jax.Array, upper: jax.Array, rhs: jax.Array, interpret: bool
) -> jax.Array:
    """As `kernels.tridiagonal`."""
    rows = [_in_lanes(array) for array in (lower, upper, rhs)]
    rows.insert(1, _in_lanes(diagonal, fill=1))
    # Four operands and the result have two buffers each, so that copies go on beside the sweep.
    if (2 * 5 + 1) * rows[0].shape[0] * _row_bytes(rows[0]) <= WHOLE:
        return _from_lanes(_in_one(rows, interpret), rhs.shape)
    factors = _by_blocks("elimination", ELIMINATION, rows, interpret)
    (x,) = _by_blocks("substitution", SUBSTITUTION, factors, interpret)
    return _from_lanes(x, rhs.shape)


def _in_lanes(array: jax.Array, fill: float = 0) -> jax.Array:
    batch, time, channels = array.shape
    wide = jnp.moveaxis(array, 0, 1).reshape(time, batch * channels)
    missing = -batch * channels % LANES
    wide = jnp.pad(wide, ((0, 0), (0, missing)), constant_values=fill)
    return wide.reshape(time, -1, LANES)


def _from_lanes(rows: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    batch, time, channels = shape
    wide = rows.reshape(time, -1)[:, : batch * channels]
    return jnp.moveaxis(wide.reshape(time, batch, channels), 1, 0)


def _row_bytes(rows: jax.Array) -> int:
    """Vector memory that a step of one tile takes."""
    return max(min(rows.shape[1], SUBLANES), LEAST) * LANES * rows.dtype.itemsize


def _by_blocks(name: str, sweep: Sweep, rows: list[jax.Array], interpret: bool) -> list[jax.Array]:
    """A sweep, a block of time after the other; what is carried waits in scratch."""
    time, wide, _ = rows[0].shape
    tile = min(wide, SUBLANES)
    length = min(time, BLOCK // _row_bytes(rows[0]))
    blocks = pl.cdiv(time, length)
    # What lies past the end is anything. Against time it comes first.
    masked = sweep.reverse and time % length

    def place(group: Any, turn: Any) -> tuple:
        return blocks - 1 - turn if sweep.reverse else turn, group, 0

    def kernel(*refs: Any) -> None:
        operands, others = refs[: sweep.reads], refs[sweep.reads :]
        results, carries = others[: sweep.writes], others[sweep.writes :]
        group, turn = pl.program_id(0), pl.program_id(1)
        start = place(group, turn)[0] * length

        @pl.when(turn == 0)
        def _() -> None:
            for ref in carries:
                ref[...] = jnp.zeros_like(ref)

        def read(t: Any) -> Row:
            row = tuple(ref[t] for ref in operands)
            return tuple(jnp.where(start + t < time, a, 0) for a in row) if masked else row

        def write(t: Any, row: Row) -> None:
            for ref, values in zip(results, row, strict=True):
                ref[t] = values

        last = sweep.run(length, read, write, tuple(ref[...] for ref in carries))
        for ref, values in zip(carries, last, strict=True):
            ref[...] = values

    block = pl.BlockSpec((length, tile, LANES), place)
    return pl.pallas_call(
        kernel,
        grid=(pl.cdiv(wide, tile), blocks),
        in_specs=[block] * sweep.reads,
        out_specs=[block] * sweep.writes,
        out_shape=[result_like(rows[0])] * sweep.writes,
        scratch_shapes=[tpu.VMEM((tile, LANES), rows[0].dtype)] * sweep.writes,
        compiler_params=tpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
        interpret=interpret,
        name=name,
    )(*rows)


def _in_one(rows: list[jax.Array], interpret: bool) -> jax.Array:
    """Elimination and substitution over the whole of time, the factors in scratch."""
    time, wide, _ = rows[0].shape
    tile = min(wide, SUBLANES)

    def kernel(*refs: Any) -> None:
        *operands, result, couplings = refs
        zero = jnp.zeros((tile, LANES), result.dtype)

        def read(t: Any) -> Row:
            return tuple(ref[t] for ref in operands)

        def write(t: Any, row: Row) -> None:
            couplings[t], result[t] = row

        def substitute(t: Any, row: Row) -> None:
            result[t] = row[0]

        ELIMINATION.run(time, read, write, (zero, zero))
        SUBSTITUTION.run(time, lambda t: (couplings[t], result[t]), substitute, (zero,))

    block = pl.BlockSpec((time, tile, LANES), lambda group: (0, group, 0))
    return pl.pallas_call(
        kernel,
        grid=(pl.cdiv(wide, tile),),
        in_specs=[block] * 4,
        out_specs=block,
        out_shape=result_like(rows[0]),
        scratch_shapes=[tpu.VMEM((time, tile, LANES), rows[0].dtype)],
        compiler_params=tpu.CompilerParams(dimension_semantics=("parallel",)),
        interpret=interpret,
        name="tridiagonal",
    )(*rows)
