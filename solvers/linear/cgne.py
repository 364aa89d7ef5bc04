"""Conjugate gradients on the normal equations, in the residual-carrying form (CGLS)."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from solvers.iterate import Goal, Method, Progress
from solvers.linear.base import LinearProblem, LinearSolver, reliable
from solvers.space import Vector, ratio, subtract


class State(NamedTuple):
    value: Vector
    residual: Vector
    direction: Vector
    gamma: jax.Array  # ||A^T residual||^2
    drift: jax.Array  # largest ||residual|| or ||A|| ||value|| since the last restart
    gain: jax.Array  # largest ||A p|| / ||p|| seen: a lower bound of ||A||
    restart: jax.Array  # bool: the next step recomputes the residual


@dataclasses.dataclass(frozen=True, eq=False)
class Cgne(Method):
    def init(self, problem: LinearProblem, start: Vector) -> tuple[State, Progress]:
        space, residual = problem.space, problem.rhs
        gradient, size = problem.transpose(residual), space.norm(residual)
        never = jnp.zeros_like(size, dtype=bool)
        gamma = space.dot(gradient, gradient)
        state = State(start, residual, gradient, gamma, size, jnp.zeros_like(size), never)
        return state, Progress(start, size, problem.scale, 1)

    def step(self, problem: LinearProblem, state: State, goal: Goal) -> tuple[State, Progress]:
        space, restart = problem.space, state.restart
        product = problem.operator(space.where(restart, state.value, state.direction))
        square = space.dot(product, product)
        alpha = jnp.where(restart, 0, ratio(state.gamma, square))
        value = space.plus(state.value, alpha, state.direction)
        residual = space.where(
            restart, subtract(problem.rhs, product), space.plus(state.residual, -alpha, product)
        )
        gradient = problem.transpose(residual)
        gamma = space.dot(gradient, gradient)
        beta = jnp.where(restart, 0, ratio(gamma, state.gamma))
        size = space.norm(residual)
        gain = ratio(jnp.sqrt(square), space.norm(state.direction))
        gain = jnp.where(restart, state.gain, jnp.maximum(state.gain, gain))
        drift = jnp.maximum(state.drift, jnp.maximum(size, gain * space.norm(value)))
        drift = jnp.where(restart, size, drift)
        met = size <= goal.residual
        verified = restart | reliable(drift, goal.residual)
        # A^T r is noise beside ||A|| ||r||: a least-squares solution whose residual is not zero.
        eps = jnp.finfo(size.dtype).eps
        stationary = jnp.sqrt(gamma) <= 10 * eps * gain * size
        direction = space.plus(gradient, beta, state.direction)
        state = State(value, residual, direction, gamma, drift, gain, met & ~verified)
        return state, Progress(
            value, size, problem.scale, evaluations=2, trusted=verified, broken=stationary & ~met
        )


def cgne(
    rtol: float | None = None,
    atol: float = 0.0,
    max_steps: int = 500,
    *,
    truncated: bool = False,
) -> LinearSolver:
    """Conjugate gradients on `A^T A x = A^T b`: one product with `A` and one with `A^T` a step.

    The residual never rises and there is no breakdown, but the condition number is squared.
    For a singular system it ends at a least-squares solution and says so by BREAKDOWN.
    CG-RBP (section 4.1 of the 2018 paper) is this with `A = I - J^T`.
    """
    return LinearSolver(Cgne(), rtol, atol, max_steps, truncated)
