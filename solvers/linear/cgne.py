"""Conjugate gradients on the normal equations, in the residual-carrying form (CGLS)."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from solvers.iterate import Goal, Method, Progress
from solvers.linear.base import LinearProblem, LinearSolver, ratio, reliable
from solvers.vectors import Vector, norm


class State(NamedTuple):
    value: Vector
    residual: Vector
    direction: Vector
    gamma: jax.Array  # ||A^T residual||^2
    drift: jax.Array  # largest ||residual|| or ||A|| ||value|| since the last restart
    gain: jax.Array  # largest ||A p|| / ||p|| seen: a lower bound of ||A||
    restart: jax.Array  # bool: the next step recomputes the residual


def _from_residual(
    problem: LinearProblem, value: Vector, residual: Vector, gain: jax.Array
) -> State:
    gradient = problem.transpose(residual)
    return State(
        value, residual, gradient, jnp.vdot(gradient, gradient), norm(residual), gain,
        jnp.bool_(False),
    )  # fmt: skip


def init(problem: LinearProblem, start: Vector) -> tuple[State, Progress]:
    state = _from_residual(problem, start, problem.rhs, jnp.zeros((), start.dtype))
    return state, Progress(start, norm(problem.rhs), problem.scale, 1)


def step(problem: LinearProblem, state: State, goal: Goal) -> tuple[State, Progress]:
    product = problem.operator(jnp.where(state.restart, state.value, state.direction))
    size = norm(product)
    alpha = jnp.where(state.restart, 0, ratio(state.gamma, size**2))
    value = state.value + alpha * state.direction
    residual = jnp.where(state.restart, problem.rhs - product, state.residual - alpha * product)
    gradient = problem.transpose(residual)
    gamma = jnp.vdot(gradient, gradient)
    beta = jnp.where(state.restart, 0, ratio(gamma, state.gamma))
    residual_norm = norm(residual)
    gain = jnp.where(
        state.restart, state.gain, jnp.maximum(state.gain, ratio(size, norm(state.direction)))
    )
    drift = jnp.maximum(state.drift, jnp.maximum(residual_norm, gain * norm(value)))
    drift = jnp.where(state.restart, residual_norm, drift)
    met = residual_norm <= goal.residual
    verified = state.restart | reliable(drift, goal.residual)
    # A^T r is noise beside ||A|| ||r||: a least-squares solution whose residual is not zero.
    eps = jnp.finfo(value.dtype).eps
    stationary = jnp.sqrt(gamma) <= 10 * eps * gain * residual_norm
    state = State(
        value, residual, gradient + beta * state.direction, gamma, drift, gain, met & ~verified
    )
    return state, Progress(
        value, residual_norm, problem.scale, evaluations=2, trusted=verified,
        broken=stationary & ~met,
    )  # fmt: skip


def cgne(
    rtol: float | None = None,
    atol: float = 0.0,
    max_steps: int = 500,
    *,
    side: str = "right",
    truncated: bool = False,
) -> LinearSolver:
    """Conjugate gradients on `A^T A x = A^T b`: one product with `A` and one with `A^T` a step.

    The residual never rises and there is no breakdown, but the condition number is squared.
    For a singular system it ends at a least-squares solution and says so by BREAKDOWN.
    CG-RBP (section 4.1 of the 2018 paper) is this with `A = I - J^T`.
    """
    return LinearSolver(
        Method(init, step, "cgne"), rtol, atol, max_steps, side, truncated=truncated
    )
