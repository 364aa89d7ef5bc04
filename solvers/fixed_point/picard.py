"""Picard iteration: `x <- x + damping (f(x) - x)`."""

from __future__ import annotations

from solvers.fixed_point.base import FixedPointProblem, Point, evaluate
from solvers.iterate import Goal, Method, Progress
from solvers.vectors import Vector


def picard(damping: float = 1.0) -> Method:
    """Plain (damping 1) or damped substitution: one evaluation a step, no memory.

    Converges when the spectral radius of `(1 - damping) I + damping J` is below one.
    """

    def init(problem: FixedPointProblem, x: Vector) -> tuple[Point, Progress]:
        point = evaluate(problem, x)
        return point, point.progress()

    def step(problem: FixedPointProblem, state: Point, _: Goal) -> tuple[Point, Progress]:
        point = evaluate(problem, state.x + damping * state.step)
        return point, point.progress()

    return Method(init, step, "picard")
