"""Pytrees as vectors: the working precision, scaled norms, full-precision inner products.

A method iterates on the trees themselves, not on one flat vector, so that shardings and layouts
survive. A `Space` says what a scalar is: one number, or one for each example of a batch.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from solvers.mesh import on_explicit_mesh, spread_alike, while_loop

Tree = Any
Vector = Any  # a tree whose leaves have the working precision


def add(u: Vector, v: Vector) -> Vector:
    return jax.tree.map(jnp.add, u, v)


def subtract(u: Vector, v: Vector) -> Vector:
    return jax.tree.map(jnp.subtract, u, v)


def zeros_like(v: Vector) -> Vector:
    return jax.tree.map(jnp.zeros_like, v)


class Space(NamedTuple):
    """Scalar products and multiples of trees.

    Attributes:
      batch_axis: None for one problem. For a batch in its own layout, the axis of every leaf along
        which its examples lie; scalars are then arrays `[batch]`.
      mesh_axis: inside `shard_map`, the axis of the mesh over which the vectors are spread; every
        device has the scalars of the whole.
    """

    batch_axis: int | None = None
    mesh_axis: str | None = None

    def dot(self, u: Vector, v: Vector) -> jax.Array:
        """`<u, v>`, in full precision on every platform."""
        return self.products((u, v))[0]

    def products(self, *pairs: tuple[Vector, Vector]) -> list[jax.Array]:
        """Several inner products: over a mesh, added up together."""
        found = []
        for u, v in pairs:
            leaves = zip(jax.tree.leaves(u), jax.tree.leaves(v), strict=True)
            parts = [self._dot(a, b) for a, b in leaves]
            found.append(sum(parts[1:], parts[0]) if parts else jnp.zeros((), jnp.float32))
        if self.mesh_axis is None:
            return found
        return list(lax.psum(jnp.stack(found), self.mesh_axis))

    def _dot(self, a: jax.Array, b: jax.Array) -> jax.Array:
        if self.batch_axis is not None or _explicitly_sharded(a) or _explicitly_sharded(b):
            return jnp.sum(a * b, axis=self._others(a.ndim))
        axes = tuple(range(a.ndim))
        return lax.dot_general(a, b, ((axes, axes), ((), ())), precision=lax.Precision.HIGHEST)

    def _others(self, ndim: int) -> tuple[int, ...]:
        return tuple(axis for axis in range(ndim) if axis != self.batch_axis)

    def spread(self, numbers: jax.Array, leaf: jax.Array) -> jax.Array:
        """Scalars in a shape that broadcasts against a leaf."""
        if self.batch_axis is None:
            return numbers
        return numbers.reshape([-1 if axis == self.batch_axis else 1 for axis in range(leaf.ndim)])

    def scale(self, number: jax.Array | float, v: Vector) -> Vector:
        """`number v`."""
        number = jnp.asarray(number)
        if number.ndim == 0:
            return jax.tree.map(lambda leaf: number.astype(leaf.dtype) * leaf, v)
        return jax.tree.map(lambda leaf: self.spread(number, leaf) * leaf, v)

    def plus(self, u: Vector, number: jax.Array | float, v: Vector) -> Vector:
        """`u + number v`."""
        return add(u, self.scale(number, v))

    def where(self, condition: jax.Array, u: Vector, v: Vector) -> Vector:
        """`u` where the condition holds (for an example), else `v`."""
        return jax.tree.map(lambda a, b: jnp.where(self.spread(condition, a), a, b), u, v)

    def all(self, flags: Tree) -> jax.Array:
        """Whether all entries (of an example) are true."""
        parts = [jnp.all(leaf, axis=self._others(leaf.ndim)) for leaf in jax.tree.leaves(flags)]
        found = functools.reduce(jnp.logical_and, parts) if parts else jnp.bool_(True)
        if self.mesh_axis is None:
            return found
        return lax.psum(jnp.where(found, 0, 1), self.mesh_axis) == 0

    def finite(self, v: Vector, otherwise: Vector | None = None) -> Vector:
        """`v`, or `otherwise` (zero) where an entry (of an example) is not finite."""
        instead = zeros_like(v) if otherwise is None else otherwise
        return self.where(self.all(jax.tree.map(jnp.isfinite, v)), v, instead)

    def unit(self, *vectors: Vector) -> jax.Array:
        """A power of two near the largest magnitude; 1 where that is 0 or not finite."""
        largest = self.largest(*vectors)
        usable = jnp.isfinite(largest) & (largest > jnp.finfo(largest.dtype).tiny)
        _, exponent = jnp.frexp(jnp.where(usable, largest, 1))
        # The inverse of the largest powers would be subnormal, which processors take for zero.
        most = jnp.finfo(largest.dtype).maxexp - 3
        return jnp.ldexp(jnp.ones((), largest.dtype), jnp.minimum(exponent - 1, most))

    def largest(self, *vectors: Vector) -> jax.Array:
        """The largest magnitude of an entry, held constant under differentiation."""
        sizes = [
            jnp.max(jnp.abs(lax.stop_gradient(leaf)), axis=self._others(leaf.ndim), initial=0)
            for leaf in jax.tree.leaves(vectors)
        ]
        found = functools.reduce(jnp.maximum, sizes) if sizes else jnp.zeros((), jnp.float32)
        return found if self.mesh_axis is None else lax.pmax(found, self.mesh_axis)

    def norms(self, *vectors: Vector) -> tuple[jax.Array, ...]:
        """Euclidean norms; where squares over- or underflow, from multiples of the vectors.

        Held constant under differentiation: they steer, they are not results.
        """
        vectors = lax.stop_gradient(vectors)
        plain = self.products(*((v, v) for v in vectors))
        # Squares, and last the factor of the vectors: 0 stands for none.
        numbers = jnp.stack(spread_alike(*plain, jnp.zeros_like(plain[0])))
        limits = jnp.finfo(numbers.dtype)
        least, large = math.sqrt(limits.tiny), 2.0 ** (5 * limits.maxexp // 8)

        def out_of_range(numbers: jax.Array) -> jax.Array:
            largest = functools.reduce(jnp.maximum, numbers[:-1])
            return (numbers[-1] == 0) & ~((largest > least) & (largest < jnp.inf))

        def of_multiples(numbers: jax.Array) -> jax.Array:
            larger = functools.reduce(jnp.maximum, numbers[:-1]) > 1
            factor = jnp.where(out_of_range(numbers), jnp.where(larger, 1 / large, large), 1)
            factor = factor.astype(numbers.dtype)
            scaled = [self.scale(factor, v) for v in vectors]
            return jnp.stack(spread_alike(*self.products(*((v, v) for v in scaled)), factor))

        # A loop that is hardly ever entered. (A conditional evaluates both branches under vmap.)
        def where_needed(numbers: jax.Array) -> jax.Array:
            return while_loop(lambda numbers: jnp.any(out_of_range(numbers)), of_multiples, numbers)

        if on_explicit_mesh():  # where no conditional can be made a batch of
            *squares, factor = where_needed(numbers)
        else:
            # On GPUs the host waits for the condition of a loop, longer than a second pass takes.
            on_gpus = {"cuda": of_multiples, "rocm": of_multiples}
            *squares, factor = lax.platform_dependent(numbers, default=where_needed, **on_gpus)
        # As quotients, which the compiler does not compute again for everybody who asks.
        sizes = jnp.sqrt(jnp.stack(squares)) / jnp.where(factor == 0, 1, factor)
        return tuple(sizes)

    def norm(self, vector: Vector) -> jax.Array:
        """The Euclidean norm of one vector, as `norms`."""
        return self.norms(vector)[0]

    def length(self, vector: Vector) -> jax.Array:
        """The norm of a vector of order one, or of what rounding has left of it."""
        return lax.stop_gradient(jnp.sqrt(self.dot(vector, vector)))

    def secant(self, g: Vector, r: Vector, g_before: Vector, r_before: Vector) -> Vector:
        """The next iterate of Anderson's method with one difference, for `g(x) = x + r(x)`.

        `g - c (g - g_before)` with the `c` that makes `r - c (r - r_before)` smallest. It finds the
        fixed point at once along a single slow direction, even one that grows.
        """
        r, change = lax.stop_gradient((r, subtract(r, r_before)))
        unit = self.unit(change)
        change, r = self.scale(1 / unit, change), self.scale(1 / unit, r)
        share = ratio(*self.products((r, change), (change, change)))
        share = jnp.clip(jnp.where(jnp.isfinite(share), share, 0), -_LONGEST, _LONGEST)
        return self.plus(g, -share, subtract(g, g_before))

    def dots(self, memory: Vector, v: Vector) -> jax.Array:
        """`<m_k, v>` for every row of a memory, leaves `[depth, ...]`: `[depth]`."""
        return jax.vmap(self.dot, (0, None))(memory, v)

    def combine(self, weights: jax.Array, memory: Vector) -> Vector:
        """`sum_k weights_k m_k`."""
        if self.batch_axis is None:
            return jax.tree.map(
                lambda leaf: lax.dot_general(
                    weights, leaf, (((0,), (0,)), ((), ())), precision=lax.Precision.HIGHEST
                ),
                memory,
            )
        # One pass: a sum over the leading axis takes XLA's CPU compiler a hundred times as long.
        rows = [
            self.scale(weight, jax.tree.map(lambda leaf, k=k: leaf[k], memory))
            for k, weight in enumerate(weights)
        ]
        return functools.reduce(add, rows)

    def put(self, chosen: jax.Array, row: Vector, memory: Vector) -> Vector:
        """A memory with `row` where `chosen`, `[depth]`, says so.

        A selection, not a scatter, which is what an update at a row of its own becomes under vmap.
        """
        return jax.vmap(self.where, (0, None, 0))(chosen, row, memory)


# A secant through two nearly equal residuals points anywhere.
_LONGEST = 10.0


def _explicitly_sharded(leaf: jax.Array) -> bool:
    """Whether an axis lies on a mesh axis of explicit type: a product would ask where to go."""
    return any(axis is not None for axis in jax.typeof(leaf).sharding.spec)


def memory_like(v: Vector, depth: int) -> Vector:
    """An empty memory of `depth` vectors."""
    return jax.tree.map(lambda leaf: jnp.stack([jnp.zeros_like(leaf)] * depth), v)


def ratio(numerator: jax.Array, denominator: jax.Array) -> jax.Array:
    """`numerator / denominator`, and 0 where the denominator is 0."""
    safe = jnp.where(denominator == 0, 1, denominator)
    return jnp.where(denominator == 0, 0, numerator / safe)


def working_dtype(tree: Tree) -> jnp.dtype:
    """float64 if a leaf is, float32 otherwise: half precisions accumulate in float32."""
    return jnp.result_type(jnp.float32, *(leaf.dtype for leaf in jax.tree.leaves(tree)))


def working(tree: Tree) -> Vector:
    """`tree` in its working precision."""
    dtype = working_dtype(tree)
    return jax.tree.map(lambda leaf: leaf.astype(dtype), tree)


def cast_like(tree: Tree, template: Tree) -> Tree:
    """`tree` with the dtypes of `template`."""
    return jax.tree.map(lambda leaf, like: jnp.asarray(leaf).astype(like.dtype), tree, template)


def epsilon(tree: Tree) -> float:
    """Rounding unit of the coarsest leaf: what limits the residual that can be reached."""
    leaves = jax.tree.leaves(tree)
    return max((float(jnp.finfo(leaf.dtype).eps) for leaf in leaves), default=1e-7)


def require_real(tree: Tree, what: str) -> Tree:
    """`tree` with array leaves; refuses integer, boolean and complex ones."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if isinstance(leaf, str):
            raise TypeError(f"{what}{jax.tree_util.keystr(path)} is a text, {leaf!r}, no array")
        dtype = jnp.result_type(leaf)
        if not jnp.issubdtype(dtype, jnp.floating) or dtype.itemsize < 2:
            raise TypeError(
                f"{what}{jax.tree_util.keystr(path)} has dtype {dtype}; a solve needs real "
                "floating-point leaves (float32, float64 or bfloat16). Convert integers with "
                ".astype(jnp.float32); split complex numbers into real and imaginary parts."
            )
    return jax.tree.map(jnp.asarray, tree)


def require_like(tree: Tree, template: Tree, what: str, reference: str) -> None:
    """Refuses a `tree` whose structure or shapes differ from those of `template`."""
    got: Any = jax.tree.structure(tree)
    want: Any = jax.tree.structure(template)
    if got != want:
        raise ValueError(f"{what} has tree structure {got}, but {reference} has {want}")
    pairs = zip(jax.tree_util.tree_leaves_with_path(tree), jax.tree.leaves(template), strict=True)
    for (path, leaf), expected in pairs:
        if jnp.shape(leaf) != jnp.shape(expected):
            raise ValueError(
                f"{what}{jax.tree_util.keystr(path)} has shape {jnp.shape(leaf)}, "
                f"but {reference} has {jnp.shape(expected)} there"
            )
        if not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
            raise TypeError(
                f"{what}{jax.tree_util.keystr(path)} has dtype {jnp.result_type(leaf)}; "
                f"it must be real floating-point, as {reference} is"
            )


norm = Space().norm  # of one vector


def ravel(tree: Tree, dtype: jnp.dtype) -> jax.Array:
    """All leaves in one flat array, for analyses that need one."""
    leaves = [jnp.ravel(leaf).astype(dtype) for leaf in jax.tree.leaves(tree)]
    if not leaves:
        return jnp.zeros((0,), dtype)
    return leaves[0] if len(leaves) == 1 else jnp.concatenate(leaves)


def unraveler(template: Tree) -> Callable[[jax.Array], Tree]:
    """The inverse of `ravel` for trees like `template`, dtypes included."""
    leaves, structure = jax.tree.flatten(template)
    shapes = [(leaf.shape, leaf.dtype) for leaf in leaves]
    sizes = [math.prod(shape) for shape, _ in shapes]

    def unravel(vector: jax.Array) -> Tree:
        parts, offset = [], 0
        for (shape, dtype), size in zip(shapes, sizes, strict=True):
            part = lax.slice_in_dim(vector, offset, offset + size)
            parts.append(part.reshape(shape).astype(dtype))
            offset += size
        return jax.tree.unflatten(structure, parts)

    return unravel
