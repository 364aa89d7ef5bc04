"""Direct solves along time as kernels for accelerators, in Pallas: time inside, channels in lanes.

A linear recurrence `x[t] = a[t] x[t-1] + b[t]`, and the elimination and the substitution of a
tridiagonal solve, have one short chain of operations a step, and as many independent chains as
there are channels, those of all examples of a batch included. A kernel walks along time and keeps
what it carries in registers: operands are read once, in order, and nothing in between goes through
memory but the factors of the elimination. The plain forms for accelerators, associative scan and
cyclic reduction, have `log2(time)` levels instead, each of them launches and passes over memory.

**On CUDA** (Pallas' Triton) a program is one warp, 32 channels of one example, for all of time.
Rows are loaded eight at a time, so that they wait for memory together. The factors are a second
result, written by the first sweep and read by the second. Nothing is padded: lanes without a
channel are off.

**On TPUs** (Mosaic) a row is a tile of up to 32 x 128 channels, examples beside each other, and
time is divided into blocks, one after the other: the carry waits in vector memory between them, so
that a sequence of any length fits. A tridiagonal solve that fits as a whole is one kernel with its
factors in scratch; else elimination and substitution (which is a linear recurrence against time)
are two. Channels are padded to whole lanes; rows past the end of time are masked.

**When.** A kernel takes `time` steps one after the other (a tridiagonal solve twice as many) for
any number of channels, until their bytes take longer; on a TPU tiles follow each other, too. The
plain forms take rounds and bytes. With `n` the bytes of an operand, `pays` compares

    kernel    LAUNCH + the larger of (steps x tiles) STEP and 3 n (tridiagonal: 9 n) / BANDWIDTH
    scan      2 log2(time) LAUNCH + 10 n / BANDWIDTH
    cyclic    log2(time) (LAUNCH + 12 n / BANDWIDTH)

So kernels are for many channels, where the plain forms are bound by bytes, and for short time,
where they are bound by launches. A few channels over a long time (64 channels, 100,000 steps) are
left to associative scan and cyclic reduction. The three constants are **assumed, not measured**:
orders of magnitude of present accelerators. Nothing in this file has run on one; it is tested in
interpret mode, and lowered for both.

**Numbers** are float32 (float16 and bfloat16 are converted before and after); on CUDA float64, too.
**The plain form** remains for all else: float64 on TPUs, other platforms, matrices as couplings,
symbolic shapes, meshes with explicit axes, and programs that XLA partitions over several devices by
itself, as it cannot divide a kernel (inside `shard_map` kernels work on what a device has).
`jax.export` for CUDA gets the plain form as well: it refuses to keep Triton's kernels, which
another version of JAX need not understand.

`SOLVERS_KERNELS` in the environment, read when a program is traced: `0` leaves kernels out,
`exported` has them in exports for CUDA (with `disabled_checks` for `__gpu$xla.gpu.triton`).
`algorithm="kernel"` of the solves in `bands` asks for kernels wherever they are possible.

Pallas' Triton is deprecated from JAX 0.11 on, which this library does not allow yet.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

Platform = Literal["cuda", "tpu"]
Row = tuple[jax.Array, ...]
Advance = Callable[[Row, Row], tuple[Row, Row]]  # (carry, what is read) -> (carry, what is written)

STEP, LAUNCH, BANDWIDTH = 5e-8, 5e-6, 1e12  # seconds, seconds, bytes a second; see `pays`

WARP, TOGETHER = 32, 8  # channels of a program on CUDA; rows that are read before one is used
LANES, SUBLANES = 128, 32  # a tile of a TPU, at most
TILE = 8  # rows of lanes that take no less vector memory than so many
BLOCK, WHOLE = 2**19, 2**23  # bytes of vector memory: of one block, and of a solve in one piece


def pays(platform: str, sweeps: int, batch: int, time: int, channels: int, size: int) -> bool:
    """Whether a kernel is expected to take less than the plain form; see the top of the file.

    Args:
      platform: that it is for.
      sweeps: 1 for a recurrence, 2 for a tridiagonal solve.
      batch, time, channels: the shape.
      size: bytes of a number.
    """
    operand = batch * time * channels * size / BANDWIDTH
    tiles = math.ceil(batch * channels / (LANES * SUBLANES)) if platform == "tpu" else 1
    levels = (time - 1).bit_length()
    if sweeps == 1:
        kernel, plain = 3 * operand, 2 * levels * LAUNCH + 10 * operand
    else:
        kernel, plain = 9 * operand, levels * (LAUNCH + 12 * operand)
    return LAUNCH + max(kernel, sweeps * time * tiles * STEP) < plain


def recurrence(
    coupling: jax.Array,
    rhs: jax.Array,
    *,
    platform: Platform,
    reverse: bool = False,
    interpret: bool = False,
) -> jax.Array:
    """`x[t] = coupling[t] x[t-1] + rhs[t]`, with `reverse` of `x[t+1]`.

    Args:
      coupling, rhs: `[batch, time, channels]`, float32 (on CUDA float64, too).
      platform: whose kernel.
      reverse: against time.
      interpret: run it by XLA's operations, on any platform.
    """
    if platform == "cuda":
        return _by_warps([(_recur, 2, 1, reverse)], [coupling, rhs], interpret)
    rows = [_in_lanes(array) for array in (coupling, rhs)]
    return _from_lanes(_recurrence_by_blocks(rows, reverse, interpret), rhs.shape)


def tridiagonal(
    lower: jax.Array,
    diagonal: jax.Array,
    upper: jax.Array,
    rhs: jax.Array,
    *,
    platform: Platform,
    interpret: bool = False,
) -> jax.Array:
    """The solution of `bands.tridiagonal_solve`, without pivoting.

    Args:
      lower, diagonal, upper, rhs: `[batch, time, channels]`, float32 (on CUDA float64, too).
      platform: whose kernel.
      interpret: run it by XLA's operations, on any platform.
    """
    operands = [lower, diagonal, upper, rhs]
    if platform == "cuda":
        sweeps: list[Sweep] = [(_eliminate, 4, 2, False), (_recur, 2, 1, True)]
        return _by_warps(sweeps, operands, interpret)
    rows = [_in_lanes(a, fill) for a, fill in zip(operands, (0, 1, 0, 0), strict=True)]
    # Four operands and the result have two buffers each, so that copies go on beside the sweep.
    if 11 * rows[0].shape[0] * _row_bytes(rows[0]) <= WHOLE:
        return _from_lanes(_tridiagonal_in_one(rows, interpret), rhs.shape)
    factors = _by_blocks((_eliminate, 4, 2, False), rows, interpret)
    return _from_lanes(_recurrence_by_blocks(factors, True, interpret), rhs.shape)


def _recur(carry: Row, row: Row) -> tuple[Row, Row]:
    state = row[0] * carry[0] + row[1]
    return (state,), (state,)


def _eliminate(carry: Row, row: Row) -> tuple[Row, Row]:
    """A row in terms of the next unknown alone, `x[t] = coupling[t] x[t+1] + value[t]`."""
    (coupling, value), (lower, diagonal, upper, rhs) = carry, row
    pivot = 1 / (diagonal + lower * coupling)
    found = -upper * pivot, (rhs - lower * value) * pivot
    return found, found


# What is done to a row; how many arrays it reads, and writes and carries; whether against time.
Sweep = tuple[Advance, int, int, bool]


def _sweep(
    advance: Advance,
    time: int,
    reverse: bool,
    read: Callable[[Any], Row],
    write: Callable[[Any, Row], None],
    carry: Row,
) -> Row:
    """Steps along `time` rows: several are read before the first of them is used."""

    def rows(first: Any, count: int, carry: Row) -> Row:
        places = [time - 1 - first - k if reverse else first + k for k in range(count)]
        read_rows = [read(t) for t in places]
        for t, row in zip(places, read_rows, strict=True):
            carry, result = advance(carry, row)
            write(t, result)
        return carry

    turns, rest = divmod(time, TOGETHER)
    if turns:
        carry = lax.fori_loop(0, turns, lambda i, c: rows(i * TOGETHER, TOGETHER, c), carry)
    return rows(turns * TOGETHER, rest, carry)


def _result(shape: tuple[int, ...], like: jax.Array) -> jax.ShapeDtypeStruct:
    """The type of a kernel's result; inside `shard_map` it has to say that it varies along no axis.

    Nothing here does: `platforms` hands over arrays of one device.
    """
    if hasattr(jax.sharding, "ManualAxisType"):
        kind: dict[str, Any] = {"manual_axis_type": jax.sharding.ManualAxisType()}
    else:  # before JAX 0.10
        kind = {"vma": frozenset()}
    return jax.ShapeDtypeStruct(shape, like.dtype, **kind)


# CUDA


def _by_warps(sweeps: list[Sweep], operands: list[jax.Array], interpret: bool) -> jax.Array:
    """Sweeps one after the other, each over what the last has written; the last result."""
    from jax.experimental.pallas import triton

    batch, time, channels = operands[0].shape
    groups = pl.cdiv(channels, WARP)
    written = max(writes for _, _, writes, _ in sweeps)

    def kernel(*refs: Any) -> None:
        program = pl.program_id(0)
        example, first = program // groups, program % groups * WARP
        inside = first + jnp.arange(WARP) < channels
        sources, results = refs[:-written], refs[-written:]

        def place(ref: Any, t: Any) -> Any:
            return ref.at[example, jnp.int32(t), pl.ds(first, WARP)]

        def read(t: Any) -> Row:
            return tuple(triton.load(place(ref, t), mask=inside, other=0) for ref in sources)

        def write(targets: tuple, t: Any, row: Row) -> None:
            for ref, values in zip(targets, row, strict=True):
                triton.store(place(ref, t), values, mask=inside)

        for number, (advance, _, writes, reverse) in enumerate(sweeps):
            if number:
                sources = results
            if number and not interpret:  # which runs one thread
                triton.debug_barrier()
            targets = results[-writes:]
            carry = (jnp.zeros(WARP, operands[0].dtype),) * writes
            _sweep(advance, time, reverse, read, functools.partial(write, targets), carry)

    results = pl.pallas_call(
        kernel,
        grid=(batch * groups,),
        out_shape=[_result(operands[0].shape, operands[0])] * written,
        compiler_params=triton.CompilerParams(num_warps=1, num_stages=1),
        interpret=interpret,
        name="_".join(sweep[0].__name__.strip("_") for sweep in sweeps),
    )(*operands)
    return results[-1]


# TPUs


def _in_lanes(array: jax.Array, fill: float = 0) -> jax.Array:
    """`[batch, time, channels]` as `[time, rows, LANES]`."""
    batch, time, channels = array.shape
    rows = jnp.moveaxis(array, 0, 1).reshape(time, batch * channels)
    missing = -batch * channels % LANES
    rows = jnp.pad(rows, ((0, 0), (0, missing)), constant_values=fill)
    return rows.reshape(time, -1, LANES)


def _row_bytes(rows: jax.Array) -> int:
    """Vector memory that a step of one tile takes."""
    return max(min(rows.shape[1], SUBLANES), TILE) * LANES * rows.dtype.itemsize


def _from_lanes(rows: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    batch, time, channels = shape
    wide = rows.reshape(time, -1)[:, : batch * channels]
    return jnp.moveaxis(wide.reshape(time, batch, channels), 1, 0)


def _recurrence_by_blocks(rows: list[jax.Array], reverse: bool, interpret: bool) -> jax.Array:
    return _by_blocks((_recur, 2, 1, reverse), rows, interpret)[0]


def _by_blocks(sweep: Sweep, rows: list[jax.Array], interpret: bool) -> list[jax.Array]:
    """A sweep over `[time, rows, LANES]`, a block of time after the other."""
    from jax.experimental.pallas import tpu

    advance, reads, writes, reverse = sweep
    time, wide, _ = rows[0].shape
    dtype, tile = rows[0].dtype, min(wide, SUBLANES)
    length = min(time, BLOCK // _row_bytes(rows[0]))
    blocks = pl.cdiv(time, length)

    def place(group: Any, turn: Any) -> tuple:
        return blocks - 1 - turn if reverse else turn, group, 0

    def kernel(*refs: Any) -> None:
        operands, results, carries = refs[:reads], refs[reads:-writes], refs[-writes:]
        turn = pl.program_id(1)
        start = place(0, turn)[0] * length

        @pl.when(turn == 0)
        def _() -> None:
            for ref in carries:
                ref[...] = jnp.zeros_like(ref)

        def read(t: Any) -> Row:
            row = tuple(ref[t] for ref in operands)
            # What lies past the end is anything; against time it would come first.
            masked = reverse and time % length
            return tuple(jnp.where(start + t < time, a, 0) for a in row) if masked else row

        def write(t: Any, row: Row) -> None:
            for ref, values in zip(results, row, strict=True):
                ref[t] = values

        carry = tuple(ref[...] for ref in carries)
        for ref, last in zip(
            carries, _sweep(advance, length, reverse, read, write, carry), strict=True
        ):
            ref[...] = last

    block = pl.BlockSpec((length, tile, LANES), place)
    return pl.pallas_call(
        kernel,
        grid=(pl.cdiv(wide, tile), blocks),
        in_specs=[block] * reads,
        out_specs=[block] * writes,
        out_shape=[_result(rows[0].shape, rows[0])] * writes,
        scratch_shapes=[tpu.VMEM((tile, LANES), dtype)] * writes,
        compiler_params=tpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
        interpret=interpret,
        name=advance.__name__.strip("_"),
    )(*rows)


def _tridiagonal_in_one(rows: list[jax.Array], interpret: bool) -> jax.Array:
    """Both sweeps over the whole of time, `[time, rows, LANES]`, the factors in scratch."""
    from jax.experimental.pallas import tpu

    time, wide, _ = rows[0].shape
    tile = min(wide, SUBLANES)

    def kernel(*refs: Any) -> None:
        *operands, result, couplings = refs
        zero = jnp.zeros((tile, LANES), result.dtype)

        def write(t: Any, row: Row) -> None:
            couplings[t], result[t] = row

        def substitute(t: Any, row: Row) -> None:
            result[t] = row[0]

        _sweep(_eliminate, time, False, lambda t: tuple(r[t] for r in operands), write, (zero,) * 2)
        _sweep(_recur, time, True, lambda t: (couplings[t], result[t]), substitute, (zero,))

    block = pl.BlockSpec((time, tile, LANES), lambda group: (0, group, 0))
    return pl.pallas_call(
        kernel,
        grid=(pl.cdiv(wide, tile),),
        in_specs=[block] * 4,
        out_specs=block,
        out_shape=_result(rows[0].shape, rows[0]),
        scratch_shapes=[tpu.VMEM((time, tile, LANES), rows[0].dtype)],
        compiler_params=tpu.CompilerParams(dimension_semantics=("parallel",)),
        interpret=interpret,
        name="tridiagonal",
    )(*rows)
