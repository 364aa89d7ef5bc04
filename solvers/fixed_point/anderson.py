"""Anderson acceleration in its orthogonalised form (nonlinear truncated GCR)."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from solvers.fixed_point.base import FixedPointProblem, Point, evaluate
from solvers.iterate import Goal, Method, Progress
from solvers.vectors import Vector, norm


class State(NamedTuple):
    point: Point
    moves: jax.Array  # [depth, n]: combinations of differences of iterates
    changes: jax.Array  # [depth, n]: the same combinations of differences of f(x) - x, orthonormal
    slot: jax.Array  # int32, the row to be overwritten next


def anderson(depth: int = 5, damping: float = 1.0) -> Method:
    """Extrapolates from the last `depth` differences, one evaluation a step.

    With `g = f(x) - x`, `V` the changes and `P` the moves that caused them,

        gamma = V g,    x <- x - P^T gamma + damping (g - V^T gamma),

    the least-squares solution of type II Anderson acceleration. `V` is kept orthonormal by
    Gram-Schmidt applied twice (each new pair is orthogonalised against those in memory), so there
    is no normal matrix to become singular: a change that lies in the span of the others, to
    rounding, is dropped. Works in float32 and with maps evaluated in bfloat16.
    """
    if depth < 1:
        raise ValueError(f"depth must be at least 1, got {depth}")

    def init(problem: FixedPointProblem, x: Vector) -> tuple[State, Progress]:
        point = evaluate(problem, x)
        empty = jnp.zeros((depth, x.size), x.dtype)
        return State(point, empty, empty, jnp.int32(0)), point.progress()

    def step(problem: FixedPointProblem, state: State, _: Goal) -> tuple[State, Progress]:
        point, moves, changes, slot = state
        weights = lax.stop_gradient(changes @ point.step)
        x = point.x - weights @ moves + damping * (point.step - weights @ changes)
        new = evaluate(problem, x)
        state = State(new, *_remember(moves, changes, slot, new, point))
        return state, new.progress()

    return Method(init, step, "anderson")


def _remember(
    moves: jax.Array, changes: jax.Array, slot: jax.Array, new: Point, old: Point
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The memory with the latest pair in it; emptied when the last extrapolation went badly."""
    move, change = new.x - old.x, new.step - old.step
    before = norm(change)
    others = jnp.arange(moves.shape[0]) != slot
    total = jnp.zeros((), change.dtype)
    for _ in range(2):
        overlap = lax.stop_gradient(jnp.where(others, changes @ change, 0))
        change = change - overlap @ changes
        total = total + overlap
    move = move - total @ moves
    after = norm(change)
    eps = jnp.finfo(change.dtype).eps
    useful = after > jnp.sqrt(eps) * before
    inverse = jnp.where(useful, 1 / jnp.where(useful, after, 1), 0)
    # A selection, not a scatter, which is what an update at a row of its own becomes under vmap.
    moves = jnp.where(others[:, None], moves, inverse * move)
    changes = jnp.where(others[:, None], changes, inverse * change)
    # A change of zero gives its move no weight: it is enough to forget the changes.
    bad = ~(new.size <= 4 * old.size)
    changes = jnp.where(bad, 0, 1).astype(changes.dtype) * changes
    slot = jnp.where(useful, (slot + 1) % moves.shape[0], slot)
    return moves, changes, slot.astype(jnp.int32)
