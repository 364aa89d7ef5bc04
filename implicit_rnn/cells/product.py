"""Products with a matrix in which the examples of a batch are more rows.

By `jax.vmap` a product of rows `[time, in]` with a matrix becomes one of `[batch, time, in]`, and
its transpose by the matrix a sum over batch and time. For that XLA's CPU compiler turns the axes of
the cotangent in memory, and multiplies at little more than half its rate. Here a batch makes one
long list of rows, and the gradient is `rows^T cotangent` as it stands.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from solvers.mesh import on_explicit_mesh, vary_with

Precision = Any  # as `jax.default_matmul_precision` takes it


def product(x: jax.Array, weights: jax.Array) -> jax.Array:
    """`x @ weights` with all leading axes of `x` made one: its gradient is then a plain product."""
    dtype = jnp.result_type(x, weights)
    x, weights = x.astype(dtype), weights.astype(dtype)
    if on_explicit_mesh():  # axes that are spread over devices are not to be merged
        return x @ weights
    rows = x.reshape(-1, x.shape[-1])
    precision = jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]
    varied = vary_with(rows, weights), vary_with(weights, rows)
    found = _rows_times_p.bind(*varied, precision=precision)
    return found.reshape(*x.shape[:-1], weights.shape[-1])


def _plain(x: jax.Array, weights: jax.Array, *, precision: Precision) -> jax.Array:
    return lax.dot_general(x, weights, (((1,), (0,)), ((), ())), precision=precision)


def _type(x: Any, weights: Any, *, precision: Precision) -> Any:
    """As of `lax.dot_general`, which knows over which devices a value varies."""
    traced = jax.make_jaxpr(partial(_plain, precision=precision))(x, weights)
    return traced.out_avals[0]


def _batched(
    operands: tuple[jax.Array, jax.Array],
    axes: tuple[int | None, int | None],
    *,
    precision: Precision,
) -> tuple[jax.Array, int]:
    """More rows, or more columns; rows and matrices in pairs stay as many products."""
    (x, weights), (row, column) = operands, axes
    if row is None:
        weights = jnp.moveaxis(weights, column or 0, 1)
        found = _rows_times_p.bind(x, lax.collapse(weights, 1, 3), precision=precision)
        return found.reshape(x.shape[0], *weights.shape[1:]), 1
    if column is None:
        x = jnp.moveaxis(x, row, 0)
        found = _rows_times_p.bind(lax.collapse(x, 0, 2), weights, precision=precision)
        return found.reshape(*x.shape[:-1], weights.shape[1]), 0
    return jax.vmap(partial(_plain, precision=precision), (row, column))(x, weights), 0


def _by_rows(cotangent: jax.Array, x: Any, weights: jax.Array, *, precision: Precision) -> Any:
    return _rows_times_p.bind(cotangent, weights.T, precision=precision)


def _by_weights(cotangent: jax.Array, x: jax.Array, weights: Any, *, precision: Precision) -> Any:
    return _rows_times_p.bind(x.T, cotangent, precision=precision)


_rows_times_p = Primitive("rows_times")
_rows_times_p.def_impl(jax.jit(_plain, static_argnames="precision"))
_rows_times_p.def_abstract_eval(_type)
mlir.register_lowering(_rows_times_p, mlir.lower_fun(_plain, multiple_results=False))
ad.defbilinear(_rows_times_p, _by_rows, _by_weights)
batching.primitive_batchers[_rows_times_p] = _batched
