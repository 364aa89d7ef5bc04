"""Structured direct solves along time: tridiagonal per channel, block tridiagonal, bidiagonal.

Time is the leading axis; whatever follows it are independent channels. A tridiagonal system is

    lower[t] x[t-1] + diagonal[t] x[t] + upper[t] x[t+1] = rhs[t],

where `lower[0]` and `upper[-1]` have no neighbour and are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from solvers.space import Tree

Algorithm = Literal["thomas", "cyclic"]


class Bands(NamedTuple):
    """The part of a Jacobian that couples a state to itself and its two neighbours in time.

    Each field is an array `[time, ...]`, or a pytree of them, like the state; `None` is zero.
    """

    lower: Tree
    upper: Tree
    diagonal: Tree | None = None


def splitting_inverse(bands: Bands) -> Callable[[Tree], Tree]:
    """`v -> (I - bands)^-1 v`: one tridiagonal solve per channel, O(time x channels)."""

    def inverse(tree: Tree) -> Tree:
        diagonal = bands.diagonal
        if diagonal is None:
            diagonal = jax.tree.map(jnp.zeros_like, tree)
        return jax.tree.map(
            _split_solve,
            tree,
            bands.lower,
            bands.upper,
            diagonal,
        )

    return inverse


def _split_solve(rhs: jax.Array, lower: jax.Array, upper: jax.Array, own: jax.Array) -> jax.Array:
    lower, upper, own = (band.astype(rhs.dtype) for band in (lower, upper, own))
    return tridiagonal_solve(-lower, 1 - own, -upper, rhs)


def tridiagonal_matvec(
    lower: jax.Array, diagonal: jax.Array, upper: jax.Array, x: jax.Array
) -> jax.Array:
    """The left-hand side of the tridiagonal system."""
    return diagonal * x + lower * _shift(x, 1) + upper * _shift(x, -1)


def tridiagonal_solve(
    lower: jax.Array,
    diagonal: jax.Array,
    upper: jax.Array,
    rhs: jax.Array,
    *,
    algorithm: Algorithm | None = None,
) -> jax.Array:
    """Solves the tridiagonal system of every channel, without pivoting.

    Differentiable in all arguments; the transpose is the solve with the bands swapped.

    Args:
      lower, diagonal, upper, rhs: `[time, ...]`, the same shape.
      algorithm: `"thomas"` (two loops; O(time) work and depth) or `"cyclic"` (cyclic reduction;
        O(time) work, O(log time) depth). By default the platform the program is lowered for
        decides: the loops on CPU, cyclic reduction elsewhere.
    """
    shapes = {jnp.shape(a) for a in (lower, diagonal, upper, rhs)}
    if len(shapes) != 1 or not jnp.ndim(rhs):
        raise ValueError(f"bands and rhs need one common shape [time, ...], got {sorted(shapes)}")
    run = _chosen({"thomas": _thomas, "cyclic": _cyclic}, algorithm)
    if rhs.size == 0:
        return rhs

    def solve(bands: tuple[jax.Array, ...]) -> Callable:
        return lambda _, rhs: run(*bands, rhs)

    bands = (lower, diagonal, upper)
    constant = lax.stop_gradient(bands)
    swapped = (_shift(constant[2], 1), constant[1], _shift(constant[0], -1))
    return lax.custom_linear_solve(
        lambda x: tridiagonal_matvec(*bands, x), rhs, solve(constant), solve(swapped)
    )


def bidiagonal_solve(
    coupling: jax.Array,
    rhs: jax.Array,
    *,
    reverse: bool = False,
    algorithm: Literal["sequential", "associative"] | None = None,
) -> jax.Array:
    """`x[t] = coupling[t] x[t-1] + rhs[t]`: a linear recurrence.

    Differentiable in both arguments; the transpose is the recurrence against time.

    Args:
      coupling: `[time, n, n]` for blocks, or `[time, n]` for an elementwise recurrence;
        `coupling[0]` has nothing to act on and is ignored.
      rhs: `[time, n]`.
      reverse: run against time, `x[t] = coupling[t] x[t+1] + rhs[t]`.
      algorithm: `"sequential"` (a loop; O(time n^2) work for blocks) or `"associative"` (an
        associative scan; O(log time) depth, O(time n^3) work for blocks). By default the platform
        the program is lowered for decides: the loop on CPU, the scan elsewhere.
    """
    algorithms = {"sequential": _sequential, "associative": _associative}
    _chosen(algorithms, algorithm)
    if rhs.size == 0:
        return rhs
    blocks = coupling.ndim == rhs.ndim + 1

    def times(coupling: jax.Array, x: jax.Array) -> jax.Array:
        return (coupling @ x[..., None])[..., 0] if blocks else coupling * x

    def solve(coupling: jax.Array, reverse: bool) -> Callable:
        prepared = {name: partial(run, times, reverse) for name, run in algorithms.items()}
        return lambda _, rhs: _chosen(prepared, algorithm)(coupling, rhs)

    earlier = -1 if reverse else 1
    constant = lax.stop_gradient(coupling)
    transposed = _shift(jnp.swapaxes(constant, -1, -2) if blocks else constant, -earlier)
    return lax.custom_linear_solve(
        lambda x: x - times(coupling, _shift(x, earlier)),
        rhs,
        solve(constant, reverse),
        solve(transposed, not reverse),
    )


def _sequential(times: Callable, reverse: bool, coupling: jax.Array, rhs: jax.Array) -> jax.Array:
    def body(x: jax.Array, row: tuple) -> tuple:
        x = times(row[0], x) + row[1]
        return x, x

    return lax.scan(body, jnp.zeros_like(rhs[0]), (coupling, rhs), reverse=reverse)[1]


def _associative(times: Callable, reverse: bool, coupling: jax.Array, rhs: jax.Array) -> jax.Array:
    blocks = coupling.ndim == rhs.ndim + 1

    def compose(first: tuple, second: tuple) -> tuple:
        product = second[0] @ first[0] if blocks else second[0] * first[0]
        return product, times(second[0], first[1]) + second[1]

    return lax.associative_scan(compose, (coupling, rhs), reverse=reverse)[1]


def _chosen(algorithms: Mapping[str, Callable], algorithm: str | None) -> Callable:
    """The algorithm of that name; for None the first on CPU and the second elsewhere."""
    if algorithm is not None and algorithm not in algorithms:
        raise ValueError(f"algorithm must be one of {sorted(algorithms)}, got {algorithm!r}")
    if algorithm is not None:
        return algorithms[algorithm]
    on_cpu, elsewhere = algorithms.values()
    return lambda *args: lax.platform_dependent(*args, cpu=on_cpu, default=elsewhere)


def _shift(x: jax.Array, by: int) -> jax.Array:
    """`x[t - by]`, zero beyond the ends, for `by` of 1 or -1."""
    rest = [(0, 0, 0)] * (x.ndim - 1)
    return lax.pad(x, jnp.zeros((), x.dtype), [(by, -by, 0), *rest])


def _thomas(lower: jax.Array, diagonal: jax.Array, upper: jax.Array, rhs: jax.Array) -> jax.Array:
    """Elimination forwards, substitution backwards.

    Loops over slices instead of scans: `vmap` would transpose every operand of a scan to bring
    time to the front, which costs as much as the solve.
    """
    time, zero = rhs.shape[0], jnp.zeros_like(rhs[0])

    def row(array: jax.Array, t: jax.Array) -> jax.Array:
        return lax.dynamic_index_in_dim(array, t, keepdims=False)

    def eliminate(t: jax.Array, carry: tuple) -> tuple:
        factor, value, factors, values = carry
        below = row(lower, t)
        pivot = 1 / (row(diagonal, t) - below * factor)
        factor, value = row(upper, t) * pivot, (row(rhs, t) - below * value) * pivot
        factors = lax.dynamic_update_index_in_dim(factors, factor, t, 0)
        return factor, value, factors, lax.dynamic_update_index_in_dim(values, value, t, 0)

    start = (zero, zero, jnp.empty_like(rhs), jnp.empty_like(rhs))
    _, _, factors, values = lax.fori_loop(0, time, eliminate, start)

    def substitute(step: jax.Array, carry: tuple) -> tuple:
        x, values = carry
        t = time - 1 - step
        x = row(values, t) - row(factors, t) * x
        return x, lax.dynamic_update_index_in_dim(values, x, t, 0)

    return lax.fori_loop(0, time, substitute, (zero, values))[1]


def _cyclic(lower: jax.Array, diagonal: jax.Array, upper: jax.Array, rhs: jax.Array) -> jax.Array:
    """Eliminates every second unknown, solves the half-size system, substitutes back."""
    time = rhs.shape[0]
    if time == 1:
        return rhs / diagonal
    if time % 2:  # an empty equation x = 0 makes the number even
        zero = jnp.zeros_like(rhs[:1])
        upper = upper.at[-1].set(0)
        bands = [jnp.concatenate([a, zero]) for a in (lower, upper, rhs)]
        padded = jnp.concatenate([diagonal, jnp.ones_like(zero)])
        return _cyclic(bands[0], padded, bands[1], bands[2])[:-1]

    (a, b, c, d), (a1, b1, c1, d1) = (
        [band[parity::2] for band in (lower, diagonal, upper, rhs)] for parity in (0, 1)
    )
    # The even unknown after each odd one; the last odd one has none.
    a2, b2, c2, d2 = (jnp.concatenate([x[1:], fill(x[:1])]) for x, fill in zip(
        (a, b, c, d), (jnp.zeros_like, jnp.ones_like, jnp.zeros_like, jnp.zeros_like), strict=True
    ))  # fmt: skip
    before, after = a1 / b, c1 / b2
    odd = _cyclic(
        -before * a, b1 - before * c - after * a2, -after * c2, d1 - before * d - after * d2
    )
    even = (d - a * _shift(odd, 1) - c * odd) / b
    return jnp.stack([even, odd], axis=1).reshape(rhs.shape)
