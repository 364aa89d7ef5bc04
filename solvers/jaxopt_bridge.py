"""Lets a jaxopt solver serve as a method and a jaxopt linear solve as a linear solver.

jaxopt is no longer maintained. This is the one module that imports it, so that code written for
it can be used, and compared, without its solvers deciding when to stop or what to report.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree

from solvers.fixed_point.base import FixedPointProblem, evaluate
from solvers.info import Info
from solvers.iterate import Goal, Method, Progress
from solvers.linear.base import Operator
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
from solvers.verdict import relative, verdict

with warnings.catch_warnings():
    # Said on every import and known to whoever imports a bridge to it; any other warning passes.
    warnings.filterwarnings(
        "ignore", message="JAXopt is no longer maintained", category=DeprecationWarning
    )
    from jaxopt.base import IterativeSolver
    from jaxopt.linear_solve import solve_cg, solve_cholesky, solve_inv, solve_lu, solve_qr

# They form the matrix and have neither a tolerance nor a step limit.
_DIRECT = (solve_lu, solve_cholesky, solve_inv, solve_qr)


class State(NamedTuple):
    """The iterate, and what the jaxopt solver keeps beside it."""

    params: Vector
    inner: Any  # the state of the jaxopt solver


@dataclasses.dataclass(frozen=True, eq=False)
class Jaxopt(Method):
    """A jaxopt solver as a method of `solvers.fixed_point`.

    The loop of this package calls the solver's `init_state` and `update`, and owns the stop rule,
    the status and the best iterate; `tol`, `maxiter` and `implicit_diff` of the jaxopt solver
    have no effect. jaxopt does not report the residual at the value it returns, so every step
    costs one evaluation of the map more than in jaxopt. Its Anderson acceleration fails for
    float32 iterates while float64 is enabled: parts of its state are in the default precision.

    Args:
      make: `fun -> solver` for the map `fun(x) = f(theta, x)` on a vector. A root finder gets
        the equation it wants: `lambda fun: jaxopt.Broyden(lambda x: fun(x) - x)`.

    >>> import jaxopt
    >>> from solvers import fixed_point
    >>> accelerated = method(lambda fun: jaxopt.AndersonAcceleration(fun, history_size=3))
    >>> x, info = fixed_point(lambda a, x: jnp.cos(a * x), 1.0, jnp.zeros(2), method=accelerated)
    >>> print(f"{x[0]:.4f}", bool(info.converged))
    0.7391 True
    """

    make: Callable[[Callable[[jax.Array], jax.Array]], Any]

    def _solver(self, problem: FixedPointProblem, unravel: Callable) -> Any:
        made = self.make(lambda v: ravel_pytree(problem.f(unravel(v)))[0])
        if not isinstance(made, IterativeSolver):
            raise TypeError(
                "make(fun) must return a jaxopt solver with init_state and update, "
                f"got {type(made).__name__}"
            )
        return made

    def init(self, problem: FixedPointProblem, x: Vector) -> tuple[State, Progress]:
        if problem.space.batch_axis is not None:
            raise ValueError("a jaxopt solver takes one problem at a time: use jax.vmap")
        flat, unravel = ravel_pytree(x)
        inner = jax.tree.map(_strong, self._solver(problem, unravel).init_state(flat))
        return State(x, inner), evaluate(problem, x).progress(1 + _count(inner))

    def step(self, problem: FixedPointProblem, state: State, _: Goal) -> tuple[State, Progress]:
        flat, unravel = ravel_pytree(state.params)
        params, inner = self._solver(problem, unravel).update(flat, state.inner)
        new = State(unravel(_like(params, flat)), jax.tree.map(_like, inner, state.inner))
        used = _count(new.inner) - _count(state.inner)
        return new, evaluate(problem, new.params).progress(1 + used)


method = Jaxopt


def linear(
    solve: Callable[..., Any], *, rtol: float | None = None, atol: float = 0.0, **options: Any
) -> Callable[..., tuple[Tree, Info]]:
    """A function of `jaxopt.linear_solve` as a linear solver: `solve(matvec, b, x0, precond)`.

    The result serves wherever a linear solver does: `adjoint.implicit(linear=...)`,
    `newton(linear=...)`, `linear_solve(solver=...)`. It works on the vector of all leaves, so
    the direct solves accept pytrees too; they ignore start and preconditioner, which acts on the
    right.

    The status is judged by the residual `b - A x` that is really there: CONVERGED, MAX_STEPS
    (above the tolerance, for whatever reason) or NONFINITE, in which case the value is zero.
    jaxopt does not say how many steps it took: `steps` and `evaluations` are 0, for unknown.

    Args:
      solve: `jaxopt.linear_solve.solve_gmres`, `solve_bicgstab`, `solve_normal_cg`, `solve_cg`,
        `solve_lu`, `solve_qr`, `solve_cholesky` or `solve_inv`.
      rtol, atol: a solve has converged when `||b - A x|| <= max(rtol ||b||, atol)`; a `None`
        rtol stands for the 2/3 power of the rounding unit (2e-5 in float32).
      **options: passed on, under jaxopt's names: `maxiter`, `restart`, `ridge`, and `tol` where
        the solver needs another tolerance than `rtol` to get there (`solve_normal_cg` stops on
        `A^T (b - A x)`). A `ridge` changes the system and shows as a residual.

    >>> from jaxopt.linear_solve import solve_gmres
    >>> solver = linear(solve_gmres, rtol=1e-5)
    >>> x, info = solver(lambda v: 2.0 * v, jnp.ones(3))
    >>> print(jnp.round(x, 4), bool(info.converged))
    [0.5 0.5 0.5] True
    """
    if {"init", "M"} & set(options):
        raise ValueError("start and preconditioner belong to the call: solve(matvec, b, x0, M)")

    def solver(
        matvec: Operator, b: Tree, x0: Tree | None = None, precond: Operator | None = None
    ) -> tuple[Tree, Info]:
        b = require_real(b, "b")
        require_like(jax.eval_shape(matvec, b), b, "matvec(b)", "b")
        dtype, unravel = working_dtype(b), unraveler(b)

        def on_vectors(function: Operator) -> Callable[[Vector], Vector]:
            return lambda vector: ravel(function(unravel(vector)), dtype)

        a, flat_b = on_vectors(matvec), ravel(b, dtype)
        m = on_vectors(precond) if precond is not None else (lambda vector: vector)
        size = norm(flat_b)
        goal = jnp.maximum((epsilon(b) ** (2 / 3) if rtol is None else rtol) * size, atol)
        start, rhs = jnp.zeros_like(flat_b), flat_b
        if x0 is not None:
            require_like(x0, b, "x0", "b")
            start = jnp.where(size == 0, 0, ravel(require_real(x0, "x0"), dtype))
            rhs = flat_b - a(start)

        # An iterative solver is given a correction to find: `A M y = rhs`, `x = start + M y`, to
        # the residual that is wanted of `x`.
        settings = {"tol": goal / jnp.where(norm(rhs) > 0, norm(rhs), 1), **options}
        if solve in _DIRECT:
            x = solve(a, flat_b, **options)
        elif solve is solve_cg and precond is not None:
            # A M would not be symmetric; conjugate gradients have their own way with M.
            x = start + solve(a, rhs, M=m, **settings)
        else:
            x = start + m(solve(lambda v: a(m(v)), rhs, **settings))

        finite = jnp.isfinite(norm(flat_b - a(x)))
        x = jnp.where(finite, x, 0)
        residual = norm(flat_b - a(x))
        status = verdict(finite=finite, met=residual <= goal)
        unknown = jnp.zeros_like(status)
        return unravel(x), Info(unknown, relative(residual, size), status, unknown)

    return solver


def _count(inner: Any) -> jax.Array:
    """Evaluations that a jaxopt state says it has used; one an update where it does not say."""
    used = getattr(inner, "num_fun_eval", None)
    if used is None:
        used = getattr(inner, "iter_num", 0)
    return jnp.asarray(used, jnp.int32)


def _strong(leaf: Any) -> jax.Array:
    """`leaf` with a type that does not give way to that of its partner, so that it is a carry."""
    return lax.convert_element_type(leaf, jnp.result_type(leaf))


def _like(new: Any, old: jax.Array) -> jax.Array:
    return lax.convert_element_type(new, old.dtype)
