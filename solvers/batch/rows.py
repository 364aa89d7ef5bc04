"""Which parts of a problem belong to which example of a batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from solvers.adjoint.closure import Frame, Map
from solvers.info import Info, Status
from solvers.mesh import on_explicit_mesh, while_loop
from solvers.settings import Settings
from solvers.space import Space, Tree, Vector


@dataclasses.dataclass(frozen=True, eq=False)
class Rows(Settings):
    """For every array of `theta`, the axis along which its examples lie; None: it is shared."""

    axes: tuple[int | None, ...]

    @classmethod
    def of(cls, theta: Any, in_axes: Any) -> Rows:
        def absent(axis: Any) -> bool:
            return axis is None

        try:
            everything = jax.tree.broadcast(in_axes, theta, is_leaf=absent)
        except ValueError:
            raise ValueError(
                "in_axes must be a number, None, or a tree of these that theta begins with, got "
                f"{in_axes} for {jax.tree.structure(theta)}"
            ) from None
        axes = jax.tree.leaves(everything, is_leaf=absent)
        if any(axis is not None and not isinstance(axis, int) for axis in axes):
            raise ValueError(f"in_axes may only hold integers and None, got {in_axes}")
        numbers = [other is None for other in Frame(theta).others]
        return cls(tuple(axis for axis, number in zip(axes, numbers, strict=True) if number))

    @property
    def in_axes(self) -> tuple[list, None]:
        """For `jax.vmap` over operands."""
        return list(self.axes), None

    def first(self, theta: Any) -> Any:
        """The parameters of the first example."""
        frame = Frame(theta)
        return frame.join(self.take((frame.arrays(theta), []), 0)[0])

    def take(self, operands: tuple, index: Any) -> tuple:
        """The operands of some examples, or of one; None: of all."""
        arrays = [
            leaf if axis is None else taken(leaf, index, axis)
            for leaf, axis in zip(operands[0], self.axes, strict=True)
        ]
        return arrays, operands[1]

    def replace(self, operands: tuple, bad: jax.Array, fixed: int) -> tuple:
        """Operands with those of a healthy example in place of what belongs to `bad` ones.

        Not with zeros, where a map need not be finite, unless no example is healthy. The last
        `fixed` ones are numbers of the map, which stay.
        """
        pairs = zip(operands[0], self.axes, strict=True)
        arrays = [replaced(leaf, axis, bad) for leaf, axis in pairs]
        first = len(operands[1]) - fixed
        constants = [replaced(leaf, None, bad) for leaf in operands[1][:first]]
        return arrays, [*constants, *operands[1][first:]]


@dataclasses.dataclass(frozen=True, eq=False)
class Clear(Settings):
    """Takes the data of failed examples out: a NaN among them must not meet a zero cotangent.

    Attributes:
      f: the map.
      axis: of the examples in a state.
    """

    f: Map
    rows: Rows
    axis: int

    def __call__(self, operands: tuple, x: Vector, info: Info) -> tuple[tuple, Vector]:
        bad = info.status != Status.CONVERGED
        x = jax.tree.map(lambda leaf: replaced(leaf, self.axis, bad), x)
        return self.rows.replace(operands, bad, self.f.program.fixed), x


def replaced(leaf: jax.Array, axis: int | None, bad: jax.Array) -> jax.Array:
    """An array whose examples along `axis` are that of a healthy one where they are `bad`."""
    if not jnp.issubdtype(leaf.dtype, jnp.inexact):
        return leaf
    if axis is None:  # what they share, where it fails them all
        return jnp.where(jnp.all(bad), jnp.zeros_like(leaf), leaf)
    spread = Space(axis).spread
    chosen = (jnp.arange(bad.size) == jnp.argmin(bad)) & ~bad
    healthy = jnp.sum(jnp.where(spread(chosen, leaf), leaf, 0), axis, keepdims=True)
    return jnp.where(spread(bad, leaf), lax.stop_gradient(healthy), leaf)


@dataclasses.dataclass(frozen=True, eq=False)
class BatchMap(Settings):
    """A map for one example, on a batch `[batch, ...]`."""

    f: Map
    rows: Rows

    closed = True

    root = False

    def __call__(self, operands: tuple, x: Vector) -> Vector:
        return jax.vmap(self.f, (self.rows.in_axes, 0))(operands, x)

    def defect(self, operands: tuple, x: Vector) -> Vector:
        return jax.vmap(self.f.defect, (self.rows.in_axes, 0))(operands, x)

    def theta(self, operands: tuple) -> Any:
        return self.f.theta(operands)


def batch_size(x0: Tree, axis: int = 0) -> int:
    """The number of examples, from states that have them along `axis`."""
    sizes = {leaf.shape[axis] if leaf.ndim > axis else -1 for leaf in jax.tree.leaves(x0)}
    if len(sizes) != 1 or -1 in sizes:
        raise ValueError(
            f"x0 needs a common batch axis {axis}, got leaf shapes "
            f"{[leaf.shape for leaf in jax.tree.leaves(x0)]}"
        )
    return sizes.pop()


def taken(tree: Tree, index: Any, axis: int) -> Tree:
    """Some examples, or one; None: all of them."""
    if index is None:
        return tree
    return jax.tree.map(lambda leaf: jnp.take(leaf, index, axis=axis), tree)


def in_groups(
    solve: Callable[[jax.Array | None, Vector, Info], tuple[Vector, Info]],
    value: Vector,
    info: Info,
    *,
    axis: int,
    most: int = 8,
) -> tuple[Vector, Info]:
    """Solves again what has not converged, a few at a time: the cost goes with their number.

    Args:
      solve: `(numbers, values, Info) -> (values, Info)` for a few examples; for all, without
        numbers.
      value: of the whole batch, with examples along `axis`.
      info: of the whole batch.
      axis: of the examples.
      most: how many make a group.
    """
    pending, space = ~info.converged, Space(axis)
    if on_explicit_mesh():  # examples that lie on devices of their own are not to be sorted
        found, later = solve(None, value, info)
        info = jax.tree.map(lambda new, old: jnp.where(pending, new, old), later, info)
        return space.where(pending, found, value), info
    batch, few = pending.size, min(most, pending.size)
    order = jnp.argsort(~pending, stable=True)  # those first

    def body(carry: tuple) -> tuple:
        done, value, info = carry
        place = jnp.minimum(done, batch - few) + jnp.arange(few)
        index = order[place]
        part = taken(value, index, axis)
        before = jax.tree.map(lambda leaf: leaf[index], info)
        found, later = solve(index, part, before)
        new = pending[index] & (place >= done)
        found = space.where(new, found, part)
        here = (*[slice(None)] * axis, index)
        value = jax.tree.map(lambda leaf, rows: leaf.at[here].set(rows), value, found)
        info = jax.tree.map(
            lambda leaf, a, b: leaf.at[index].set(jnp.where(new, a, b)), info, later, before
        )
        return done + few, value, info

    start = (jnp.int32(0), value, info)
    count = lax.stop_gradient(jnp.sum(pending))
    return while_loop(lambda carry: carry[0] < count, body, start)[1:]
