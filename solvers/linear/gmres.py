"""Restarted GMRES (Saad and Schultz, 1986), one Arnoldi step at a time."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from solvers.iterate import Goal, Method, Progress
from solvers.linear.base import LinearProblem, LinearSolver, ratio
from solvers.vectors import Vector, norm

_CYCLES_IN_VAIN = 3


class State(NamedTuple):
    value: Vector
    residual: jax.Array  # norm of the true residual at `value`, that is, at the last restart
    estimate: jax.Array  # norm of the residual that the current basis attains
    basis: jax.Array  # [restart + 1, n], orthonormal rows, zero where not yet filled
    rotation: jax.Array  # Q with Q H = [R; 0]: all Givens rotations so far, multiplied out
    triangle: jax.Array  # R, identity where not yet filled
    column: jax.Array  # int32, how many columns are filled
    exhausted: jax.Array  # bool: the Krylov space cannot grow
    in_vain: jax.Array


def gmres(
    rtol: float | None = None,
    atol: float = 0.0,
    max_steps: int = 200,
    restart: int = 20,
    *,
    side: str = "right",
) -> LinearSolver:
    """GMRES(restart): the smallest residual over the Krylov space, one product a step.

    The basis is made orthogonal by classical Gram-Schmidt applied twice, which keeps it so to
    rounding level and is two matrix products instead of a chain of vector ones. A restart, and
    so every claim of convergence, recomputes the true residual and counts as a step. Needs
    memory for `restart + 1` vectors.
    """
    if restart < 1:
        raise ValueError(f"restart must be at least 1, got {restart}")

    def cycle(value: Vector, residual: Vector, in_vain: jax.Array) -> State:
        size = norm(residual)
        basis = jnp.zeros((restart + 1, residual.size), residual.dtype)
        return State(
            value,
            size,
            size,
            basis.at[0].set(ratio(residual, size)),
            jnp.eye(restart + 1, dtype=residual.dtype),
            jnp.eye(restart, dtype=residual.dtype),
            jnp.int32(0),
            jnp.bool_(False),
            in_vain,
        )

    def improve(state: State) -> Vector:
        """`value + V y` with `R y = Q (residual e_1)` over the filled columns."""
        target = jnp.where(
            jnp.arange(restart) < state.column, state.residual * state.rotation[:restart, 0], 0
        )
        weights = lax.linalg.triangular_solve(
            state.triangle, target[:, None], left_side=True, lower=False
        )[:, 0]
        return state.value + weights @ state.basis[:restart]

    def expand(state: State, product: Vector) -> State:
        before = norm(product)
        first = state.basis @ product
        product = product - first @ state.basis
        second = state.basis @ product
        product = product - second @ state.basis
        after = norm(product)
        noise = 10 * jnp.finfo(product.dtype).eps * before
        exhausted = after <= noise
        after = jnp.where(exhausted, 0, after)

        j = state.column
        rows = jnp.arange(restart + 1)
        rotated = state.rotation @ (first + second)
        pivot = rotated[j]
        size = jnp.hypot(pivot, after)
        useless = size <= noise  # singular along this direction: leave the column out
        cosine, sine = ratio(pivot, size), ratio(after, size)
        upper, lower = state.rotation[j], state.rotation[j + 1]
        rotation = state.rotation.at[j].set(cosine * upper + sine * lower)
        rotation = rotation.at[j + 1].set(cosine * lower - sine * upper)
        column = jnp.where(rows < j, rotated, 0).at[j].set(size)[:restart]
        grown = state._replace(
            estimate=state.residual * jnp.abs(rotation[j + 1, 0]),
            basis=state.basis.at[j + 1].set(ratio(product, after)),
            rotation=rotation,
            triangle=state.triangle.at[:, j].set(column),
            column=j + 1,
            exhausted=exhausted,
        )
        spent = state._replace(exhausted=jnp.bool_(True))
        return jax.tree.map(lambda a, b: jnp.where(useless, a, b), spent, grown)

    def init(problem: LinearProblem, start: Vector) -> tuple[State, Progress]:
        state = cycle(start, problem.rhs, jnp.int32(0))
        return state, Progress(start, state.residual, problem.scale, 0)

    def step(problem: LinearProblem, state: State, goal: Goal) -> tuple[State, Progress]:
        close = (
            (state.column >= restart)
            | state.exhausted
            | (state.estimate <= goal.residual)
            | goal.last
        )
        # Closing a cycle needs A x where expanding needs A v: one product serves either.
        value = lax.cond(close, improve, lambda state: state.value, state)
        product = problem.operator(jnp.where(close, value, state.basis[state.column]))

        def restarted(state: State) -> State:
            residual = problem.rhs - product
            gained = norm(residual) < 0.99 * state.residual
            in_vain = jnp.where(gained, 0, state.in_vain + state.exhausted)
            return cycle(value, residual, in_vain)

        state = lax.cond(close, restarted, lambda state: expand(state, product), state)
        return state, Progress(
            state.value,
            state.residual,
            problem.scale,
            monitor=state.estimate,
            broken=state.in_vain >= _CYCLES_IN_VAIN,
        )

    patience = max(60, 2 * restart)
    method = Method(init, step, "gmres")
    return LinearSolver(method, rtol, atol, max_steps, side, patience=patience)
