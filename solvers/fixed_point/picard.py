"""Picard iteration: `x <- x + damping (f(x) - x)`."""

from __future__ import annotations

from typing import NamedTuple

from solvers.fixed_point.base import FixedPointProblem, evaluate
from solvers.iterate import Goal, Method, Progress
from solvers.vectors import Vector


class State(NamedTuple):
    next: Vector  # the iterate to be evaluated


def picard(damping: float = 1.0) -> Method:
    """Plain (damping 1) or damped substitution: one evaluation a step, no memory.

    Converges when the spectral radius of `(1 - damping) I + damping J` is below one.
    """

    def at(problem: FixedPointProblem, x: Vector) -> tuple[State, Progress]:
        point = evaluate(problem, x)
        return State(x + damping * point.step), point.progress()

    def step(problem: FixedPointProblem, state: State, _: Goal) -> tuple[State, Progress]:
        return at(problem, state.next)

    return Method(at, step, "picard")
