"""One operation for direct solves along time that is a kernel where a platform has one.

What a platform runs is decided when a program is lowered for it, and what another one would run is
not even traced: kernels cost programs for CPUs nothing. Under `vmap` operands stay whole, so that a
kernel sees all examples.

The operation has no derivative of its own. It stands inside `lax.custom_linear_solve`, which has.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from solvers.mesh import on_explicit_mesh, vary_with

Kind = Literal["recurrence", "recurrence_reversed", "tridiagonal"]
Plain = Callable[..., jax.Array]

HALVES = ("float16", "bfloat16")
TYPES = {"cuda": (*HALVES, "float32", "float64"), "tpu": (*HALVES, "float32")}
SWITCH = "SOLVERS_KERNELS"
LARGEST = 2**31  # entries of an array: kernels count them in 32 bits


def kernels_wanted() -> bool:
    """Whether `SOLVERS_KERNELS` in the environment leaves kernels on, as it does unless it is 0."""
    return os.environ.get(SWITCH, "1") != "0"


def kernel_solve(kind: Kind, plain: Plain, *operands: jax.Array, always: bool = True) -> jax.Array:
    """The kernel of a solve, or its plain form.

    Args:
      kind: which solve.
      plain: the same from `operands` by plain operations, for all that has no kernel; part of what
        programs are compared by, so the same function every time.
      operands: bands and right-hand side, `[time, ...]`, the same shape.
      always: the kernel wherever there is one, interpreted on CPUs; else where it should pay.
    """
    rhs = operands[-1]
    if on_explicit_mesh() or any(a.shape != rhs.shape for a in operands):
        return plain(*operands)
    alike = [vary_with(a.astype(rhs.dtype), *operands) for a in operands]
    exported = always or os.environ.get(SWITCH) == "exported"
    settings = {"kind": kind, "plain": plain, "always": always, "exported": exported}
    return _solve.bind(*alike, axis=0, **settings)


_solve = Primitive("solve_along_time")
_solve.def_abstract_eval(lambda *types, **_: types[-1])


@_solve.def_impl
def _evaluated(*operands: jax.Array, **settings: Any) -> jax.Array:
    with jax.disable_jit(False):  # else this would evaluate itself
        return jax.jit(functools.partial(_solve.bind, **settings))(*operands)


def _batched(operands: Any, axes: Any, *, axis: int, **settings: Any) -> tuple[jax.Array, int]:
    (size,) = {a.shape[at] for a, at in zip(operands, axes, strict=True) if at is not None}
    moved = [
        jnp.broadcast_to(a, (size, *a.shape)) if at is None else jnp.moveaxis(a, at, 0)
        for a, at in zip(operands, axes, strict=True)
    ]
    return _solve.bind(*moved, axis=axis + 1, **settings), 0


batching.primitive_batchers[_solve] = _batched


def _lowered(
    platform: str | None, context: Any, *values: Any,
    kind: Kind, plain: Plain, axis: int, always: bool, exported: bool,
) -> Any:  # fmt: skip
    """The operation on one platform; `None` is any that has no kernels."""
    types = [jax.core.ShapedArray(a.shape, a.dtype) for a in context.avals_in]
    run = plain
    for _ in range(axis):
        run = jax.vmap(run)
    if platform is not None and _possible(platform, context, types[-1], exported):
        shape, dtype = _three_axes(types[-1].shape, axis), types[-1].dtype
        if always or (platform != "cpu" and _pays(platform, kind, shape, dtype)):
            run = functools.partial(_by_kernel, platform, kind, shape)
    context = context.replace(avals_in=types)
    # Kernels in 32 bits must count in 32 bits, too: TPUs have no others.
    with jax.enable_x64(types[-1].dtype.name in ("float64", "complex128")):
        return mlir.lower_fun(run, multiple_results=False)(context, *values)


for _platform in ("cpu", "cuda", "tpu"):
    mlir.register_lowering(_solve, functools.partial(_lowered, _platform), platform=_platform)
mlir.register_lowering(_solve, functools.partial(_lowered, None))


def _possible(platform: str, context: Any, kind: Any, exported: bool) -> bool:
    """Whether a kernel can be part of the program that is lowered.

    What is exported may be read by another version of JAX, and Triton promises it nothing: without
    being told not to check, `jax.export` refuses its kernels.
    """
    known = all(isinstance(size, int) for size in kind.shape)  # not so for symbolic shapes
    typed = kind.dtype.name in TYPES.get(platform, TYPES["cuda"])
    lasting = (
        exported or platform == "tpu" or not context.module_context.lowering_parameters.for_export
    )
    return known and typed and lasting and 0 < kind.size < LARGEST and _on_one_device(context)


def _on_one_device(context: Any) -> bool:
    """Whether no axis of a mesh is left for XLA to divide the operation along."""
    where = context.module_context.axis_context
    if isinstance(where, mlir.SPMDAxisContext):
        manual = where.manual_axes | {*getattr(where.mesh, "manual_axes", ())}
        return manual == {*where.mesh.axis_names}
    return not isinstance(where, mlir.ShardingContext) or where.num_devices == 1


def _three_axes(shape: tuple[int, ...], axis: int) -> tuple[int, int, int]:
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])


def _pays(platform: str, kind: Kind, shape: tuple[int, int, int], dtype: Any) -> bool:
    from solvers import kernels

    sweeps = 2 if kind == "tridiagonal" else 1
    return kernels.pays(platform, sweeps, *shape, dtype.itemsize)


def _by_kernel(
    platform: str, kind: Kind, shape: tuple[int, int, int], *operands: jax.Array
) -> jax.Array:
    from solvers import kernels  # Pallas takes a while to import, and programs for CPUs need none

    result = operands[-1]
    working = jnp.float32 if result.dtype.name in HALVES else result.dtype
    arrays = [a.astype(working).reshape(shape) for a in operands]
    options = (
        {"platform": "tpu", "interpret": True} if platform == "cpu" else {"platform": platform}
    )
    if kind == "tridiagonal":
        x = kernels.tridiagonal(*arrays, **options)
    else:
        x = kernels.recurrence(*arrays, **options, reverse=kind == "recurrence_reversed")
    return x.reshape(result.shape).astype(result.dtype)
