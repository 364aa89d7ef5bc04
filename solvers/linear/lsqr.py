"""LSQR (Paige and Saunders, 1982): least squares by Golub-Kahan bidiagonalisation."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from solvers.iterate import Goal, Method, Progress
from solvers.linear.base import LinearProblem, LinearSolver, ratio, reliable
from solvers.vectors import Vector, norm


class State(NamedTuple):
    value: Vector
    left: Vector  # u, unit
    right: Vector  # v, unit
    direction: Vector  # w
    alpha: jax.Array
    rho_bar: jax.Array
    phi_bar: jax.Array  # norm of the residual of the (damped) problem
    gain: jax.Array  # largest alpha, beta seen: a lower bound of ||A||
    first: jax.Array  # ||A^T b||
    drift: jax.Array  # largest ||residual|| or ||A|| ||value|| since the last restart
    restart: jax.Array  # bool: the next step recomputes the residual


def lsqr(
    rtol: float | None = None,
    atol: float = 0.0,
    max_steps: int = 500,
    damp: float = 0.0,
    *,
    side: str = "right",
) -> LinearSolver:
    """Minimises `||A x - b||^2 + damp^2 ||x||^2`, with products by `A` and `A^T`.

    With `damp = 0` the stop rule is the usual one on `||b - A x||`; with `damp > 0` it is on the
    gradient, `||A^T (b - A x) - damp^2 x|| <= rtol ||A^T b||`, because the residual does not
    vanish at the solution. A damped solve wants no preconditioner: it would change the problem.
    """
    if damp < 0:
        raise ValueError(f"damp must not be negative, got {damp}")

    def bidiagonalise(problem: LinearProblem, value: Vector, residual: Vector) -> State:
        beta = norm(residual)
        left = ratio(residual, beta)
        right = problem.transpose(left)
        alpha = norm(right)
        right = ratio(right, alpha)
        return State(
            value, left, right, right, alpha, alpha, beta, alpha, alpha * beta, beta,
            jnp.bool_(False),
        )  # fmt: skip

    def progress(problem: LinearProblem, state: State, **report: jax.Array) -> Progress:
        if damp == 0:
            return Progress(state.value, state.phi_bar, problem.scale, 2, **report)
        gradient = jnp.abs(state.phi_bar * state.rho_bar)
        return Progress(state.value, gradient, state.first, 2)

    def init(problem: LinearProblem, start: Vector) -> tuple[State, Progress]:
        state = bidiagonalise(problem, start, problem.rhs)
        return state, progress(problem, state)._replace(evaluations=1)

    def step(problem: LinearProblem, state: State, goal: Goal) -> tuple[State, Progress]:
        product = problem.operator(jnp.where(state.restart, state.value, state.right))
        u = jnp.where(state.restart, problem.rhs - product, product - state.alpha * state.left)
        beta = norm(u)
        left = ratio(u, beta)
        v = problem.transpose(left) - jnp.where(state.restart, 0, beta) * state.right
        alpha = norm(v)
        right = ratio(v, alpha)

        # Two rotations: the first takes out the damping, the second the subdiagonal.
        rho_damped = jnp.hypot(state.rho_bar, damp) if damp else state.rho_bar
        phi = ratio(state.rho_bar, rho_damped) * state.phi_bar if damp else state.phi_bar
        rho = jnp.hypot(rho_damped, beta)
        cosine, sine = ratio(rho_damped, rho), ratio(beta, rho)
        gain = jnp.maximum(state.gain, jnp.maximum(alpha, beta))
        value = state.value + ratio(cosine * phi, rho) * state.direction
        stepped = State(
            value,
            left,
            right,
            right - ratio(sine * alpha, rho) * state.direction,
            alpha,
            -cosine * alpha,
            sine * phi,
            gain,
            state.first,
            jnp.maximum(state.drift, gain * norm(value)),
            jnp.bool_(False),
        )
        restarted = State(
            state.value, left, right, right, alpha, alpha, beta, gain, state.first, beta,
            jnp.bool_(False),
        )  # fmt: skip
        new = jax.tree.map(lambda a, b: jnp.where(state.restart, a, b), restarted, stepped)
        met = new.phi_bar <= goal.residual
        verified = state.restart | reliable(new.drift, goal.residual)
        eps = jnp.finfo(v.dtype).eps
        stationary = jnp.abs(new.rho_bar) <= 10 * eps * gain
        new = new._replace(restart=met & ~verified & (damp == 0))
        return new, progress(problem, new, trusted=verified, broken=stationary & ~met)

    return LinearSolver(Method(init, step, "lsqr"), rtol, atol, max_steps, side)
