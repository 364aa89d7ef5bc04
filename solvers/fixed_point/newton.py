"""Inexact Newton-Krylov with Eisenstat-Walker forcing and a backtracking line search."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from solvers import iterate
from solvers.fixed_point.base import FixedPointProblem, Precondition, evaluate
from solvers.iterate import Goal, Method, Progress
from solvers.linear.base import LinearSolver, ratio
from solvers.linear.bicgstab import bicgstab
from solvers.linear.solve import linear_solve
from solvers.vectors import Vector, norm

_HALVINGS = 10
_SUFFICIENT = 1e-4  # share of the predicted decrease that a step must deliver
_LOOSEST, _GAMMA = 0.5, 0.9
_FAILURES = 3


class State(NamedTuple):
    x: Vector
    size: jax.Array  # ||f(x) - x||
    scale: jax.Array
    forcing: jax.Array  # relative tolerance of the next linear solve
    failures: jax.Array  # int32, line searches in a row that found nothing


def newton(
    linear: LinearSolver | Callable | None = None,
    forcing: float | str = "eisenstat_walker",
    line_search: bool = True,
    *,
    precond: Precondition | None = None,
) -> Method:
    """`x <- x + length d` with `(I - J) d = f(x) - x` solved inexactly by a Krylov method.

    Args:
      linear: any linear solver; default `bicgstab(max_steps=50)`. `linear.neumann(n)` gives the
        polynomial `P_n(J)` of the 2017 paper as approximate inverse.
      forcing: relative tolerance of the linear solves: a number, or `"eisenstat_walker"`, which
        asks for `0.9 (||g_k|| / ||g_{k-1}||)^2`, so that early solves are loose and the end
        converges superlinearly, never tighter than the tolerance of the whole solve needs.
      line_search: halve the step until `||f(x) - x||` falls; a point where it is not finite is
        never accepted. When no length helps, the next step follows the gradient of
        `||f(x) - x||^2` instead; three such failures in a row end as BREAKDOWN.
      precond: `(theta, x) -> (v -> M v)` with `M` close to `(I - J)^-1`;
        `solvers.precondition(bands)` makes one from bands.
    """
    linear = bicgstab(max_steps=50) if linear is None else linear
    adaptive = forcing == "eisenstat_walker"
    if not adaptive and not (isinstance(forcing, float) and 0 <= forcing < 1):
        raise ValueError(
            f'forcing must be "eisenstat_walker" or a number in [0, 1), got {forcing!r}'
        )

    def init(problem: FixedPointProblem, x: Vector) -> tuple[State, Progress]:
        point = evaluate(problem, x)
        first = jnp.asarray(_LOOSEST if adaptive else forcing, x.dtype)
        return State(x, point.size, point.scale, first, jnp.int32(0)), point.progress()

    def direction(
        problem: FixedPointProblem, state: State, goal: Goal
    ) -> tuple[Vector, jax.Array]:
        image, jvp = jax.linearize(problem.f, state.x)

        def matvec(v: Vector) -> Vector:
            return v - jvp(v)

        def newton_direction(step: Vector) -> tuple[Vector, jax.Array]:
            enough = 0.5 * ratio(goal.residual, state.size)
            tolerance = jnp.clip(jnp.maximum(state.forcing, enough), 0.0, _LOOSEST)
            solver = linear
            if isinstance(linear, LinearSolver) and not linear.truncated:
                solver = partial(linear, rtol=tolerance)
            inverse = precond and problem.precondition(precond, lax.stop_gradient(state.x))
            d, info = linear_solve(matvec, step, solver=solver, precond=inverse)
            return d, jnp.int32(1) if info.evaluations is None else info.evaluations

        def gradient_direction(step: Vector) -> tuple[Vector, jax.Array]:
            d = jax.linear_transpose(matvec, step)(step)[0]
            length = ratio(norm(d) ** 2, norm(matvec(d)) ** 2)
            return length * d, jnp.int32(2)

        return lax.cond(state.failures > 0, gradient_direction, newton_direction, image - state.x)

    def step(problem: FixedPointProblem, state: State, goal: Goal) -> tuple[State, Progress]:
        d, cost = direction(problem, state, goal)
        fixed_x, fixed_d = lax.stop_gradient((state.x, d))

        def trial(length: jax.Array) -> tuple[jax.Array, tuple]:
            point = evaluate(problem, fixed_x + length * fixed_d)
            decrease = 1 - _SUFFICIENT * length * (1 - state.forcing)
            accepted = (point.size <= decrease * state.size) | (point.size <= goal.residual)
            return jnp.isfinite(point.size) & accepted, (length, point.size, point.scale)

        one = jnp.ones((), state.x.dtype)
        if line_search:
            accepted, (length, size, scale), trials = iterate.backtrack(trial, one, _HALVINGS)
            length = jnp.where(accepted, length, 0)
            size = jnp.where(accepted, size, state.size)
            scale = jnp.where(accepted, scale, state.scale)
        else:
            (length, size, scale), trials = trial(one)[1], jnp.int32(1)
            accepted = jnp.bool_(True)
        failures = jnp.where(accepted, 0, state.failures + 1)
        new = State(state.x + length * d, size, scale, state.forcing, failures)
        if adaptive:
            new = new._replace(forcing=_next_forcing(state, size))
        progress = Progress(new.x, size, scale, evaluations=cost + trials + 1)
        return new, progress._replace(broken=failures >= _FAILURES)

    return Method(init, step, "newton")


def _next_forcing(state: State, size: jax.Array) -> jax.Array:
    """Eisenstat and Walker's second choice with its safeguard against tightening too fast."""
    forcing = _GAMMA * ratio(size, state.size) ** 2
    memory = _GAMMA * state.forcing**2
    forcing = jnp.where(memory > 0.1, jnp.maximum(forcing, memory), forcing)
    return jnp.minimum(forcing, _LOOSEST).astype(state.forcing.dtype)
