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

from solvers.mesh import constant, spread_alike
from solvers.platforms import Kind, kernel_solve, kernels_wanted
from solvers.space import Tree

Algorithm = Literal["thomas", "cyclic", "kernel"]


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
      algorithm: `"thomas"` (two loops; O(time) work and depth), `"cyclic"` (parallel cyclic
        reduction; O(time log time) work, O(log time) depth) or `"kernel"` (the two loops in one
        kernel, on CUDA and TPUs). By default the platform the program is lowered for decides: the
        loops on CPU, elsewhere cyclic reduction or a kernel (see `kernels`).
    """
    shapes = {jnp.shape(a) for a in (lower, diagonal, upper, rhs)}
    if len(shapes) != 1 or not jnp.ndim(rhs):
        raise ValueError(f"bands and rhs need one common shape [time, ...], got {sorted(shapes)}")
    kernel = partial(kernel_solve, "tridiagonal", _cyclic)
    run = _chosen({"thomas": _thomas, "cyclic": _cyclic, "kernel": kernel}, algorithm)
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
    algorithm: Literal["sequential", "associative", "kernel"] | None = None,
) -> jax.Array:
    """`x[t] = coupling[t] x[t-1] + rhs[t]`: a linear recurrence.

    Differentiable in both arguments; the transpose is the recurrence against time.

    Args:
      coupling: `[time, n, n]` for blocks, or `[time, n]` for an elementwise recurrence;
        `coupling[0]` has nothing to act on and is ignored.
      rhs: `[time, n]`.
      reverse: run against time, `x[t] = coupling[t] x[t+1] + rhs[t]`.
      algorithm: `"sequential"` (a loop; O(time n^2) work for blocks), `"associative"` (an
        associative scan; O(log time) depth, O(time n^3) work for blocks) or `"kernel"` (a loop in
        one kernel, on CUDA and TPUs, not for blocks). By default the platform the program is
        lowered for decides: the loop on CPU, elsewhere the scan or a kernel (see `kernels`).
    """
    blocks = coupling.ndim == rhs.ndim + 1

    def along(reverse: bool) -> Callable:
        algorithms = {
            "sequential": partial(_sequential, reverse),
            "associative": _SCANS[reverse],
        }
        if not blocks:
            kind: Kind = "recurrence_reversed" if reverse else "recurrence"
            algorithms["kernel"] = partial(kernel_solve, kind, _SCANS[reverse])
        return _chosen(algorithms, algorithm)

    def solve(coupling: jax.Array, run: Callable) -> Callable:
        return lambda _, rhs: run(coupling, rhs)

    forwards, backwards = along(reverse), along(not reverse)
    if rhs.size == 0:
        return rhs
    earlier = -1 if reverse else 1
    constant = lax.stop_gradient(coupling)
    transposed = _shift(jnp.swapaxes(constant, -1, -2) if blocks else constant, -earlier)
    return lax.custom_linear_solve(
        lambda x: x - _times(coupling, _shift(x, earlier)),
        rhs,
        solve(constant, forwards),
        solve(transposed, backwards),
    )


def _times(coupling: jax.Array, x: jax.Array) -> jax.Array:
    """The product with blocks, or elementwise."""
    if coupling.ndim == x.ndim + 1:
        return (coupling @ x[..., None])[..., 0]
    return coupling * x


def _sequential(reverse: bool, coupling: jax.Array, rhs: jax.Array) -> jax.Array:
    """A loop over slices, for the reason that `_thomas` is one; states take the place of `rhs`."""
    time = rhs.shape[0]

    def body(step: jax.Array, carry: tuple) -> tuple:
        x, values = carry
        t = time - 1 - step if reverse else step
        x = _times(_row(coupling, t), x) + _row(values, t)
        return x, _written(values, x, t)

    return lax.fori_loop(0, time, body, (constant(0, rhs[0]), rhs))[1]


def _associative(reverse: bool, coupling: jax.Array, rhs: jax.Array) -> jax.Array:
    blocks = coupling.ndim == rhs.ndim + 1

    def compose(first: tuple, second: tuple) -> tuple:
        product = second[0] @ first[0] if blocks else second[0] * first[0]
        return product, _times(second[0], first[1]) + second[1]

    return lax.associative_scan(compose, (coupling, rhs), reverse=reverse)[1]


# Made once: equal programs have to be made of the same functions, or each is compiled anew.
_SCANS = {reverse: partial(_associative, reverse) for reverse in (False, True)}


def _chosen(algorithms: Mapping[str, Callable], algorithm: str | None) -> Callable:
    """The algorithm of that name; for None the first on CPU, the second or a kernel elsewhere."""
    if algorithm is not None and algorithm not in algorithms:
        raise ValueError(f"algorithm must be one of {sorted(algorithms)}, got {algorithm!r}")
    if algorithm is not None:
        return algorithms[algorithm]
    on_cpu, elsewhere, *kernels = algorithms.values()
    if kernels and kernels_wanted():
        elsewhere = partial(kernels[0], always=False)
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

    def eliminate(t: jax.Array, carry: tuple) -> tuple:
        factor, value, factors, values = carry
        below = _row(lower, t)
        pivot = 1 / (_row(diagonal, t) - below * factor)
        factor, value = _row(upper, t) * pivot, (_row(rhs, t) - below * value) * pivot
        return factor, value, _written(factors, factor, t), _written(values, value, t)

    start = (zero, zero, jnp.empty_like(rhs), jnp.empty_like(rhs))
    _, _, factors, values = lax.fori_loop(0, time, eliminate, start)

    def substitute(step: jax.Array, carry: tuple) -> tuple:
        x, values = carry
        t = time - 1 - step
        x = _row(values, t) - _row(factors, t) * x
        return x, _written(values, x, t)

    return lax.fori_loop(0, time, substitute, (zero, values))[1]


def _row(array: jax.Array, t: jax.Array) -> jax.Array:
    return lax.dynamic_index_in_dim(array, t, keepdims=False, allow_negative_indices=False)


def _written(array: jax.Array, row: jax.Array, t: jax.Array) -> jax.Array:
    return lax.dynamic_update_index_in_dim(array, row, t, 0, allow_negative_indices=False)


def _cyclic(lower: jax.Array, diagonal: jax.Array, upper: jax.Array, rhs: jax.Array) -> jax.Array:
    """Every level couples unknowns over twice the distance of the last, until none is coupled.

    With `x[t] = a[t] x[t-s] + c[t] x[t+s] + d[t]` put into itself for both neighbours,

        (1 - a[t] c[t-s] - c[t] a[t+s]) x[t]
            = a[t] a[t-s] x[t-2s] + c[t] c[t+s] x[t+2s] + d[t] + a[t] d[t-s] + c[t] d[t+s].

    All levels have the same shapes: the program is one of them, in a loop.
    """
    time = rhs.shape[0]
    lower, diagonal, upper, rhs = spread_alike(lower, diagonal, upper, rhs)

    def level(number: jax.Array, rows: jax.Array) -> jax.Array:
        around = [(time, time, 0) if axis == 1 else (0, 0, 0) for axis in range(rows.ndim)]
        wide = lax.pad(rows, jnp.zeros((), rows.dtype), around)
        distance = 1 << number
        before, after = (
            lax.dynamic_slice_in_dim(wide, start, time, 1, allow_negative_indices=False)
            for start in (time - distance, time + distance)
        )
        a, c, d = rows
        rest = d + a * before[2] + c * after[2]
        pivot = 1 - a * before[1] - c * after[0]
        return jnp.stack([a * before[0], c * after[1], rest]) / pivot

    rows = jnp.stack([-lower, -upper, rhs]) / diagonal
    return lax.fori_loop(0, (time - 1).bit_length(), level, rows)[2]
