"""Kernels for CUDA: a warp walks along the whole of time for 32 channels of one example."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from solvers.kernels.sweep import ELIMINATION, SUBSTITUTION, Row, Sweep, recurring, result_like

WARP = 32


def recurrence(coupling: jax.Array, rhs: jax.Array, reverse: bool, interpret: bool) -> jax.Array:
    """As `kernels.recurrence`."""
    return _by_warps("recurrence", [recurring(reverse)], [coupling, rhs], interpret)


def tridiagonal(
    lower: jax.Array, diagonal: jax.Array, upper: jax.Array, rhs: jax.Array, interpret: bool
) -> jax.Array:
    """As `kernels.tridiagonal`."""
    operands = [lower, diagonal, upper, rhs]
    return _by_warps("tridiagonal", [ELIMINATION, SUBSTITUTION], operands, interpret)


def _by_warps(
    name: str, sweeps: list[Sweep], operands: list[jax.Array], interpret: bool
) -> jax.Array:
    """Sweeps one after the other, each over what the last has written; the last result.

    Of `[batch, time, channels]` every lane reads what it has written itself, and nothing else.
    """
    batch, time, channels = operands[0].shape
    groups = pl.cdiv(channels, WARP)
    written = max(sweep.writes for sweep in sweeps)

    def kernel(*refs: Any) -> None:
        program = pl.program_id(0)
        example, first = program // groups, program % groups * WARP
        inside = first + jnp.arange(WARP) < channels
        sources, results = refs[:-written], refs[-written:]

        def place(ref: Any, t: Any) -> Any:
            return ref.at[example, jnp.int32(t), pl.ds(first, WARP)]

        def read(sources: tuple, t: Any) -> Row:
            return tuple(triton.load(place(ref, t), mask=inside, other=0) for ref in sources)

        def write(targets: tuple, t: Any, row: Row) -> None:
            for ref, values in zip(targets, row, strict=True):
                triton.store(place(ref, t), values, mask=inside)

        for number, sweep in enumerate(sweeps):
            if number and not interpret:  # which has one thread
                triton.debug_barrier()
            start = (jnp.zeros(WARP, operands[0].dtype),) * sweep.writes
            targets = results[-sweep.writes :]
            sweep.run(time, partial(read, sources), partial(write, targets), start)
            sources = targets

    results = pl.pallas_call(
        kernel,
        grid=(batch * groups,),
        out_shape=[result_like(operands[0])] * written,
        compiler_params=triton.CompilerParams(num_warps=1, num_stages=1),
        interpret=interpret,
        name=name,
    )(*operands)
    return results[-1]
