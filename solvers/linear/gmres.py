"""Restarted GMRES (Saad and Schultz, 1986), one Arnoldi step at a time."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from solvers.iterate import Goal, Method, Progress
from solvers.linear.base import LinearProblem, LinearSolver
from solvers.mesh import vary_together
from solvers.settings import require_count
from solvers.space import Space, Vector, add, memory_like, ratio, subtract

_CYCLES_IN_VAIN = 3
_FULL = lax.Precision.HIGHEST


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
    basis: Vector  # leaves [restart + 1, ...]; rows up to `column` are orthonormal, the rest stale


@dataclasses.dataclass(frozen=True, eq=False)
class Gmres(Method):
    restart: int = 20

    def init(self, problem: LinearProblem, start: Vector) -> tuple[State, Progress]:
        if problem.space.batch_axis is not None:
            raise ValueError("gmres solves one system at a time: use jax.vmap, or bicgstab")
        cycle, first = self._begin(problem, start, problem.rhs, jnp.int32(0))
        rows = jnp.arange(self.restart + 1)
        basis = problem.space.put(rows == 0, first, memory_like(first, self.restart + 1))
        return State(cycle, basis), Progress(start, cycle.residual, problem.scale, 0)

    def step(self, problem: LinearProblem, state: State, goal: Goal) -> tuple[State, Progress]:
        space, (cycle, basis) = problem.space, state
        closing = (
            (cycle.column >= self.restart)
            | cycle.exhausted
            | (cycle.estimate <= goal.residual)
            | goal.last
        )
        # Closing a cycle needs A x where expanding needs A v: one product serves either. The basis
        # is no result of the branches: under vmap these become copies of all they return.
        value = lax.cond(
            closing, partial(self._improved, space), lambda state: state.cycle.value, state
        )
        latest = jax.tree.map(lambda leaf: leaf[cycle.column], basis)
        product = problem.operator(space.where(closing, value, latest))
        # Of equal types in both branches, also inside shard_map.
        branches = (
            lambda: self._close(problem, cycle, value, subtract(problem.rhs, product)),
            lambda: self._expand(problem, state, product),
        )
        cycle, vector = lax.cond(closing, *(partial(vary_together, run, state) for run in branches))
        basis = jax.tree.map(lambda leaf, new: leaf.at[cycle.column].set(new), basis, vector)
        return State(cycle, basis), Progress(
            cycle.value,
            cycle.residual,
            problem.scale,
            monitor=cycle.estimate,
            broken=cycle.in_vain >= _CYCLES_IN_VAIN,
        )

    def _improved(self, space: Space, state: State) -> Vector:
        """`value + V y` with `R y = Q (residual e_1)` over the filled columns."""
        cycle = state.cycle
        rhs = cycle.residual * cycle.rotation[: self.restart, 0]
        weights = jnp.matmul(cycle.inverse, rhs, precision=_FULL)
        used = jax.tree.map(lambda leaf: leaf[: self.restart], state.basis)
        return add(cycle.value, space.combine(weights, used))

    def _begin(
        self, problem: LinearProblem, value: Vector, residual: Vector, in_vain: jax.Array
    ) -> tuple[Cycle, Vector]:
        """A new cycle from `value`, and its first basis vector."""
        size = problem.space.norm(residual)
        rotation = jnp.eye(self.restart + 1, dtype=size.dtype)
        inverse = jnp.zeros((self.restart, self.restart), size.dtype)
        cycle = Cycle(value, size, size, rotation, inverse, jnp.int32(0), jnp.bool_(False), in_vain)
        return cycle, problem.space.scale(ratio(jnp.ones_like(size), size), residual)

    def _close(
        self, problem: LinearProblem, old: Cycle, value: Vector, residual: Vector
    ) -> tuple[Cycle, Vector]:
        """Ends a cycle at `value` and begins the next."""
        gained = problem.space.norm(residual) < 0.99 * old.residual
        in_vain = jnp.where(gained, 0, old.in_vain + old.exhausted)
        return self._begin(problem, value, residual, in_vain.astype(jnp.int32))

    def _expand(
        self, problem: LinearProblem, state: State, product: Vector
    ) -> tuple[Cycle, Vector]:
        """One more column of the Hessenberg matrix, and the next basis vector."""
        space, (cycle, basis) = problem.space, state
        j, rows = cycle.column, jnp.arange(self.restart + 1)
        before = space.length(product)
        overlap = jnp.zeros(self.restart + 1, before.dtype)
        for _ in range(2):
            part = jnp.where(rows <= j, space.dots(basis, product), 0)
            product = subtract(product, space.combine(part, basis))
            overlap = overlap + part
        after = space.length(product)
        noise = 10 * jnp.finfo(before.dtype).eps * before
        exhausted = after <= noise
        after = jnp.where(exhausted, 0, after)

        rotated = jnp.matmul(cycle.rotation, overlap, precision=_FULL)
        pivot = rotated[j]
        size = jnp.hypot(pivot, after)
        useless = size <= noise  # singular along this direction: leave the column out
        cosine, sine = ratio(pivot, size), ratio(after, size)
        upper, lower = cycle.rotation[j], cycle.rotation[j + 1]
        rotation = cycle.rotation.at[j].set(cosine * upper + sine * lower)
        rotation = rotation.at[j + 1].set(cosine * lower - sine * upper)
        above = jnp.where(rows < j, rotated, 0)[: self.restart]
        unit = (jnp.arange(self.restart) == j).astype(size.dtype)
        column = unit - jnp.matmul(cycle.inverse, above, precision=_FULL)
        grown = cycle._replace(
            estimate=cycle.residual * jnp.abs(rotation[j + 1, 0]),
            rotation=rotation,
            inverse=cycle.inverse.at[:, j].set(ratio(column, size)),
            column=j + 1,
        )
        new = jax.tree.map(lambda old, new: jnp.where(useless, old, new), cycle, grown)
        vector = space.scale(ratio(jnp.ones_like(after), after), product)
        return new._replace(exhausted=exhausted | useless), vector


def gmres(
    rtol: float | None = None,
    atol: float = 0.0,
    max_steps: int = 200,
    restart: int = 20,
) -> LinearSolver:
    """GMRES(restart): the smallest residual over the Krylov space, one product a step.

    The basis is made orthogonal by classical Gram-Schmidt applied twice, which keeps it so to
    rounding level and is two matrix products instead of a chain of vector ones. A restart, and
    so every claim of convergence, recomputes the true residual and counts as a step. Needs
    memory for `restart + 1` vectors.
    """
    method = Gmres(require_count("restart", restart, 1))
    return LinearSolver(method, rtol, atol, max_steps, patience=max(60, 2 * restart))
