"""Pytrees as flat vectors in the working precision: the form in which every method iterates."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

Tree = Any
Vector = jax.Array


class Geometry(NamedTuple):
    """Scalar products and multiples of vectors: of one, or of a batch with one number for each.

    Attributes:
      dot: `(u, v) -> <u, v>`.
      times: `(number, vector) -> number * vector`.
    """

    dot: Callable[[Vector, Vector], jax.Array]
    times: Callable[[jax.Array, Vector], Vector]

    def norm(self, vector: Vector) -> jax.Array:
        """Euclidean norm, held constant under differentiation (it steers, it is not a result)."""
        vector = lax.stop_gradient(vector)
        return jnp.sqrt(self.dot(vector, vector))

    def secant(self, g: Vector, r: Vector, g_before: Vector, r_before: Vector) -> Vector:
        """The next iterate of Anderson's method with one difference, for `g(x) = x + r(x)`.

        `g - c (g - g_before)` with the `c` that makes `r - c (r - r_before)` smallest. It finds the
        fixed point at once along a single slow direction, even one that grows.
        """
        change = lax.stop_gradient(r - r_before)
        size = self.dot(change, change)
        share = self.dot(lax.stop_gradient(r), change) / jnp.where(size > 0, size, 1)
        share = jnp.where(size > 0, jnp.clip(share, -_LONGEST, _LONGEST), 0)
        return g - self.times(share, g - g_before)


# A secant through two nearly equal residuals points anywhere.
_LONGEST = 10.0


def norm(vector: Vector) -> jax.Array:
    """Euclidean norm, held constant under differentiation (it steers, it is not a result)."""
    return FLAT.norm(vector)


FLAT = Geometry(jnp.vdot, jnp.multiply)


def working_dtype(tree: Tree) -> jnp.dtype:
    """float64 if a leaf is, float32 otherwise: half precisions accumulate in float32."""
    return jnp.result_type(jnp.float32, *(leaf.dtype for leaf in jax.tree.leaves(tree)))


def epsilon(tree: Tree) -> float:
    """Rounding unit of the coarsest leaf: what limits the residual that can be reached."""
    leaves = jax.tree.leaves(tree)
    return max((float(jnp.finfo(leaf.dtype).eps) for leaf in leaves), default=1e-7)


def require_real(tree: Tree, what: str) -> Tree:
    """`tree` with array leaves; refuses integer, boolean and complex ones."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        dtype = jnp.result_type(leaf)
        if not jnp.issubdtype(dtype, jnp.floating):
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


def ravel(tree: Tree, dtype: jnp.dtype) -> Vector:
    """All leaves in one vector. With a single leaf this is a reshape, so it costs nothing."""
    leaves = [jnp.ravel(leaf).astype(dtype) for leaf in jax.tree.leaves(tree)]
    if not leaves:
        return jnp.zeros((0,), dtype)
    return leaves[0] if len(leaves) == 1 else jnp.concatenate(leaves)


def unraveler(template: Tree) -> Callable[[Vector], Tree]:
    """The inverse of `ravel` for trees like `template`, dtypes included."""
    leaves, structure = jax.tree.flatten(template)
    shapes = [(leaf.shape, leaf.dtype) for leaf in leaves]
    sizes = [math.prod(shape) for shape, _ in shapes]

    def unravel(vector: Vector) -> Tree:
        parts, offset = [], 0
        for (shape, dtype), size in zip(shapes, sizes, strict=True):
            part = lax.slice_in_dim(vector, offset, offset + size)
            parts.append(part.reshape(shape).astype(dtype))
            offset += size
        return jax.tree.unflatten(structure, parts)

    return unravel
