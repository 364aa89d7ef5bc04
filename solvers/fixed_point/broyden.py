"""Broyden's (good) method with limited memory."""

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
    columns: jax.Array  # [depth, n], u_i
    rows: jax.Array  # [depth, n], v_i
    filled: jax.Array  # int32, how many pairs are in memory


def broyden(depth: int = 10) -> Method:
    """Quasi-Newton with `H = I + sum_i u_i v_i^T` for `(I - J)^-1`: one evaluation a step.

    With `g = f(x) - x`: `d = H g`, `x <- x + d`, and for `y = g_old - g_new` (so that `H y = d`
    is wanted)

        H <- H + (d - H y) (H^T d)^T / ((H^T d)^T y).

    A pair whose denominator is rounding noise is skipped. When the memory is full, or the
    residual has grown fourfold, it starts again from `H = I`.
    """
    if depth < 1:
        raise ValueError(f"depth must be at least 1, got {depth}")

    def init(problem: FixedPointProblem, x: Vector) -> tuple[State, Progress]:
        point = evaluate(problem, x)
        empty = jnp.zeros((depth, x.size), x.dtype)
        return State(point, empty, empty, jnp.int32(0)), point.progress()

    def step(problem: FixedPointProblem, state: State, _: Goal) -> tuple[State, Progress]:
        point, columns, rows, filled = state
        d = point.step + lax.stop_gradient(rows @ point.step) @ columns
        new = evaluate(problem, point.x + d)

        d, y = lax.stop_gradient((d, point.step - new.step))
        row = d + (columns @ d) @ rows
        predicted = y + (rows @ y) @ columns
        denominator = jnp.vdot(row, y)
        eps = jnp.finfo(d.dtype).eps
        useful = jnp.abs(denominator) > 10 * eps * norm(row) * norm(y)
        column = (d - predicted) / jnp.where(useful, denominator, 1)

        reset = (filled >= depth) | ~(new.size <= 4 * point.size)
        keep = jnp.where(reset, 0, 1).astype(d.dtype)
        add = useful & ~reset
        slot = jnp.minimum(filled, depth - 1)
        columns = keep * columns.at[slot].set(jnp.where(add, column, columns[slot]))
        rows = keep * rows.at[slot].set(jnp.where(add, row, rows[slot]))
        filled = jnp.where(reset, 0, filled + add).astype(jnp.int32)
        return State(new, *lax.stop_gradient((columns, rows)), filled), new.progress()

    return Method(init, step, "broyden")
