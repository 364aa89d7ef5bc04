"""Broyden's (good) method with limited memory."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from solvers.fixed_point.base import FixedPointProblem, Point, evaluate
from solvers.iterate import Goal, Method, Progress
from solvers.settings import require_count
from solvers.space import Space, Vector, add, memory_like, subtract


class LowRank(NamedTuple):
    """`H = I + sum_i u_i v_i^T`, which stands for `(I - J)^-1`."""

    columns: Vector  # leaves [depth, ...], u_i
    rows: Vector  # v_i

    def __call__(self, vector: Vector, space: Space = Space()) -> Vector:  # noqa: B008
        return add(vector, space.combine(space.dots(self.rows, vector), self.columns))

    def transposed(self, vector: Vector, space: Space) -> Vector:
        return LowRank(self.rows, self.columns)(vector, space)


class State(NamedTuple):
    point: Point
    inverse: LowRank
    filled: jax.Array  # int32, how many pairs are in memory


@dataclasses.dataclass(frozen=True, eq=False)
class Broyden(Method):
    """Quasi-Newton with `H = I + sum_i u_i v_i^T` for `(I - J)^-1`: one evaluation a step.

    With `g = f(x) - x`: `d = H g`, `x <- x + d`, and for `y = g_old - g_new` (so that `H y = d`
    is wanted)

        H <- H + (d - H y) (H^T d)^T / ((H^T d)^T y).

    A pair whose denominator is rounding noise is skipped. When the memory is full, or the
    residual has grown fourfold, it starts again from `H = I`.
    """

    depth: int = 10

    def __post_init__(self) -> None:
        require_count("depth", self.depth, 1)

    def init(self, problem: FixedPointProblem, x: Vector) -> tuple[State, Progress]:
        point = evaluate(problem, x)
        empty = memory_like(x, self.depth)
        filled = jnp.zeros_like(point.size, dtype=jnp.int32)
        return State(point, LowRank(empty, empty), filled), point.progress()

    def step(self, problem: FixedPointProblem, state: State, _: Goal) -> tuple[State, Progress]:
        space, (point, inverse, filled) = problem.space, state
        d = inverse(point.step, space)
        new = evaluate(problem, add(point.x, d))

        d, y = lax.stop_gradient((d, subtract(point.step, new.step)))
        # Both in units of the step: an update has no units.
        unit = space.unit(d)
        d, y = space.scale(1 / unit, d), space.scale(1 / unit, y)
        row = inverse.transposed(d, space)
        missed = subtract(d, inverse(y, space))
        denominator = space.dot(row, y)
        eps = jnp.finfo(denominator.dtype).eps
        useful = jnp.abs(denominator) > 10 * eps * space.norm(row) * space.norm(y)
        column = space.scale(jnp.where(useful, 1 / jnp.where(useful, denominator, 1), 0), missed)

        reset = (filled >= self.depth) | ~(new.size <= 4 * point.size)
        slots = jnp.arange(self.depth).reshape(-1, *[1] * filled.ndim)
        here = (slots == filled) & useful & ~reset
        keep = jnp.where(reset, 0, 1).astype(denominator.dtype)

        def updated(memory: Vector, vector: Vector) -> Vector:
            return jax.vmap(space.scale, (None, 0))(keep, space.put(here, vector, memory))

        inverse = LowRank(updated(inverse.columns, column), updated(inverse.rows, row))
        filled = jnp.where(reset, 0, filled + (useful & ~reset)).astype(jnp.int32)
        return State(new, lax.stop_gradient(inverse), filled), new.progress()
