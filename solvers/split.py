"""Direct solves along a time that is spread over the devices of a mesh axis, inside `shard_map`.

Every device has a block of consecutive rows. It eliminates the rows inside its block, which leaves
the first and the last; these interface rows of all blocks form a small system of the same kind,
which every device solves for itself. So a solve takes one round of communication, however many rows
there are: all devices gather two rows of each.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from solvers.bands import (
    Bands,
    bidiagonal_solve,
    splitting_inverse,
    tridiagonal_solve,
)
from solvers.space import Tree


def from_before(rows: Tree, count: int, edge: Tree, axis: str) -> Tree:
    """The last `count` rows of the block before; on the first device, `edge`."""

    def halo(leaf: jax.Array, edge: jax.Array) -> jax.Array:
        sent = _handed_on(leaf[-count:], 1, axis)
        return jnp.where(lax.axis_index(axis) == 0, edge, sent)

    return jax.tree.map(halo, rows, edge)


def from_after(rows: Tree, count: int, edge: Tree, axis: str) -> Tree:
    """The first `count` rows of the block after; on the last device, `edge`."""

    def halo(leaf: jax.Array, edge: jax.Array) -> jax.Array:
        sent = _handed_on(leaf[:count], -1, axis)
        return jnp.where(lax.axis_index(axis) == lax.axis_size(axis) - 1, edge, sent)

    return jax.tree.map(halo, rows, edge)


def _handed_on(rows: jax.Array, by: int, axis: str) -> jax.Array:
    """The rows of the device `by` places before; anything where there is none.

    A permutation is one operation of all devices of a mesh. Along its other axes there may be other
    examples, whose loops take another number of turns: they would wait for each other for ever. A
    gathering is one of the devices along this axis alone.
    """
    size, mesh = lax.axis_size(axis), jax.sharding.get_abstract_mesh()
    if all(mesh.shape[name] == 1 for name in mesh.manual_axes if name != axis):
        own = range(max(0, -by), size - max(0, by))
        return lax.ppermute(rows, axis, [(i, i + by) for i in own])
    everyone = lax.all_gather(rows, axis)
    place = jnp.clip(lax.axis_index(axis) - by, 0, size - 1)
    return lax.dynamic_index_in_dim(everyone, place, keepdims=False)


def from_last(tree: Tree, count: jax.Array, axis: str) -> Tree:
    """The tree of the last device that has rows, or of the first where none has any.

    Args:
      tree: the device's own, any shapes.
      count: how many rows it has.
      axis: of the mesh.
    """
    own = lax.axis_index(axis)
    last = own == lax.pmax(jnp.where(count > 0, own, 0), axis)
    return jax.tree.map(lambda leaf: lax.psum(jnp.where(last, leaf, 0), axis), tree)


def inverse_of(bands: Bands, mesh_axis: str | None) -> Callable[[Tree], Tree]:
    """`bands.splitting_inverse`, of bands that may be spread over a mesh axis."""
    if mesh_axis is None:
        return splitting_inverse(bands)

    def inverse(tree: Tree) -> Tree:
        own = bands.diagonal
        if own is None:
            own = jax.tree.map(jnp.zeros_like, tree)

        def solve(rhs: jax.Array, *found: jax.Array) -> jax.Array:
            lower, upper, own = (band.astype(rhs.dtype) for band in found)
            return split_tridiagonal_solve(-lower, 1 - own, -upper, rhs, mesh_axis)

        return jax.tree.map(solve, tree, bands.lower, bands.upper, own)

    return inverse


def split_tridiagonal_solve(
    lower: jax.Array, diagonal: jax.Array, upper: jax.Array, rhs: jax.Array, axis: str
) -> jax.Array:
    """`bands.tridiagonal_solve` of rows that are spread over a mesh axis.

    With `x_1 .. x_(m-2)` the inner rows of a block, `A` their matrix, and `f`, `l` its first and
    last row, `A x = rhs - lower_1 x_f e_1 - upper_(m-2) x_l e_(m-2)`, so that

        x = y - v x_f - w x_l,    A (y, v, w) = (rhs, lower_1 e_1, upper_(m-2) e_(m-2)),

    and the rows f and l become rows of a tridiagonal system in `x_f` and `x_l` of all blocks.

    Differentiable in all arguments; the transpose is the split solve with the bands swapped.

    Args:
      lower, diagonal, upper, rhs: the device's rows, `[time, ...]`, the same shape.
      axis: of the mesh.
    """
    bands = (lower, diagonal, upper)
    constant = lax.stop_gradient(bands)
    zero = jnp.zeros_like(rhs[:1])

    def matvec(bands: tuple[jax.Array, ...], x: jax.Array) -> jax.Array:
        before = jnp.concatenate([from_before(x, 1, zero, axis), x[:-1]])
        after = jnp.concatenate([x[1:], from_after(x, 1, zero, axis)])
        return bands[1] * x + bands[0] * before + bands[2] * after

    def transposed(_: Callable, rhs: jax.Array) -> jax.Array:
        below = jnp.concatenate([from_before(constant[2], 1, zero, axis), constant[2][:-1]])
        above = jnp.concatenate([constant[0][1:], from_after(constant[0], 1, zero, axis)])
        return _split(below, constant[1], above, rhs, axis)

    return lax.custom_linear_solve(
        lambda x: matvec(bands, x),
        rhs,
        lambda _, rhs: _split(*constant, rhs, axis),
        transposed,
    )


def _split(
    lower: jax.Array, diagonal: jax.Array, upper: jax.Array, rhs: jax.Array, axis: str
) -> jax.Array:
    own = jnp.stack([lower, diagonal, upper, rhs])
    first, last = own[:, 0], own[:, -1]
    if rhs.shape[0] < 3:  # nothing inside
        return _interface(own, axis)
    inner = own[:, 1:-1]
    reaches = [
        jnp.zeros_like(inner[3]).at[at].set(inner[band, at]) for at, band in ((0, 0), (-1, 2))
    ]
    wide = [jnp.stack([band] * 3, axis=1) for band in inner[:3]]
    sides = jnp.stack([inner[3], *reaches], axis=1)
    y, v, w = jnp.moveaxis(tridiagonal_solve(wide[0], wide[1], wide[2], sides), 1, 0)
    above, below = first[2], last[0]  # from the first row to the inner ones, and from the last
    rows = jnp.stack(
        [
            jnp.stack([first[0], -below * v[-1]]),
            jnp.stack([first[1] - above * v[0], last[1] - below * w[-1]]),
            jnp.stack([-above * w[0], last[2]]),
            jnp.stack([first[3] - above * y[0], last[3] - below * y[-1]]),
        ]
    )
    ends = _interface(rows, axis)
    return jnp.concatenate([ends[:1], y - v * ends[0] - w * ends[1], ends[1:]])


def _interface(rows: jax.Array, axis: str) -> jax.Array:
    """A device's part of the solution of a system of one or two rows each, `[4, rows, ...]`."""
    count = rows.shape[1]
    everyone = lax.all_gather(rows, axis, axis=1, tiled=True)
    x = tridiagonal_solve(everyone[0], everyone[1], everyone[2], everyone[3])
    return lax.dynamic_slice_in_dim(x, count * lax.axis_index(axis), count)


def recurrence_solve(
    coupling: jax.Array, rhs: jax.Array, mesh_axis: str | None = None, *, reverse: bool = False
) -> jax.Array:
    """`bands.bidiagonal_solve`, of rows that may be spread over a mesh axis.

    Each device runs its own rows from zero, and has the product of its couplings: with those of all
    before it, gathered in one round, follows what it should have started from.
    """
    if mesh_axis is None:
        return bidiagonal_solve(coupling, rhs, reverse=reverse)
    blocks = coupling.ndim == rhs.ndim + 1
    constant = lax.stop_gradient(coupling)
    zero, nothing = jnp.zeros_like(rhs[:1]), jnp.zeros_like(constant[:1])

    def times(coupling: jax.Array, x: jax.Array) -> jax.Array:
        return (coupling @ x[..., None])[..., 0] if blocks else coupling * x

    def earlier(x: jax.Array, edge: jax.Array, reverse: bool) -> jax.Array:
        if reverse:
            return jnp.concatenate([x[1:], from_after(x, 1, edge, mesh_axis)])
        return jnp.concatenate([from_before(x, 1, edge, mesh_axis), x[:-1]])

    def transposed(_: Callable, rhs: jax.Array) -> jax.Array:
        other = jnp.swapaxes(constant, -1, -2) if blocks else constant
        return _run(times, earlier(other, nothing, not reverse), rhs, not reverse, mesh_axis)

    return lax.custom_linear_solve(
        lambda x: x - times(coupling, earlier(x, zero, reverse)),
        rhs,
        lambda _, rhs: _run(times, constant, rhs, reverse, mesh_axis),
        transposed,
    )


def _run(
    times: Callable, coupling: jax.Array, rhs: jax.Array, reverse: bool, axis: str
) -> jax.Array:
    blocks = coupling.ndim == rhs.ndim + 1

    def compose(first: tuple, second: tuple) -> tuple:
        product = second[0] @ first[0] if blocks else second[0] * first[0]
        return product, times(second[0], first[1]) + second[1]

    gains, states = lax.associative_scan(compose, (coupling, rhs), reverse=reverse)
    end = 0 if reverse else -1
    summaries = lax.all_gather((gains[end], states[end]), axis)
    starts = lax.associative_scan(compose, summaries, reverse=reverse)[1]
    before = lax.axis_index(axis) + (1 if reverse else -1)
    outside = (before < 0) | (before >= lax.axis_size(axis))
    start = jnp.where(outside, 0, lax.dynamic_index_in_dim(starts, before, keepdims=False))
    return states + times(gains, start)
