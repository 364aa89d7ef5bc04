"""BiCGSTAB (van der Vorst, 1992) with restarts on breakdown and a verified residual."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from solvers.iterate import Goal, Method, Progress
from solvers.linear.base import LinearProblem, LinearSolver, negligible, ratio, reliable
from solvers.vectors import Vector, norm

_RESTARTS_IN_VAIN = 3


class State(NamedTuple):
    value: Vector
    residual: Vector
    shadow: Vector
    direction: Vector
    size: jax.Array  # ||residual||
    shadow_norm: jax.Array
    rho: jax.Array  # <shadow, residual>
    drift: jax.Array  # largest ||residual|| or ||A|| ||value|| since the last restart
    restart: jax.Array  # bool: the next step recomputes the residual and starts afresh
    restart_norm: jax.Array  # residual norm at the last restart
    in_vain: jax.Array  # restarts in a row that gained nothing


def init(problem: LinearProblem, start: Vector) -> tuple[State, Progress]:
    rhs, size = problem.rhs, norm(problem.rhs)
    state = State(
        start, rhs, rhs, rhs, size, size, size**2, size, jnp.bool_(False), jnp.inf * size,
        jnp.int32(0),
    )  # fmt: skip
    return state, Progress(start, size, problem.scale, 0)


def step(problem: LinearProblem, state: State, goal: Goal) -> tuple[State, Progress]:
    # A restart is a step of length zero that recomputes the residual: it needs A x where an
    # ordinary step needs A p, so one product serves either, and under vmap an example that
    # restarts costs the others nothing.
    restart = state.restart
    v = problem.operator(jnp.where(restart, state.value, state.direction))
    along, v_square = jnp.vdot(state.shadow, v), jnp.vdot(v, v)
    breakdown = negligible(along, state.shadow_norm, jnp.sqrt(v_square))
    alpha = jnp.where(breakdown | restart, 0, ratio(state.rho, along))
    half = state.residual - alpha * v
    t = problem.operator(half)
    t_half, t_square = jnp.vdot(t, half), jnp.vdot(t, t)
    omega = jnp.where(restart, 0, ratio(t_half, t_square))
    value = state.value + alpha * state.direction + omega * half
    residual = jnp.where(restart, problem.rhs - v, half - omega * t)
    square = jnp.vdot(residual, residual)
    size = jnp.sqrt(square)

    gained = size < 0.9 * state.restart_norm
    in_vain = jnp.where(restart, jnp.where(gained, 0, state.in_vain + 1), state.in_vain)
    # A restart that gained nothing would break down at the same place: tilt the shadow.
    tilt = 1 + 0.5 * jnp.cos(jnp.arange(residual.size, dtype=residual.dtype))
    afresh = jnp.where(in_vain > 0, tilt, 1) * residual
    shadow = jnp.where(restart, afresh, state.shadow)
    shadow_norm = jnp.where(restart, size, state.shadow_norm)
    rho = jnp.vdot(shadow, residual)

    # `residual` is `half` without its part along `t`, which gives the norm of `half`.
    half_norm = jnp.sqrt(square + omega * t_half)
    breakdown |= negligible(t_half, jnp.sqrt(t_square), half_norm)
    breakdown |= negligible(rho, shadow_norm, size)
    beta = jnp.where(restart, 0, ratio(rho, state.rho) * ratio(alpha, omega))
    breakdown |= ~jnp.isfinite(beta)
    direction = residual + beta * (state.direction - omega * v)
    gain = ratio(jnp.sqrt(t_square), half_norm)
    drift = jnp.maximum(state.drift, jnp.maximum(size, gain * norm(value)))
    drift = jnp.where(restart, size, drift)
    doubtful = ~reliable(drift, goal.residual)
    again = jnp.where(size <= goal.residual, doubtful, breakdown) & ~restart
    new = State(
        value, residual, shadow, direction, size, shadow_norm, rho, drift, again,
        jnp.where(restart, size, state.restart_norm), in_vain,
    )  # fmt: skip
    return new, Progress(
        value,
        size,
        problem.scale,
        evaluations=2,
        trusted=~again,
        broken=in_vain >= _RESTARTS_IN_VAIN,
    )


def bicgstab(
    rtol: float | None = None, atol: float = 0.0, max_steps: int = 200, *, side: str = "right"
) -> LinearSolver:
    """BiCGSTAB: two products a step, short recurrences, no growth of memory.

    Breakdown is judged by scalar products relative to the norms of their factors. It leads to a
    restart from the true residual; three restarts in a row that gain nothing end as BREAKDOWN.
    """
    return LinearSolver(Method(init, step, "bicgstab"), rtol, atol, max_steps, side)
