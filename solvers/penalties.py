"""Terms for a loss that keep a map `x = f(theta, x)` solvable.

With `J = df/dx` at `x`, each term is small where the solve (`contraction`, `jacobian_norm`) or the
system `I - J` behind its gradient (`gershgorin`, `conditioning`) is well behaved. They look at one
point: usually the solution, where `stop_gradient(x)` keeps the term from moving the point itself.

| penalty | products | wants |
| --- | --- | --- |
| `contraction` | n, or `columns` | the L1 norm of `J` below `eta` |
| `jacobian_norm` | `samples` | `J` small on average |
| `gershgorin` | 2n, or `2 samples` | `(I - J)^T (I - J)` close to the identity |
| `conditioning` | `2 steps` | the smallest singular value of `I - J` above `sqrt(floor)` |

All take the map `f(theta, x)`, which has the structure and shapes of `x`, its parameters `theta`
(any pytree) and the point `x` (a pytree of real arrays with `n` entries in all). They return a
scalar, differentiable in both. `solvers.diagnose` measures the same things for people.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from solvers.adjoint.closure import shape_of
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

Map = Callable[[Any, Tree], Tree]
VectorMap = Callable[[Vector], Vector]


def contraction(
    f: Map,
    theta: Any,
    x: Tree,
    eta: float | jax.Array = 0.9,
    *,
    columns: int | None = None,
    key: jax.Array | None = None,
) -> jax.Array:
    """The contraction penalty of Scarselli et al. (2009): excess of the L1 norm of `J` over `eta`.

        max(0, max_i ||J^i||_1 - eta)^2,    J^i the i-th column of J

    Args:
      eta: the contraction constant that is wanted, in (0, 1).
      columns: how many columns to look at, drawn without replacement; all `n` by default, which
        takes `n` products and memory for the whole Jacobian.
      key: needed with `columns`.

    Returns:
      A scalar; from a sample of columns, a lower bound of the penalty over all of them.

    >>> print(contraction(lambda a, x: a * x, 2.0, jnp.ones(3), eta=0.5))
    2.25
    """
    flat, vector = on_vectors(f, theta, x)
    if columns is None:
        basis = jnp.eye(vector.size, dtype=vector.dtype)
    else:
        if key is None:
            raise ValueError("columns draws random columns: pass key=jax.random.key(...)")
        if not 1 <= columns <= vector.size:
            raise ValueError(f"columns must be between 1 and {vector.size}, got {columns}")
        chosen = jax.random.choice(key, vector.size, (columns,), replace=False)
        basis = jax.nn.one_hot(chosen, vector.size, dtype=vector.dtype)
    push, _ = products(flat, vector)
    sizes = jnp.sum(jnp.abs(jax.vmap(push)(basis)), axis=1)
    return jax.nn.relu(jnp.max(sizes) - eta) ** 2


def jacobian_norm(f: Map, theta: Any, x: Tree, key: jax.Array, samples: int = 1) -> jax.Array:
    """An unbiased estimate of the mean square of a row of the Jacobian (Hutchinson, 1990).

        ||J||_F^2 / n  ~  mean_s ||J^T v_s||^2 / n,    v_s with entries -1 or 1

    Args:
      key: draws the probes.
      samples: how many probes, one product each.
    """
    flat, vector = on_vectors(f, theta, x)
    _, pull = jax.vjp(flat, vector)
    images = jax.vmap(lambda probe: pull(probe)[0])(_probes(key, samples, vector))
    return jnp.sum(images**2) / (samples * vector.size)


def gershgorin(
    f: Map, theta: Any, x: Tree, *, key: jax.Array | None = None, samples: int = 8
) -> jax.Array:
    """How far Gershgorin's bound is from showing that `I - J` is invertible (appendix A, eq. 4).

        max(0, sqrt(n) ||A - I||_F - 1),    A = (I - J)^T (I - J)

    `lambda_min(A)` is at least `1 - sqrt(n) ||A - I||_F`, so `I - J` is invertible wherever the
    excess is negative. The bound is crude and the term strict for large `n`.

    Args:
      key: without one the norm is exact, by `n` products with `A`; with one it is estimated.
      samples: how many probes the estimate takes, one product with `A` each.
    """
    flat, vector = on_vectors(f, theta, x)
    push, pull = products(flat, vector)
    if key is None:
        probes, count = jnp.eye(vector.size, dtype=vector.dtype), 1
    else:
        probes, count = _probes(key, samples, vector), samples
    images = jax.vmap(lambda probe: _gram_excess(push, pull, probe))(probes)
    return jax.nn.relu(math.sqrt(vector.size) * _root(jnp.sum(images**2) / count) - 1)


def smallest_eigenvalue(f: Map, theta: Any, x: Tree, key: jax.Array, steps: int = 20) -> jax.Array:
    """The smallest eigenvalue of `A = (I - J)^T (I - J)` by Lanczos' method (appendix A).

        Q A Q^T = T,    T u = lambda u,    lambda = ||(I - J) Q^T u||^2 = u^T T u

    with orthonormal rows `Q` that span the Krylov space of a random start, and `T` tridiagonal.
    `u` is held constant under differentiation: since it is an eigenvector, `d lambda = u^T dT u`
    is the exact derivative, and that of an eigendecomposition is never needed.

    Args:
      key: draws the start.
      steps: dimension of the Krylov space, two products each; `n` are enough for any map.
        Differentiation keeps `steps^2` vectors.

    Returns:
      A scalar, never below the true eigenvalue, up to rounding.
    """
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    x = require_real(x, "x")
    flat, vector = on_vectors(f, theta, x)
    push, pull = products(flat, vector)
    size, dtype = min(steps, vector.size), vector.dtype
    # Below this a new direction is mostly the rounding of the old ones, and the derivative of its
    # normalisation would amplify that by the inverse of the threshold.
    threshold = math.sqrt(epsilon(x))

    def step(carry: tuple, row: jax.Array) -> tuple[tuple, tuple]:
        basis, alive, scale = carry
        image = _gram_excess(push, pull, basis[row])
        alpha = jnp.vdot(basis[row], image)
        scale = jnp.maximum(scale, norm(image))
        rest = orthogonal(basis, image)
        grows = alive & (norm(rest) > threshold * scale)
        beta = jnp.where(grows, _root(jnp.vdot(rest, rest)), 0)
        direction = jnp.where(grows, rest / jnp.where(grows, beta, 1), 0)
        basis = basis.at[row + 1].set(direction, mode="drop")
        return (basis, grows, scale), (alpha, beta, alive)

    start = jax.random.normal(key, (vector.size,), dtype)
    basis = jnp.zeros((size, vector.size), dtype).at[0].set(start / norm(start))
    carry = (basis, jnp.bool_(True), jnp.zeros((), dtype))
    (basis, _, _), tridiagonal = lax.scan(step, carry, jnp.arange(size))
    alpha, beta, alive = lax.stop_gradient(tridiagonal)
    # The rows after a breakdown are empty; anything above the spectrum keeps them from being
    # taken for eigenvectors.
    above = jnp.max(jnp.abs(alpha)) + 2 * jnp.max(beta) + 1
    off = jnp.diag(beta[:-1], 1)
    matrix = jnp.diag(jnp.where(alive, alpha, above)) + off + off.T
    ritz = jnp.linalg.eigh(matrix)[1][:, 0] @ basis
    # As a quotient, and not as u^T T u, the value cannot be negative and keeps its relative
    # accuracy where it is small.
    image = ritz - push(ritz)
    return jnp.vdot(image, image) / jnp.vdot(ritz, ritz)


def conditioning(
    f: Map, theta: Any, x: Tree, key: jax.Array, floor: float | jax.Array, steps: int = 20
) -> jax.Array:
    """The amount by which the smallest eigenvalue of `(I - J)^T (I - J)` falls short of `floor`.

        max(0, floor - lambda_min)

    Args:
      key: draws the start of Lanczos' method.
      floor: the eigenvalue that is wanted: the square of a singular value of `I - J`.
      steps: as in `smallest_eigenvalue`.
    """
    return jax.nn.relu(floor - smallest_eigenvalue(f, theta, x, key, steps))


def on_vectors(f: Map, theta: Any, x: Tree) -> tuple[VectorMap, Vector]:
    """`f(theta, .)` as a function of flat vectors, and `x` as one."""
    x = require_real(x, "x")
    require_like(shape_of(f, theta, x), x, "f(theta, x)", "x")
    dtype, unravel = working_dtype(x), unraveler(x)
    vector = ravel(x, dtype)
    if vector.size == 0:
        raise ValueError("x has no entries, so the map has no Jacobian")
    return lambda vector: ravel(f(theta, unravel(vector)), dtype), vector


def products(flat: VectorMap, vector: Vector) -> tuple[VectorMap, VectorMap]:
    """`v -> J v` and `v -> J^T v` for the Jacobian of `flat` at `vector`, evaluated once."""
    _, push = jax.linearize(flat, vector)
    transposed = jax.linear_transpose(push, vector)
    return push, lambda v: transposed(v)[0]


def orthogonal(basis: jax.Array, vector: Vector) -> Vector:
    """What of `vector` is orthogonal to the rows of `basis`, by Gram-Schmidt applied twice."""
    for _ in range(2):
        vector = vector - (basis @ vector) @ basis
    return vector


def _gram_excess(push: VectorMap, pull: VectorMap, vector: Vector) -> Vector:
    """`(A - I) v = J^T (J v - v) - J v`, in which nothing cancels when `J` is small."""
    image = push(vector)
    return pull(image - vector) - image


def _root(square: jax.Array) -> jax.Array:
    """Square root with derivative 0, not infinity, at 0."""
    positive = square > jnp.finfo(square.dtype).tiny
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, square, 1)), 0)


def _probes(key: jax.Array, samples: int, like: Vector) -> jax.Array:
    if samples < 1:
        raise ValueError(f"samples must be at least 1, got {samples}")
    return jax.random.rademacher(key, (samples, like.size), like.dtype)
