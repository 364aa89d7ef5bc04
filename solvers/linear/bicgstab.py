"""BiCGSTAB (van der Vorst, 1992) with restarts on breakdown and a verified residual."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from solvers.iterate import Goal, Method, Progress
from solvers.linear.base import LinearProblem, LinearSolver, negligible, reliable
from solvers.space import Vector, ratio, subtract

_RESTARTS_IN_VAIN = 3


class State(NamedTuple):
    value: Vector
    residual: Vector
    shadow: Vector
    direction: Vector
    shadow_norm: jax.Array
    rho: jax.Array  # <shadow, residual>
    drift: jax.Array  # largest ||residual|| or ||A|| ||value|| since the last restart
    verify: jax.Array  # bool: the next step recomputes the residual
    broken: jax.Array  # bool: and starts afresh from it
    verified: jax.Array  # residual norm when that was last done
    in_vain: jax.Array  # how many times in a row nothing was gained


@dataclasses.dataclass(frozen=True, eq=False)
class Bicgstab(Method):
    def init(self, problem: LinearProblem, start: Vector) -> tuple[State, Progress]:
        rhs, size = problem.rhs, problem.space.norm(problem.rhs)
        never = jnp.zeros_like(size, dtype=bool)
        state = State(
            start,
            rhs,
            rhs,
            rhs,
            size,
            size**2,
            size,
            never,
            never,
            jnp.full_like(size, jnp.inf),
            jnp.zeros_like(size, dtype=jnp.int32),
        )
        return state, Progress(start, size, problem.scale, 0)

    def step(self, problem: LinearProblem, state: State, goal: Goal) -> tuple[State, Progress]:
        # Verifying is a step of length zero that recomputes the residual: it needs A x where an
        # ordinary step needs A p, so one product serves either, and under vmap an example that
        # verifies costs the others nothing. What the recurrence had built up remains, unless it
        # broke down or was misled.
        space, verify = problem.space, state.verify
        v = problem.operator(space.where(verify, state.value, state.direction))
        along, v_square = space.products((state.shadow, v), (v, v))
        breakdown = negligible(along, state.shadow_norm, jnp.sqrt(v_square))
        alpha = jnp.where(breakdown | verify, 0, ratio(state.rho, along))
        half = space.plus(state.residual, -alpha, v)
        t = problem.operator(half)
        t_half, t_square = space.products((t, half), (t, t))
        omega = jnp.where(verify, 0, ratio(t_half, t_square))
        value = space.plus(space.plus(state.value, alpha, state.direction), omega, half)
        residual = space.where(verify, subtract(problem.rhs, v), space.plus(half, -omega, t))
        square, value_square = space.products((residual, residual), (value, value))
        size = jnp.sqrt(square)

        gained = size < 0.9 * state.verified
        in_vain = jnp.where(verify, jnp.where(gained, 0, state.in_vain + 1), state.in_vain)
        restart = verify & (state.broken | ~gained)
        # A restart that gained nothing would break down at the same place: tilt the shadow.
        afresh = space.where(in_vain > 0, _tilted(residual), residual)
        shadow = space.where(restart, afresh, state.shadow)
        shadow_norm = jnp.where(restart, size, state.shadow_norm)
        rho = space.dot(shadow, residual)

        # `residual` is `half` without its part along `t`, which gives the norm of `half`.
        half_norm = jnp.sqrt(jnp.maximum(square + omega * t_half, 0))
        breakdown |= negligible(t_half, jnp.sqrt(t_square), half_norm)
        breakdown |= negligible(rho, shadow_norm, size)
        beta = jnp.where(restart, 0, ratio(rho, state.rho) * ratio(alpha, omega))
        breakdown |= ~jnp.isfinite(beta)
        direction = space.plus(residual, beta, space.plus(state.direction, -omega, v))
        direction = space.where(verify & ~restart, state.direction, direction)
        gain = ratio(jnp.sqrt(t_square), half_norm)
        drift = jnp.maximum(state.drift, jnp.maximum(size, gain * jnp.sqrt(value_square)))
        drift = jnp.where(verify, size, drift)
        doubtful = ~reliable(drift, goal.residual)
        met = size <= goal.residual
        again = jnp.where(met, doubtful, breakdown) & ~verify
        new = State(
            value,
            residual,
            shadow,
            direction,
            shadow_norm,
            rho,
            drift,
            again,
            again & ~met,
            jnp.where(verify, size, state.verified),
            in_vain,
        )
        return new, Progress(
            value,
            size,
            problem.scale,
            evaluations=2,
            trusted=~again,
            broken=in_vain >= _RESTARTS_IN_VAIN,
        )


def _tilted(vector: Vector) -> Vector:
    """Every entry times a number of its own between 1/2 and 3/2."""

    def tilt(leaf: jax.Array) -> jax.Array:
        number = jnp.zeros((), leaf.dtype)
        for axis, size in enumerate(leaf.shape):
            place = jax.lax.broadcasted_iota(
                leaf.dtype, (1,) * axis + (size,) + (1,) * (leaf.ndim - axis - 1), axis
            )
            number = number + (1 + 0.6180339 * axis) * place
        return (1 + 0.5 * jnp.cos(number)) * leaf

    return jax.tree.map(tilt, vector)


def bicgstab(rtol: float | None = None, atol: float = 0.0, max_steps: int = 200) -> LinearSolver:
    """BiCGSTAB: two products a step, short recurrences, no growth of memory.

    Breakdown is judged by scalar products relative to the norms of their factors. It leads to a
    restart from the true residual; three restarts in a row that gain nothing end as BREAKDOWN.
    """
    return LinearSolver(Bicgstab(), rtol, atol, max_steps)
