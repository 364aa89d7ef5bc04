"""A map at one point in numbers: spectral radius, norm, condition, and the error of a gradient.

All take the map `f(theta, x)`, which has the structure and shapes of `x`, its parameters `theta`
(any pytree) and the point `x` (a pytree of real arrays with `n` entries in all).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from solvers.adjoint.closure import is_number
from solvers.penalties import Map, VectorMap, on_vectors, orthogonal, products
from solvers.space import (
    Tree,
    Vector,
    epsilon,
    norm,
    ravel,
    require_like,
    require_real,
    unraveler,
    working_dtype,
)


class Condition(NamedTuple):
    """Extreme singular values of `I - J`."""

    largest: jax.Array
    smallest: jax.Array
    ratio: jax.Array  # largest / smallest; infinite for a singular matrix


class Certificate(NamedTuple):
    """How wrong an approximate `w` and the gradient made from it can be."""

    residual: jax.Array  # ||c - (I - J^T) w|| / ||c||
    inverse_norm: jax.Array  # of (I - J)^-1
    contracts: jax.Array  # bool: ||J|| < 1 and that norm is bounded; else it is 1 / sigma_min
    error: jax.Array  # bound on ||w - w*||
    relative_error: jax.Array  # bound on ||w - w*|| / ||w*||
    gradient_error: jax.Array  # bound on ||g - g*||, g = (df/dtheta)^T w
    relative_gradient_error: jax.Array  # bound on ||g - g*|| / ||g*||


def spectral_radius(f: Map, theta: Any, x: Tree, key: jax.Array, steps: int = 50) -> jax.Array:
    """The largest modulus of an eigenvalue of `J`, by power iteration.

        (||J^steps v|| / ||J^half v||)^(1 / (steps - half)),    half = steps // 2

    A geometric mean, so that a complex pair, whose growth turns from step to step, counts too.

    Args:
      key: draws the start.
      steps: products with `J`.

    Returns:
      A scalar estimate.

    >>> rotation = jnp.array([[0.0, 0.5], [-0.5, 0.0]])
    >>> radius = spectral_radius(lambda a, x: a @ x, rotation, jnp.ones(2), jax.random.key(0))
    >>> print(f"{radius:.3f}")
    0.500
    """
    return dominant(f, theta, x, key, steps)[0]


def jacobian_norm(f: Map, theta: Any, x: Tree, key: jax.Array, steps: int = 30) -> jax.Array:
    """The largest singular value of `J`, by power iteration: `v <- J^T J v`, then `||J v||`.

    Args:
      key: draws the start.
      steps: products with `J^T J`.

    Returns:
      A scalar estimate from below.
    """
    flat, vector = on_vectors(f, theta, x)
    return _norm_of(*products(flat, vector), _unit(key, vector), steps)


def condition(f: Map, theta: Any, x: Tree, key: jax.Array, steps: int = 30) -> Condition:
    """Extreme singular values of `I - J`, by Golub and Kahan's bidiagonalisation.

        (I - J) V = U B,    B bidiagonal,    U and V with orthonormal columns

    Args:
      key: draws the start.
      steps: size of `B`, two products each; with `n` or more the values are exact up to rounding.
        Needs memory for `2 steps` vectors.

    Returns:
      `Condition(largest, smallest, ratio)`: with fewer than `n` steps the largest is from below,
      the smallest from above, and so the ratio from below.
    """
    x = require_real(x, "x")
    flat, vector = on_vectors(f, theta, x)
    return _condition(*_minus(*products(flat, vector)), _unit(key, vector), steps, epsilon(x))


def certificate(
    f: Map, theta: Any, x: Tree, cotangent: Tree, w: Tree, key: jax.Array, steps: int = 30
) -> Certificate:
    """Bounds the error of an approximate gradient by the residual of the backward system.

        r = c - (I - J^T) w,    ||w - w*|| <= ||(I - J)^-1|| ||r||

    with `||(I - J)^-1|| <= 1 / (1 - ||J||)` where `||J|| < 1`, and estimated by `1 / sigma_min`
    elsewhere. The true `||w*||` is at least `||w|| - ||w - w*||` and `||c|| / (1 + ||J||)`; the
    gradient `g = (df/dtheta)^T w` is wrong by at most `||df/dtheta|| ||w - w*||`.

    The norms come from `steps` Krylov or power steps, hence from below: bounds are as good as
    these. With `steps >= n` those of `J` and `I - J` are exact up to rounding.

    Args:
      cotangent: `c`, the gradient with respect to the solution, like `x`.
      w: the approximate solution of `(I - J^T) w = c`, like `x`.
      key: draws the starts.
      steps: Krylov or power steps for each norm.

    Returns:
      A `Certificate`; a relative bound is infinite where nothing can be said.
    """
    x = require_real(x, "x")
    require_like(cotangent, x, "cotangent", "x")
    require_like(w, x, "w", "x")
    flat, vector = on_vectors(f, theta, x)
    push, pull = products(flat, vector)
    c, w_flat = ravel(cotangent, vector.dtype), ravel(w, vector.dtype)
    residual = norm(c - (w_flat - pull(w_flat)))

    key_j, key_i, key_theta = jax.random.split(key, 3)
    size = _condition(push, pull, _unit(key_j, vector), steps, epsilon(x)).largest
    smallest = _condition(*_minus(push, pull), _unit(key_i, vector), steps, epsilon(x)).smallest
    contracts = size < 1
    inverse_norm = 1 / jnp.where(contracts, 1 - size, smallest)
    error = _times(inverse_norm, residual)

    of_theta, parameters = _of_parameters(f, theta, x)
    push_theta, pull_theta = products(of_theta, parameters)
    # The transpose has the same norm, and its vectors the size of the state.
    slope = _norm_of(pull_theta, push_theta, _unit(key_theta, vector), steps)
    gradient_error = _times(slope, error)
    return lax.stop_gradient(
        Certificate(
            residual=_relative(residual, norm(c)),
            inverse_norm=inverse_norm,
            contracts=contracts,
            error=error,
            relative_error=_relative(
                error, jnp.maximum(norm(w_flat) - error, norm(c) / (1 + size))
            ),
            gradient_error=gradient_error,
            relative_gradient_error=_relative(
                gradient_error, norm(pull_theta(w_flat)) - gradient_error
            ),
        )
    )


def dominant(
    f: Map, theta: Any, x: Tree, key: jax.Array, steps: int
) -> tuple[jax.Array, jax.Array]:
    """The spectral radius, and the cosine between the last iterate and its image."""
    flat, vector = on_vectors(f, theta, x)
    _, push = jax.linearize(flat, vector)
    v, growth = _power(push, _unit(key, vector), steps)
    # The logarithm of a zero growth is minus infinity, and its exponential the right radius.
    radius = jnp.exp(jnp.mean(jnp.log(growth[steps // 2 :])))
    image = push(v)
    cosine = jnp.vdot(v, image) / jnp.where(norm(image) > 0, norm(image), 1)
    return lax.stop_gradient((radius, cosine))


def _power(product: VectorMap, start: Vector, steps: int) -> tuple[Vector, jax.Array]:
    """The unit vector after `steps` products, and by how much each made its own one grow."""
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")

    def step(v: Vector, _: None) -> tuple[Vector, jax.Array]:
        image = product(v)
        growth = norm(image)
        return image / jnp.where(growth == 0, 1, growth), growth

    return lax.scan(step, start, None, length=steps)


def _norm_of(push: VectorMap, pull: VectorMap, start: Vector, steps: int) -> jax.Array:
    """The 2-norm of a linear map from products with it and with its transpose."""
    v, _ = _power(lambda v: pull(push(v)), start, steps)
    return lax.stop_gradient(norm(push(v)))


def _condition(
    push: VectorMap, pull: VectorMap, start: Vector, steps: int, eps: float
) -> Condition:
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    count, dtype = min(steps, start.size), start.dtype

    def normalised(rest: Vector, scale: jax.Array) -> tuple[Vector, jax.Array]:
        """Unit vector and length, both zero where the rest is rounding noise (NaN is not)."""
        length = norm(rest)
        length = jnp.where(length <= 10 * eps * scale, 0, length)
        return rest / jnp.where(length == 0, 1, length) * (length != 0), length

    def step(carry: tuple, row: jax.Array) -> tuple[tuple, tuple]:
        left, right, alive, scale = carry
        image = push(right[row])
        scale = jnp.maximum(scale, norm(image))
        u, alpha = normalised(orthogonal(left, image), scale)
        left = left.at[row].set(u)
        v, beta = normalised(orthogonal(right, pull(u)), scale)
        right = right.at[row + 1].set(v, mode="drop")
        return (left, right, alive & (beta != 0), scale), (alpha, beta, alive)

    empty = jnp.zeros((count, start.size), dtype)
    carry = (empty, empty.at[0].set(start), jnp.bool_(True), jnp.zeros((), dtype))
    _, (alpha, beta, alive) = lax.scan(step, carry, jnp.arange(count))
    # After a breakdown there are no more directions; alpha[0] = ||(I - J) v|| lies between the
    # extremes and so cannot be taken for one.
    bidiagonal = jnp.diag(jnp.where(alive, alpha, alpha[0])) + jnp.diag(beta[:-1], 1)
    values = lax.stop_gradient(jnp.linalg.svd(bidiagonal, compute_uv=False))
    largest, smallest = values[0], values[-1]
    ratio = jnp.where(smallest == 0, jnp.inf, largest / jnp.where(smallest == 0, 1, smallest))
    return Condition(largest, smallest, ratio)


def _minus(push: VectorMap, pull: VectorMap) -> tuple[VectorMap, VectorMap]:
    """Products with `I - J` and its transpose."""
    return lambda v: v - push(v), lambda v: v - pull(v)


def _unit(key: jax.Array, like: Vector) -> Vector:
    start = jax.random.normal(key, like.shape, like.dtype)
    return start / norm(start)


def _of_parameters(f: Map, theta: Any, x: Tree) -> tuple[VectorMap, Vector]:
    """`theta -> f(theta, x)` between flat vectors, over the leaves that have derivatives."""
    leaves, structure = jax.tree.flatten(theta)
    smooth = [
        is_number(leaf) and jnp.issubdtype(jnp.result_type(leaf), jnp.inexact) for leaf in leaves
    ]
    floating = require_real(
        [leaf for leaf, is_smooth in zip(leaves, smooth, strict=True) if is_smooth], "theta"
    )
    unravel = unraveler(floating)

    def flat(vector: Vector) -> Vector:
        given = iter(unravel(vector))
        mixed = [
            next(given) if is_smooth else leaf
            for leaf, is_smooth in zip(leaves, smooth, strict=True)
        ]
        return ravel(f(jax.tree.unflatten(structure, mixed), x), working_dtype(x))

    return flat, ravel(floating, working_dtype(floating))


def _times(factor: jax.Array, amount: jax.Array) -> jax.Array:
    """A product in which nothing times infinity is nothing: no residual is no error."""
    return jnp.where(amount == 0, 0, factor * amount)


def _relative(error: jax.Array, size: jax.Array) -> jax.Array:
    """`error / size`; infinite where the size may be zero, unless there is no error."""
    known = jnp.where(size > 0, error / jnp.where(size > 0, size, 1), jnp.inf)
    return jnp.where(error == 0, 0, known)
