"""Anderson acceleration in its orthogonalised form (nonlinear truncated GCR)."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from solvers.fixed_point.base import FixedPointProblem, Point, evaluate
from solvers.iterate import Goal, Method, Progress
from solvers.settings import require_count, require_number
from solvers.space import Space, Vector, memory_like, subtract


class State(NamedTuple):
    point: Point
    moves: Vector  # leaves [depth, ...]: combinations of differences of iterates
    changes: Vector  # the same combinations of differences of f(x) - x, orthonormal
    slot: jax.Array  # int32, the row to be overwritten next


@dataclasses.dataclass(frozen=True, eq=False)
class Anderson(Method):
    """Extrapolates from the last `depth` differences, one evaluation a step.

    With `g = f(x) - x`, `V` the changes and `P` the moves that caused them,

        gamma = V g,    x <- x - P^T gamma + damping (g - V^T gamma),

    the least-squares solution of type II Anderson acceleration. `V` is kept orthonormal by
    Gram-Schmidt applied twice (each new pair is orthogonalised against those in memory), so there
    is no normal matrix to become singular: a change that lies in the span of the others, to
    rounding, is dropped. Works in float32 and with maps evaluated in bfloat16.
    """

    depth: int = 5
    damping: float = 1.0

    def __post_init__(self) -> None:
        require_count("depth", self.depth, 1)
        require_number("damping", self.damping, open_at_least=True)

    def init(self, problem: FixedPointProblem, x: Vector) -> tuple[State, Progress]:
        point = evaluate(problem, x)
        empty = memory_like(x, self.depth)
        slot = jnp.zeros_like(point.size, dtype=jnp.int32)
        return State(point, empty, empty, slot), point.progress()

    def step(self, problem: FixedPointProblem, state: State, _: Goal) -> tuple[State, Progress]:
        space, (point, moves, changes, slot) = problem.space, state
        weights = lax.stop_gradient(space.dots(changes, point.step))
        rest = subtract(point.step, space.combine(weights, changes))
        x = space.plus(subtract(point.x, space.combine(weights, moves)), self.damping, rest)
        new = evaluate(problem, x)
        return State(new, *_remember(space, moves, changes, slot, new, point)), new.progress()


def _remember(
    space: Space, moves: Vector, changes: Vector, slot: jax.Array, new: Point, old: Point
) -> tuple[Vector, Vector, jax.Array]:
    """The memory with the latest pair in it; emptied when the last extrapolation went badly."""
    depth = jax.tree.leaves(moves)[0].shape[0]
    move, change = subtract(new.x, old.x), subtract(new.step, old.step)
    # In units of its largest entry: nothing under- or overflows on the way to unit length.
    unit = space.unit(change)
    move, change = space.scale(1 / unit, move), space.scale(1 / unit, change)
    before = space.length(change)
    here = jnp.arange(depth).reshape(-1, *[1] * slot.ndim) == slot
    total = jnp.zeros(here.shape, before.dtype)
    for _ in range(2):
        overlap = lax.stop_gradient(jnp.where(here, 0, space.dots(changes, change)))
        change = subtract(change, space.combine(overlap, changes))
        total = total + overlap
    move = subtract(move, space.combine(total, moves))
    after = space.length(change)
    useful = after > jnp.sqrt(jnp.finfo(after.dtype).eps) * before
    inverse = jnp.where(useful, 1 / jnp.where(useful, after, 1), 0)
    moves = space.put(here, space.scale(inverse, move), moves)
    changes = space.put(here, space.scale(inverse, change), changes)
    # A change of zero gives its move no weight: it is enough to forget the changes.
    good = jnp.where(new.size <= 4 * old.size, 1, 0).astype(after.dtype)
    changes = jax.vmap(space.scale, (None, 0))(good, changes)
    slot = jnp.where(useful, (slot + 1) % depth, slot)
    return moves, changes, slot.astype(jnp.int32)
