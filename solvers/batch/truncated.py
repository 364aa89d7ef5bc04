"""A backward solve of so many sweeps: a banded Neumann series, plain or extrapolated."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from solvers.info import Info
from solvers.mesh import constant
from solvers.space import Space, Vector, add, ratio, subtract
from solvers.verdict import of_remainder, relative

SPACE = Space(batch_axis=1)
_NOISE = 100  # roundings


def plain(
    matvec: Callable, inverse: Callable, target: Vector, size: jax.Array, sweeps: int
) -> tuple[Vector, Info]:
    """`w <- w + inverse(target - matvec(w))`, so many times from zero.

    Of three sweeps and more the residual that is reported is the one before the last sweep, which
    costs no product of its own.

    Args:
      matvec, inverse: products with the matrix, of order one, and with the inverse of its bands.
      target, size: the right-hand side, of order one, and its norm.
      sweeps: how many. In a row, not a loop, XLA would linearise anew in every one of them.
    """

    def sweep(_: jax.Array, carry: tuple) -> tuple:
        w, _, residual = carry
        rest = subtract(target, matvec(w))
        return add(w, inverse(rest)), residual, SPACE.length(rest)

    start = inverse(target), size, size
    w, before, residual = lax.fori_loop(0, sweeps - 1, sweep, start)
    short = sweeps < 3
    if short:
        before, residual = residual, SPACE.length(subtract(target, matvec(w)))
    before, residual = relative(before, size), relative(residual, size)
    # What is left may exceed what was there at first and still be on its way down.
    status = of_remainder(residual / jnp.maximum(before, 1), 0.0)
    return w, _report(sweeps, sweeps if short else sweeps - 1, residual, status, size)


def extrapolated(
    matvec: Callable, inverse: Callable, target: Vector, size: jax.Array, sweeps: int
) -> tuple[Vector, Info]:
    """The combination of the sweeps of `plain` that leaves the least residual, and a sweep more.

    With the residuals `r_j` of the series, `r_{j+1} = r_j - d_j`, `d_j = matvec(inverse(r_j))`,

        c = argmin |r_0 - sum_j c_j d_j|,    w = inverse(sum_j c_j r_j + (r_0 - sum_j c_j d_j)),

    for every example: GMRES preconditioned by `inverse`, from the products that `plain` takes and a
    sweep after it. What is reported is the residual before that sweep. It takes the memory of so
    many vectors.

    Args: as for `plain`, of two sweeps and more.
    """
    memory = jax.tree.map(lambda leaf: _put(0, leaf, _rows(sweeps, leaf)), target)

    def sweep(j: jax.Array, carry: tuple) -> tuple:
        rest, memory, products = carry
        change = matvec(inverse(rest))
        memory = jax.tree.map(partial(_put, j + 1), change, memory)
        found = lax.stop_gradient(SPACE.dots(memory, change))
        return subtract(rest, change), memory, _put(j, found, products)

    # r_0 and the d_j, and their products.
    start = target, memory, _rows(sweeps - 1, jnp.stack([size] * sweeps))
    last, memory, products = lax.fori_loop(0, sweeps - 1, sweep, start)
    weights = _least_squares(products, size)
    rest, w = _combined(weights, memory)
    w, residual = inverse(w), relative(SPACE.length(rest), size)
    # What the sweep after it makes of that, by what the last one made of the series.
    latest = jax.tree.map(lambda rows: rows[-1], memory)
    growth = ratio(SPACE.length(last), SPACE.length(add(last, latest)))
    status = of_remainder(residual * jnp.maximum(growth, 1), 0.0)
    return w, _report(sweeps, sweeps - 1, residual, status, size)


def _least_squares(products: jax.Array, size: jax.Array) -> jax.Array:
    """`c` of `min |r - sum_j c_j d_j|` for every example, by Gauss-Jordan elimination.

    A `d_j` that lies in the span of those before it, to rounding, gets no weight; nor one that is
    as small as the rounding of `r`: from there on a series that has converged is noise.

    Args:
      products: `[m, 1 + m, ...]`, `<d_j, r>` and `<d_j, d_i>` for `i <= j`; what is beyond is free.
      size: `|r|`.
    """
    count = products.shape[0]
    least = 10 * count * jnp.finfo(products.dtype).eps
    noise = (_NOISE * jnp.finfo(products.dtype).eps * size) ** 2
    place = np.arange(count).reshape(-1, *[1] * (products.ndim - 1))
    gram = products[:, 1:]
    gram = jnp.where(place >= np.swapaxes(place, 0, 1), gram, jnp.swapaxes(gram, 0, 1))

    def eliminate(p: jax.Array, system: jax.Array) -> jax.Array:
        pivot, line = system[p, p + 1], system[p]
        independent = pivot > jnp.maximum(least * gram[p, p], noise)
        line = jnp.where(independent, line / jnp.where(independent, pivot, 1), 0)
        rest = system - jnp.take(system, p + 1, axis=1)[:, None] * line
        return jnp.where(place == p, line, rest)

    system = jnp.concatenate([products[:, :1], gram], axis=1)
    return lax.fori_loop(0, count, eliminate, system)[:, 0]


def _combined(weights: jax.Array, memory: Vector) -> list[Vector]:
    """`s = r_0 - sum_j c_j d_j` and `sum_j c_j r_j + s` from the rows `r_0`, `d_j`."""
    count = len(weights)
    # Of the r_j that are taken there is as much in d_i as there is of all that come after it.
    left = np.concatenate([np.zeros((1, count)), -np.eye(count)])
    taken = np.concatenate([np.ones((1, count)), -np.triu(np.ones((count, count)), 1)])
    parts = np.stack([left, left + taken], axis=1).astype(weights.dtype)
    shares = jnp.tensordot(parts, weights, 1, precision=lax.Precision.HIGHEST)
    shares = shares.at[0].add(1)

    def add_row(sums: list[Vector], row: tuple[jax.Array, Vector]) -> tuple[list[Vector], None]:
        return [SPACE.plus(v, share, row[1]) for v, share in zip(sums, row[0], strict=True)], None

    # A loop: its body is compiled once, and a row is read once for both.
    zero = jax.tree.map(lambda rows: 0 * rows[0], memory)
    return lax.scan(add_row, [zero, zero], (shares, memory))[0]


def _rows(count: int, like: jax.Array) -> jax.Array:
    return jnp.stack([0 * like] * count)


def _put(row: jax.Array | int, leaf: jax.Array, rows: jax.Array) -> jax.Array:
    return lax.dynamic_update_index_in_dim(rows, leaf, row, 0, allow_negative_indices=False)


def _report(
    sweeps: int, products: int, residual: jax.Array, status: jax.Array, size: jax.Array
) -> Info:
    steps = constant(sweeps, jnp.isnan(size).astype(jnp.int32))  # on the devices of the batch
    return Info(steps, residual, status, steps + (products - sweeps))
