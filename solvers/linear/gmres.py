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


class Cycle(NamedTuple):
    value: Vector
    residual: jax.Array  # norm of the true residual at `value`, that is, at the last restart
    estimate: jax.Array  # norm of the residual that the current basis attains
    rotation: jax.Array  # Q with Q H = [R; 0]: all Givens rotations so far, multiplied out
    inverse: jax.Array  # R^-1, zero where not yet filled
    column: jax.Array  # int32, how many columns are filled
    exhausted: jax.Array  # bool: the Krylov space cannot grow
    in_vain: jax.Array  # cycles in a row that ended exhausted and gained nothing


class State(NamedTuple):
    cycle: Cycle
    basis: jax.Array  # [restart + 1, n]; rows up to `column` are orthonormal, the rest is stale


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

    def improve(state: State) -> Vector:
        """`value + V y` with `R y = Q (residual e_1)` over the filled columns."""
        cycle = state.cycle
        weights = cycle.inverse @ (cycle.residual * cycle.rotation[:restart, 0])
        return cycle.value + weights @ state.basis[:restart]

    def begin(value: Vector, residual: Vector, in_vain: jax.Array) -> tuple[Cycle, Vector]:
        """A new cycle from `value`, and its first basis vector."""
        dtype, size = residual.dtype, norm(residual)
        rotation = jnp.eye(restart + 1, dtype=dtype)
        inverse = jnp.zeros((restart, restart), dtype)
        cycle = Cycle(
            value, size, size, rotation, inverse, jnp.int32(0), jnp.bool_(False), in_vain
        )  # fmt: skip
        return cycle, ratio(residual, size)

    def close(state: State, value: Vector, residual: Vector) -> tuple[Cycle, Vector]:
        """Ends a cycle at `value` and begins the next."""
        old = state.cycle
        in_vain = jnp.where(norm(residual) < 0.99 * old.residual, 0, old.in_vain + old.exhausted)
        return begin(value, residual, in_vain.astype(jnp.int32))

    def expand(state: State, product: Vector) -> tuple[Cycle, Vector]:
        """One more column of the Hessenberg matrix, and the next basis vector."""
        cycle, basis = state
        j, rows = cycle.column, jnp.arange(restart + 1)
        before = norm(product)
        overlap = jnp.zeros(restart + 1, product.dtype)
        for _ in range(2):
            part = jnp.where(rows <= j, basis @ product, 0)
            product = product - part @ basis
            overlap = overlap + part
        after = norm(product)
        noise = 10 * jnp.finfo(product.dtype).eps * before
        exhausted = after <= noise
        after = jnp.where(exhausted, 0, after)

        rotated = cycle.rotation @ overlap
        pivot = rotated[j]
        size = jnp.hypot(pivot, after)
        useless = size <= noise  # singular along this direction: leave the column out
        cosine, sine = ratio(pivot, size), ratio(after, size)
        upper, lower = cycle.rotation[j], cycle.rotation[j + 1]
        rotation = cycle.rotation.at[j].set(cosine * upper + sine * lower)
        rotation = rotation.at[j + 1].set(cosine * lower - sine * upper)
        above = jnp.where(rows < j, rotated, 0)[:restart]
        unit = (jnp.arange(restart) == j).astype(product.dtype)
        grown = cycle._replace(
            estimate=cycle.residual * jnp.abs(rotation[j + 1, 0]),
            rotation=rotation,
            inverse=cycle.inverse.at[:, j].set(ratio(unit - cycle.inverse @ above, size)),
            column=j + 1,
        )
        new = jax.tree.map(lambda old, new: jnp.where(useless, old, new), cycle, grown)
        return new._replace(exhausted=exhausted | useless), ratio(product, after)

    def init(problem: LinearProblem, start: Vector) -> tuple[State, Progress]:
        cycle, first = begin(start, problem.rhs, jnp.int32(0))
        basis = jnp.zeros((restart + 1, start.size), start.dtype).at[0].set(first)
        return State(cycle, basis), Progress(start, cycle.residual, problem.scale, 0)

    def step(problem: LinearProblem, state: State, goal: Goal) -> tuple[State, Progress]:
        cycle, basis = state
        closing = (
            (cycle.column >= restart)
            | cycle.exhausted
            | (cycle.estimate <= goal.residual)
            | goal.last
        )
        # Closing a cycle needs A x where expanding needs A v: one product serves either. The basis
        # is no result of the branches: under vmap these become copies of all they return.
        value = lax.cond(closing, improve, lambda state: state.cycle.value, state)
        product = problem.operator(jnp.where(closing, value, basis[cycle.column]))
        cycle, vector = lax.cond(
            closing,
            lambda state: close(state, value, problem.rhs - product),
            lambda state: expand(state, product),
            state,
        )
        state = State(cycle, basis.at[cycle.column].set(vector))
        return state, Progress(
            cycle.value,
            cycle.residual,
            problem.scale,
            monitor=cycle.estimate,
            broken=cycle.in_vain >= _CYCLES_IN_VAIN,
        )

    patience = max(60, 2 * restart)
    method = Method(init, step, "gmres")
    return LinearSolver(method, rtol, atol, max_steps, side, patience=patience)
