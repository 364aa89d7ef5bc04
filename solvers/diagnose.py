"""What a map looks like to a solver at one point, and how far a gradient can be trusted.

With `J = df/dx`: the spectral radius says whether plain iteration converges, `||J||_2` whether it
does so from the first step, and the condition of `I - J` how much a gradient is worth. `report`
puts it in words. Nothing here is differentiated: `solvers.penalties` has the terms for a loss.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from solvers.fixed_point.solve import fixed_point
from solvers.info import Status, explain
from solvers.penalties import Map, VectorMap, on_vectors, orthogonal, products
from solvers.vectors import (
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
      f: the map; `f(theta, x)` has the structure and shapes of `x`.
      theta: parameters, any pytree.
      x: the point, a pytree of real arrays.
      key: draws the start.
      steps: products with `J`.

    Returns:
      A scalar estimate.

    >>> rotation = jnp.array([[0.0, 0.5], [-0.5, 0.0]])
    >>> radius = spectral_radius(lambda a, x: a @ x, rotation, jnp.ones(2), jax.random.key(0))
    >>> print(f"{radius:.3f}")
    0.500
    """
    return _dominant(f, theta, x, key, steps)[0]


def jacobian_norm(f: Map, theta: Any, x: Tree, key: jax.Array, steps: int = 30) -> jax.Array:
    """The largest singular value of `J`, by power iteration: `v <- J^T J v`, then `||J v||`.

    Args:
      f: the map; `f(theta, x)` has the structure and shapes of `x`.
      theta: parameters, any pytree.
      x: the point, a pytree of real arrays.
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
      f: the map; `f(theta, x)` has the structure and shapes of `x`.
      theta: parameters, any pytree.
      x: the point, a pytree with `n` entries in all.
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
      f: the map; `f(theta, x)` has the structure and shapes of `x`.
      theta: parameters, any pytree; leaves that are not floating-point are held fixed.
      x: the solution, a pytree with `n` entries in all.
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


def neumann_bound(
    jacobian_norm: float | jax.Array, inverse_norm: float | jax.Array, steps: int | jax.Array
) -> float | jax.Array:
    """How far `steps` steps of the Neumann series are from its limit (Proposition 2).

        || sum_{t=0..steps} J^t - (I - J)^-1 ||  <=  ||(I - J)^-1|| ||J||^(steps + 1)

    >>> neumann_bound(0.5, 2.0, 1)
    0.5
    """
    return inverse_norm * jacobian_norm ** (steps + 1)


def report(
    f: Map,
    theta: Any,
    x0: Tree,
    *,
    method: Any = "auto",
    rtol: float | None = None,
    max_steps: int = 200,
    key: jax.Array | None = None,
) -> str:
    """Solves `x = f(theta, x)` and says in words what happened, why, and what to try.

    Args:
      f: the map; `f(theta, x)` has the structure and shapes of `x`.
      theta: parameters, any pytree.
      x0: where to start, a pytree of real arrays.
      method, rtol, max_steps: as in `solvers.fixed_point`.
      key: draws the starts of the estimates; `jax.random.key(0)` if not given.

    Returns:
      The text. A failed solve is a result, not an error. Not for use inside `jit`.

    >>> text = report(lambda a, x: a * jnp.cos(x), 0.5, jnp.zeros(2))
    >>> print(text.splitlines()[0])
    CONVERGED: The residual met the tolerance.
    """
    x0 = require_real(x0, "x0")
    rtol = epsilon(x0) ** (2 / 3) if rtol is None else rtol
    x, info = fixed_point(f, theta, x0, method=method, rtol=rtol, max_steps=max_steps)
    name = method if isinstance(method, str) else getattr(method, "name", "cascade")
    outcome = _Outcome(name, int(info.status), float(info.residual), rtol, epsilon(x0))
    lines = [
        explain(outcome.status),
        f"Method {name} took {int(info.steps)} of at most {max_steps} steps and reached a relative "
        f"residual of {outcome.residual:.2g}; {rtol:.2g} was asked for.",
    ]
    where = _first_nonfinite(theta=theta, x0=x0)
    where = where or _first_nonfinite(**{"f(theta, x0)": f(theta, x0)})
    if where:
        lines.append(f"The first value that is not finite is in the problem itself: {where}.")
        return _joined(lines, _advice_nonfinite(where))
    if outcome.status == Status.NONFINITE:
        lines.append(
            "theta, x0 and f(theta, x0) are finite: the value that is not appeared on the way. "
            "What is returned, and measured below, is the best finite iterate."
        )
    key = jax.random.key(0) if key is None else key
    measured = jax.jit(lambda theta, x, key: _measure(f, theta, x, key))(theta, x, key)
    local = _Local(*(float(value) for value in measured))
    lines += _describe(local, sum(leaf.size for leaf in jax.tree.leaves(x0)))
    return _joined(lines, _advice(local, outcome) if local.finite else _ADVICE_JACOBIAN)


class _Outcome(NamedTuple):
    """How the solve of a report ended."""

    method: str
    status: int
    residual: float
    rtol: float
    eps: float  # rounding unit of the state


class _Local(NamedTuple):
    """The map at one point, as numbers."""

    radius: float
    cosine: float  # between v and J v for the dominant v: 1 and -1 are real eigenvalues
    size: float  # ||J||_2
    largest: float
    smallest: float
    ratio: float

    @property
    def finite(self) -> bool:
        return all(math.isfinite(value) for value in self[:5])


_CONDITION_STEPS = 30
_TRUNCATION = 0.01  # of the gradient, for the suggested length of a Neumann series
_LONG_SERIES = 50  # beyond this an exact solve is the cheaper way
_ADVICE_JACOBIAN = [
    "Look for overflow, and for a function whose value is finite where its derivative is not: sqrt "
    "or a norm at zero (use sqrt(. + eps)), a division in the branch of a where that is not taken.",
    "jax.debug_nans(True) around jax.jacobian(f, argnums=1)(theta, x) shows the operation.",
]


def _measure(f: Map, theta: Any, x: Tree, key: jax.Array) -> tuple[jax.Array, ...]:
    keys = jax.random.split(key, 3)
    return (
        *_dominant(f, theta, x, keys[0], 50),
        jacobian_norm(f, theta, x, keys[1]),
        *condition(f, theta, x, keys[2], _CONDITION_STEPS),
    )


def _describe(local: _Local, entries: int) -> list[str]:
    if not local.finite:
        return ["The Jacobian J = df/dx at the returned point is not finite."]
    singular = (
        f"The singular values of I - J lie between {local.smallest:.3g} and {local.largest:.3g}, "
        f"a condition of {local.ratio:.3g}"
    )
    if entries > _CONDITION_STEPS:
        singular += f" at least ({_CONDITION_STEPS} steps for {entries} entries)"
    return [
        f"At the returned point J = df/dx has spectral radius {local.radius:.3g} and norm "
        f"{local.size:.3g}: {_pace(local.radius)}.",
        singular + ".",
    ]


def _pace(radius: float) -> str:
    if radius >= 1:
        return "plain iteration does not converge to a solution with this Jacobian"
    if radius < 0.1:
        return "plain iteration gains more than a digit in every step"
    return f"plain iteration gains a digit in about {math.ceil(-1 / math.log10(radius))} steps"


def _advice_nonfinite(where: str) -> list[str]:
    advice = ["Make that value finite first: nothing else can be judged before."]
    if where.startswith("f("):
        advice.append(
            "Evaluate f(theta, x0) under jax.debug_nans(True) to be shown the operation that made "
            "it; overflow, 0 / 0 and the logarithm of a negative number are the usual ones."
        )
    return advice


def _advice(local: _Local, outcome: _Outcome) -> list[str]:
    contracts, advice = local.radius < 1, []
    if outcome.status != Status.CONVERGED:
        advice += _advice_failed(local, outcome) if contracts else _advice_repelled(local, outcome)
    elif not contracts:
        advice.append(
            'Keep method="newton" or "auto" and adjoint="implicit": picard, rbp and Neumann series '
            "diverge at this solution."
        )
    if not contracts:
        advice.append(
            "While training, add solvers.penalties.contraction or solvers.penalties.jacobian_norm "
            "to the loss, or bound the singular values of the recurrent weights."
        )
    elif local.size >= 1:
        advice.append(
            f"||J|| = {local.size:.3g} is not below one although the spectral radius is: errors "
            "may grow before they fall, so short truncations (neumann, tbptt, phantom) mislead; "
            'prefer adjoint="implicit". solvers.penalties.jacobian_norm brings ||J|| down.'
        )
    else:
        advice.append(_series(local))
    if local.ratio > 1 / math.sqrt(outcome.eps):
        advice.append(
            "I - J is nearly singular for this precision, and gradients are uncertain by about "
            f"{100 * min(local.ratio * outcome.eps, 1.0):.2g}%: use float64 or "
            "adjoint=solvers.adjoint.implicit(solvers.linear.lsqr()), and while training add "
            "solvers.penalties.conditioning(f, theta, x, key, floor=0.01)."
        )
    return advice


def _advice_failed(local: _Local, outcome: _Outcome) -> list[str]:
    """For a solve that failed where the map contracts."""
    if outcome.status == Status.MAX_STEPS:
        more = _steps_to(outcome.rtol / max(outcome.residual, outcome.eps), local.radius)
        return [
            f"The map contracts here: about {more} more plain steps would do. Raise max_steps, or "
            'use method="anderson" or "newton", which need fewer.'
        ]
    if outcome.residual < 100 * outcome.eps:
        return [
            "The residual is as small as this precision allows: ask for "
            f"rtol={10 * outcome.residual:.1g}, or use float64."
        ]
    return [
        "The map contracts at the returned point, if not on the way to it: start nearer to the "
        'solution, or use method="newton".'
    ]


def _advice_repelled(local: _Local, outcome: _Outcome) -> list[str]:
    """For a solve that failed where the map does not contract."""
    if outcome.method in ("auto", "newton", "cascade"):
        return [
            "Newton's method needs no contraction and failed too: there may be no solution near "
            "x0, or I - J becomes singular on the way. Start elsewhere, or change the map."
        ]
    return ['Use method="newton" or "auto", which need no contraction.', _damping(local)]


def _series(local: _Local) -> str:
    terms = max(_steps_to(_TRUNCATION, local.size) - 1, 0)
    within = f"For gradients within about {_TRUNCATION:.0%}"
    if terms > _LONG_SERIES:
        return f'{within} a Neumann series needs {terms} terms: use adjoint="implicit".'
    return (
        f"{within}, solvers.adjoint.neumann({terms}) is enough (Proposition 2); "
        'adjoint="implicit" is exact.'
    )


def _damping(local: _Local) -> str:
    if local.cosine < -0.9:
        best = 1 / (1 + local.radius)
        return (
            f"The dominant eigenvalue is negative, so damping helps: solvers.picard(damping="
            f"{best:.2g}) or solvers.anderson(damping={best:.2g})."
        )
    if local.cosine > 0.9:
        return "The dominant eigenvalue is positive: no damping makes plain iteration converge."
    return (
        "The dominant eigenvalues are not a single real one: damping may help, for instance "
        f"solvers.anderson(damping={1 / (1 + local.radius):.2g})."
    )


def _steps_to(factor: float, rate: float) -> int:
    """The least `k` with `rate^k <= factor`."""
    if factor >= 1:
        return 0
    floor = np.finfo(float).tiny
    return math.ceil(math.log(max(factor, floor)) / math.log(max(rate, floor)))


def _joined(lines: list[str], advice: list[str]) -> str:
    return "\n".join([*lines, "Suggestions:", *(f"- {line}" for line in advice)])


def _first_nonfinite(**named: Tree) -> str | None:
    """Which leaf of which tree holds the first NaN or infinity, and where in it."""
    for name, tree in named.items():
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            if not jnp.issubdtype(jnp.result_type(leaf), jnp.inexact):
                continue
            bad = ~np.asarray(jnp.isfinite(leaf))
            if bad.any():
                index = tuple(int(i) for i in np.argwhere(bad)[0])
                at = f", the first at index {index}" if index else ""
                return (
                    f"{name}{jax.tree_util.keystr(path)} has {int(bad.sum())} of {bad.size} "
                    f"entries NaN or infinite{at}"
                )
    return None


def _dominant(
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
    smooth = [jnp.issubdtype(jnp.result_type(leaf), jnp.inexact) for leaf in leaves]
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
