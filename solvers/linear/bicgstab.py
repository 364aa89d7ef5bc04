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
    rho: jax.Array  # <shadow, residual>
    drift: jax.Array  # largest ||residual|| or ||A|| ||value|| since the last restart
    restart: jax.Array  # bool: the next step recomputes the residual and starts afresh
    restart_norm: jax.Array  # residual norm at the last restart
    in_vain: jax.Array  # restarts in a row that gained nothing


def init(problem: LinearProblem, start: Vector) -> tuple[State, Progress]:
    rhs, size = problem.rhs, norm(problem.rhs)
    state = State(
        start, rhs, rhs, rhs, size**2, size, jnp.bool_(False), jnp.inf * jnp.ones_like(size),
        jnp.int32(0),
    )  # fmt: skip
    return state, Progress(start, size, problem.scale, 0)


def step(problem: LinearProblem, state: State, goal: Goal) -> tuple[State, Progress]:
    # A restart needs A x where an ordinary step needs A p: one product serves either, so that
    # under vmap a restarting example costs the others nothing.
    product = problem.operator(jnp.where(state.restart, state.value, state.direction))
    restarted = _restart(problem, state, product)
    stepped = _step(problem, state, product, goal)
    state = jax.tree.map(lambda a, b: jnp.where(state.restart, a, b), restarted, stepped)
    size = norm(state.residual)
    return state, Progress(
        state.value,
        size,
        problem.scale,
        evaluations=2,
        trusted=~state.restart,
        broken=state.in_vain >= _RESTARTS_IN_VAIN,
    )


def _restart(problem: LinearProblem, state: State, product: Vector) -> State:
    residual = problem.rhs - product
    size = norm(residual)
    gained = size < 0.9 * state.restart_norm
    in_vain = jnp.where(gained, 0, state.in_vain + 1)
    # A restart that gained nothing would break down at the same place: tilt the shadow.
    tilt = 1 + 0.5 * jnp.cos(jnp.arange(residual.size, dtype=residual.dtype))
    shadow = jnp.where(in_vain > 0, tilt * residual, residual)
    return State(
        state.value, residual, shadow, residual, jnp.vdot(shadow, residual), size,
        jnp.bool_(False), size, in_vain,
    )  # fmt: skip


def _step(problem: LinearProblem, state: State, v: Vector, goal: Goal) -> State:
    shadow_norm = norm(state.shadow)
    along = jnp.vdot(state.shadow, v)
    breakdown = negligible(along, shadow_norm, norm(v))
    alpha = jnp.where(breakdown, 0, ratio(state.rho, along))
    half = state.residual - alpha * v
    t = problem.operator(half)
    half_norm, t_norm, product = norm(half), norm(t), jnp.vdot(t, half)
    omega = ratio(product, t_norm**2)
    breakdown |= negligible(product, t_norm, half_norm)
    value = state.value + alpha * state.direction + omega * half
    residual = half - omega * t
    size = norm(residual)
    rho = jnp.vdot(state.shadow, residual)
    breakdown |= negligible(rho, shadow_norm, size)
    beta = ratio(rho, state.rho) * ratio(alpha, omega)
    direction = residual + beta * (state.direction - omega * v)
    gain = ratio(norm(v), norm(state.direction))
    drift = jnp.maximum(state.drift, jnp.maximum(size, gain * norm(value)))
    met = size <= goal.residual
    restart = jnp.where(met, ~reliable(drift, goal.residual), breakdown | ~jnp.isfinite(beta))
    return State(
        value, residual, state.shadow, direction, rho, drift, restart, state.restart_norm,
        state.in_vain,
    )  # fmt: skip


def bicgstab(
    rtol: float | None = None, atol: float = 0.0, max_steps: int = 200, *, side: str = "right"
) -> LinearSolver:
    """BiCGSTAB: two products a step, short recurrences, no growth of memory.

    Breakdown is judged by scalar products relative to the norms of their factors. It leads to a
    restart from the true residual; three restarts in a row that gain nothing end as BREAKDOWN.
    """
    return LinearSolver(Method(init, step, "bicgstab"), rtol, atol, max_steps, side)
