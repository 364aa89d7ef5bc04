"""Inexact Newton-Krylov: Eisenstat-Walker forcing, line search, pseudo-transient continuation."""

from __future__ import annotations

import numbers
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
from solvers.linear.solve import linear_solve, resolve
from solvers.vectors import Vector

_HALVINGS = 3  # a Newton direction that needs shorter steps leads into a local minimum
_SUFFICIENT = 1e-4  # share of the predicted decrease that a step must deliver
_GROWTH = 4.0  # of the residual that continuation tolerates in one step
_LOOSEST, _GAMMA = 0.5, 0.9
_FAILURES = 3


class State(NamedTuple):
    x: Vector
    size: jax.Array  # ||f(x) - x||
    scale: jax.Array
    forcing: jax.Array  # relative tolerance of the next linear solve
    anchor: jax.Array  # residual at which continuation began; 0 while Newton serves
    failures: jax.Array  # int32, searches in a row that found no acceptable point


def newton(
    linear: LinearSolver | Callable | str | None = None,
    forcing: float | str = "eisenstat_walker",
    line_search: bool = True,
    *,
    precond: Precondition | None = None,
) -> Method:
    """`x <- x + length d` with `(I - J) d = f(x) - x` solved inexactly by a Krylov method.

    Args:
      linear: any linear solver, or its name; default `bicgstab(max_steps=50)`. `linear.neumann(n)`
        gives the polynomial `P_n(J)` of the 2017 paper as approximate inverse.
      forcing: relative tolerance of the linear solves: a number, or `"eisenstat_walker"`, which
        asks for `0.9 (||g_k|| / ||g_{k-1}||)^2`, so that early solves are loose and the end
        converges superlinearly, never tighter than the tolerance of the whole solve needs.
      line_search: safeguard the step. It is halved until `||f(x) - x||` falls; a point where that
        is not finite is never accepted. When three halvings do not help, the norm has a local
        minimum nearby, and the method changes to pseudo-transient continuation: implicit Euler
        steps of `dx/dt = f(x) - x`,

            ((1 + shift) I - J) d = f(x) - x,    shift = ||f(x) - x|| / ||that at the change||,

        which may climb out of it and become Newton steps again as the residual falls.
      precond: `(theta, x) -> (v -> M v)` with `M` close to `(I - J)^-1`;
        `solvers.precondition(bands)` makes one from bands.
    """
    linear = bicgstab(max_steps=50) if linear is None else resolve(linear)
    adaptive = forcing == "eisenstat_walker"
    if not adaptive and not (isinstance(forcing, numbers.Real) and 0 <= forcing < 1):
        raise ValueError(
            f'forcing must be "eisenstat_walker" or a number in [0, 1), got {forcing!r}'
        )

    def init(problem: FixedPointProblem, x: Vector) -> tuple[State, Progress]:
        point = evaluate(problem, x)
        first = jnp.asarray(_LOOSEST if adaptive else forcing, x.dtype)
        zero = jnp.zeros_like(point.size)
        return State(x, point.size, point.scale, first, zero, jnp.int32(0)), point.progress()

    def direction(problem: FixedPointProblem, state: State, goal: Goal) -> tuple[Vector, jax.Array]:
        image, jvp = jax.linearize(problem.f, state.x)
        shift = ratio(state.size, state.anchor)
        enough = 0.5 * ratio(goal.residual, state.size)
        tolerance = jnp.clip(jnp.maximum(state.forcing, enough), 0.0, _LOOSEST)
        solver = linear
        if isinstance(linear, LinearSolver) and not linear.truncated:
            solver = partial(linear, rtol=tolerance)
        d, info = linear_solve(
            lambda v: (1 + shift) * v - jvp(v),
            image - state.x,
            solver=solver,
            precond=precond and problem.precondition(precond, lax.stop_gradient(state.x)),
        )
        return d, jnp.asarray(info.evaluations, jnp.int32)

    def step(problem: FixedPointProblem, state: State, goal: Goal) -> tuple[State, Progress]:
        d, cost = direction(problem, state, goal)
        fixed_x, fixed_d = lax.stop_gradient((state.x, d))
        continuing = state.anchor > 0

        def trial(length: jax.Array) -> tuple[jax.Array, tuple]:
            point = evaluate(problem, fixed_x + length * fixed_d)
            decrease = 1 - _SUFFICIENT * length * (1 - state.forcing)
            limit = jnp.where(continuing, _GROWTH, decrease) * state.size
            accepted = jnp.isfinite(point.size) & (point.size <= jnp.maximum(limit, goal.residual))
            return accepted, (length, point.size, point.scale)

        one = jnp.ones((), state.x.dtype)
        if not line_search:
            length, size, scale = trial(one)[1]
            new = state._replace(x=state.x + d, size=size, scale=scale)
            trials = jnp.int32(1)
        else:
            accepted, (length, size, scale), trials = iterate.backtrack(trial, one, _HALVINGS)
            new = State(
                state.x + jnp.where(accepted, length, 0) * d,
                jnp.where(accepted, size, state.size),
                jnp.where(accepted, scale, state.scale),
                state.forcing,
                # A search that fails (re)starts the continuation at the full shift.
                jnp.where(accepted, state.anchor, state.size),
                jnp.where(accepted, 0, state.failures + 1),
            )
        if adaptive:
            new = new._replace(forcing=_next_forcing(state, new.size))
        progress = Progress(new.x, new.size, new.scale, evaluations=cost + trials + 1)
        return new, progress._replace(broken=new.failures >= _FAILURES)

    return Method(init, step, "newton")


def _next_forcing(state: State, size: jax.Array) -> jax.Array:
    """Eisenstat and Walker's second choice with its safeguard against tightening too fast."""
    forcing = _GAMMA * ratio(size, state.size) ** 2
    memory = _GAMMA * state.forcing**2
    forcing = jnp.where(memory > 0.1, jnp.maximum(forcing, memory), forcing)
    return jnp.minimum(forcing, _LOOSEST).astype(state.forcing.dtype)
