"""How a solve went, in words: what happened, why, and what to try."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from solvers.adjoint.closure import is_number
from solvers.diagnose.measure import condition, dominant, jacobian_norm
from solvers.fixed_point.solve import fixed_point
from solvers.info import Status, explain
from solvers.penalties import Map
from solvers.space import Tree, epsilon, require_real


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
    measured = jax.jit(lambda x, key: _measure(f, theta, x, key))(x, key)
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
        *dominant(f, theta, x, keys[0], 50),
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
            if not (is_number(leaf) and jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)):
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
