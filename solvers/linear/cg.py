"""Conjugate gradients for symmetric positive definite systems."""

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
    square: jax.Array  # ||residual||^2
    drift: jax.Array  # largest ||residual|| or ||A|| ||value|| since the last restart
    restart: jax.Array  # bool: the next step recomputes the residual


@dataclasses.dataclass(frozen=True, eq=False)
class Cg(Method):
    def init(self, problem: LinearProblem, start: Vector) -> tuple[State, Progress]:
        space, rhs = problem.space, problem.rhs
        size = space.norm(rhs)
        never = jnp.zeros_like(size, dtype=bool)
        state = State(start, rhs, rhs, space.dot(rhs, rhs), size, never)
        return state, Progress(start, size, problem.scale, 0)

    def step(self, problem: LinearProblem, state: State, goal: Goal) -> tuple[State, Progress]:
        space, restart = problem.space, state.restart
        product = problem.operator(space.where(restart, state.value, state.direction))
        curvature = space.dot(state.direction, product)
        alpha = jnp.where(restart, 0, ratio(state.square, curvature))
        value = space.plus(state.value, alpha, state.direction)
        residual = space.where(
            restart, subtract(problem.rhs, product), space.plus(state.residual, -alpha, product)
        )
        square = space.dot(residual, residual)
        size = jnp.sqrt(square)
        beta = jnp.where(restart, 0, ratio(square, state.square))
        gain = ratio(space.norm(product), space.norm(state.direction))
        drift = jnp.maximum(state.drift, jnp.maximum(size, gain * space.norm(value)))
        drift = jnp.where(restart, size, drift)
        met = size <= goal.residual
        verified = restart | reliable(drift, goal.residual)
        direction = space.plus(residual, beta, state.direction)
        new = State(value, residual, direction, square, drift, met & ~verified)
        # A direction along which the form does not curve upwards: not positive definite.
        broken = (curvature <= 0) & ~restart & (state.square > 0)
        return new, Progress(value, size, problem.scale, trusted=verified, broken=broken)


def cg(rtol: float | None = None, atol: float = 0.0, max_steps: int = 500) -> LinearSolver:
    """Conjugate gradients: one product a step, for symmetric positive definite `A` alone.

    A direction of negative curvature ends the solve as BREAKDOWN: the matrix is indefinite. A
    preconditioner turns the system into one that is not symmetric: use it with `bicgstab`.
    """
    return LinearSolver(Cg(), rtol, atol, max_steps)
