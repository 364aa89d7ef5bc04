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

import math
from types import ModuleType
from typing import Literal

import jax

Platform = Literal["cuda", "tpu"]

STEP, LAUNCH, BANDWIDTH = 5e-8, 5e-6, 1e12  # seconds, seconds, bytes a second: assumed, see above
TILE = 32 * 128  # channels that a TPU takes at once


def pays(platform: str, sweeps: int, batch: int, time: int, channels: int, size: int) -> bool:
    """Whether a kernel is expected to take less than the plain form; see the top of the file.

    Args:
      platform: that it is for.
      sweeps: 1 for a recurrence, 2 for a tridiagonal solve.
      batch, time, channels: the shape.
      size: bytes of a number.
    """
    operand = batch * time * channels * size / BANDWIDTH
    tiles = math.ceil(batch * channels / TILE) if platform == "tpu" else 1
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
    return _of(platform).recurrence(coupling, rhs, reverse, interpret)


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
    return _of(platform).tridiagonal(lower, diagonal, upper, rhs, interpret)


def _of(platform: Platform) -> ModuleType:
    """A platform's kernels; what writes those of another need not be installed."""
    if platform == "cuda":
        from solvers.kernels import cuda

        return cuda
    from solvers.kernels import tpu

    return tpu
