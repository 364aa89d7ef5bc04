"""Lets a jaxopt solver serve as a method and a jaxopt linear solve as a linear solver.

jaxopt is no longer maintained. This is the one module that imports it, so that code written for
it can be used, and compared, without its solvers deciding when to stop or what to report.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from solvers.fixed_point.base import FixedPointProblem, Point, evaluate
from solvers.info import Info, Status
from solvers.iterate import Goal, Method, Progress
from solvers.linear.base import Operator
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

with warnings.catch_warnings():
    # Said on every import and known to whoever imports a bridge to it; any other warning passes.
    warnings.filterwarnings(
        "ignore", message="JAXopt is no longer maintained", category=DeprecationWarning
    )
    import jaxopt
    from jaxopt import linear_solve as jaxopt_linear

# They form the matrix and have no tolerance, no start and no step limit.
_DIRECT = (jaxopt_linear.solve_lu, jaxopt_linear.solve_cholesky, jaxopt_linear.solve_inv)


class State(NamedTuple):
    params: Vector
    inner: Any  # the state of the jaxopt solver


def method(make: Callable[[Callable[[Vector], Vector]], Any]) -> Method:
    """A jaxopt solver as a method of `solvers.fixed_point`.

    The loop of this package calls the solver's `init_state` and `update`, and owns the stop rule,
    the status and the best iterate; `tol`, `maxiter` and `implicit_diff` of the jaxopt solver
    have no effect. jaxopt does not report the residual at the value it returns, so every step
    costs one evaluation of the map more than in jaxopt.

    Args:
      make: `fun -> solver` for the map `fun(x) = f(theta, x)` on a vector. A root finder gets
        the equation it wants: `lambda fun: jaxopt.Broyden(lambda x: fun(x) - x)`.

    >>> from solvers import fixed_point
    >>> accelerated = method(lambda fun: jaxopt.AndersonAcceleration(fun, history_size=3))
    >>> x, info = fixed_point(lambda a, x: jnp.cos(a * x), 1.0, jnp.zeros(2), method=accelerated)
    >>> print(f"{x[0]:.4f}", bool(info.converged))
    0.7391 True
    """

    def solver(problem: FixedPointProblem) -> Any:
        made = make(problem.f)
        if not isinstance(made, jaxopt.base.IterativeSolver):
            raise TypeError(
                f"make(fun) must return a jaxopt solver with init_state and update, "
                f"got {type(made).__name__}"
            )
        return made

    def init(problem: FixedPointProblem, x: Vector) -> tuple[State, Progress]:
        inner = jax.tree.map(_strong, solver(problem).init_state(x))
        return State(x, inner), evaluate(problem, x).progress(1 + _count(inner))

    def step(problem: FixedPointProblem, state: State, _: Goal) -> tuple[State, Progress]:
        params, inner = solver(problem).update(*state)
        # jaxopt creates parts of its state in the default precision, whatever that of `x` is.
        state_after = State(
            params.astype(state.params.dtype), jax.tree.map(_like, inner, state.inner)
        )
        point: Point = evaluate(problem, state_after.params)
        used = _count(state_after.inner) - _count(state.inner)
        return state_after, point.progress(1 + used)

    return Method(init, step, "jaxopt")


def linear(solve: Callable[..., Any], **options: Any) -> Callable[..., tuple[Tree, Info]]:
    """A function of `jaxopt.linear_solve` as a linear solver: `solve(matvec, b, x0, precond)`.

    The result serves wherever a linear solver does: `adjoint.implicit(linear=...)`,
    `newton(linear=...)`, `linear_solve(solver=...)`. It works on the vector of all leaves, so
    the direct solves accept pytrees too. The status is judged by the residual `b - A x` that is
    really there: CONVERGED, MAX_STEPS (above the tolerance, for whatever reason) or NONFINITE, in
    which case the value is zero. jaxopt does not say how many steps it took: `steps` and
    `evaluations` are 0, for unknown.

    Args:
      solve: `jaxopt.linear_solve.solve_gmres`, `solve_bicgstab`, `solve_normal_cg`, `solve_cg`,
        `solve_lu`, `solve_cholesky` or `solve_inv`.
      **options: passed on, under jaxopt's names: `tol`, `atol`, `maxiter`, `restart`, `ridge`.
        `tol` defaults to the 2/3 power of the rounding unit, as everywhere in this package, and
        judges the direct solves too. A `ridge` changes the system and shows as a residual.

    >>> solver = linear(jaxopt_linear.solve_gmres, tol=1e-5)
    >>> x, info = solver(lambda v: 2.0 * v, jnp.ones(3))
    >>> print(x, bool(info.converged))
    [0.5 0.5 0.5] True
    """
    direct = solve in _DIRECT
    options = dict(options)
    tol, atol = options.pop("tol", None), options.pop("atol", 0.0)
    if {"init", "M"} & set(options):
        raise ValueError(
            "start and preconditioner belong to the call: solve(matvec, b, x0, precond)"
        )

    def solver(
        matvec: Operator, b: Tree, x0: Tree | None = None, precond: Operator | None = None
    ) -> tuple[Tree, Info]:
        b = require_real(b, "b")
        require_like(jax.eval_shape(matvec, b), b, "matvec(b)", "b")
        dtype, unravel = working_dtype(b), unraveler(b)
        rtol = epsilon(b) ** (2 / 3) if tol is None else tol

        def on_vectors(function: Operator) -> Callable[[Vector], Vector]:
            return lambda vector: ravel(function(unravel(vector)), dtype)

        a, flat_b = on_vectors(matvec), ravel(b, dtype)
        m = on_vectors(precond) if precond is not None else (lambda vector: vector)
        size = norm(flat_b)
        goal = jnp.maximum(rtol * size, atol)
        start, rhs = jnp.zeros_like(flat_b), flat_b
        if x0 is not None:
            require_like(x0, b, "x0", "b")
            start = jnp.where(size == 0, 0, ravel(require_real(x0, "x0"), dtype))
            rhs = flat_b - a(start)

        # From here on the solver sees a correction: `A M y = rhs`, `x = start + M y`, stopped at
        # the residual that is wanted for `x`.
        tolerances = {} if direct else {"tol": 0.0, "atol": goal}
        if solve is jaxopt_linear.solve_cg:
            # A M would not be symmetric; conjugate gradients know what to do with M.
            y = solve(a, rhs, **tolerances, **options, **({"M": m} if precond else {}))
            correction = y
        elif solve is jaxopt_linear.solve_normal_cg:
            # Its stop rule is on A^T r, which can be ||A^T|| times r: relative to A^T b is all
            # that can be asked for.
            y = solve(lambda v: a(m(v)), rhs, tol=_share(goal, rhs), **options)
            correction = m(y)
        else:
            y = solve(lambda v: a(m(v)), rhs, **tolerances, **options)
            correction = m(y)

        x = start + correction
        finite = jnp.isfinite(norm(x)) & jnp.isfinite(norm(flat_b - a(x)))
        x = jnp.where(finite, x, 0)
        absolute = norm(flat_b - a(x))
        residual = absolute / jnp.where(size > 0, size, 1)
        status = jnp.select(
            [~finite, absolute <= goal],
            [int(Status.NONFINITE), int(Status.CONVERGED)],
            int(Status.MAX_STEPS),
        )
        unknown = jnp.int32(0)
        residual = jnp.where(jnp.isfinite(residual), residual, jnp.inf)
        return unravel(x), Info(unknown, residual, status.astype(jnp.int32), unknown)

    return solver


def _share(goal: jax.Array, rhs: Vector) -> jax.Array:
    size = norm(rhs)
    return goal / jnp.where(size > 0, size, 1)


def _count(inner: Any) -> jax.Array:
    """Evaluations that a jaxopt state says it has used; one an update where it does not say."""
    used = getattr(inner, "num_fun_eval", None)
    if used is None:
        used = getattr(inner, "iter_num", 0)
    return jnp.asarray(used, jnp.int32)


def _strong(leaf: Any) -> jax.Array:
    """`leaf` as an array whose type does not depend on what it is combined with."""
    return lax.convert_element_type(leaf, jnp.result_type(leaf))


def _like(new: Any, old: jax.Array) -> jax.Array:
    return lax.convert_element_type(new, old.dtype)
