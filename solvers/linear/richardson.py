"""Richardson iteration: `x <- x + damping (b - A x)`."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from solvers.iterate import Goal, Method, Progress
from solvers.linear.base import LinearProblem, LinearSolver
from solvers.settings import require_number
from solvers.space import Vector, subtract


class State(NamedTuple):
    value: Vector
    residual: Vector
    next_before: Any  # value + residual of the step before, where accelerated
    residual_before: Any


@dataclasses.dataclass(frozen=True, eq=False)
class Richardson(Method):
    damping: float = 1.0
    accelerated: bool = False

    scale_free = False

    def init(self, problem: LinearProblem, start: Vector) -> tuple[State, Progress]:
        # Nothing is before the first step: a difference of zero.
        before = (start, problem.rhs) if self.accelerated else (None, None)
        progress = Progress(start, problem.space.norm(problem.rhs), problem.scale, 0)
        return State(start, problem.rhs, *before), progress

    def step(self, problem: LinearProblem, state: State, _: Goal) -> tuple[State, Progress]:
        space = problem.space
        value = following = space.plus(state.value, self.damping, state.residual)
        before: tuple = (None, None)
        if self.accelerated:
            value = space.secant(
                following, state.residual, state.next_before, state.residual_before
            )
            before = (following, state.residual)
        residual = subtract(problem.rhs, problem.operator(value))
        progress = Progress(value, space.norm(residual), problem.scale, 1)
        return State(value, residual, *before), progress


def richardson(
    rtol: float | None = None,
    atol: float = 0.0,
    max_steps: int = 500,
    damping: float = 1.0,
    *,
    truncated: bool = False,
    accelerated: bool = False,
) -> LinearSolver:
    """`x <- x + damping (b - A x)`, one product a step.

    For `A = I - J` and damping 1 this is `x <- J x + b`, recurrent back-propagation
    (Algorithm 1 of the 2018 paper). Converges when the spectral radius of `I - damping A`
    (of `I - damping A M` with a preconditioner) is below one. `accelerated` adds a secant step
    (`Space.secant`), which removes one isolated eigenvalue, however large.
    """
    require_number("damping", damping, open_at_least=True)
    method = Richardson(damping, accelerated)
    return LinearSolver(method, rtol, atol, max_steps, truncated)
