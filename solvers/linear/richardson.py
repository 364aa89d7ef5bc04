"""Richardson iteration: `x <- x + damping (b - A x)`."""

from __future__ import annotations

from typing import NamedTuple

from solvers.iterate import Goal, Method, Progress
from solvers.linear.base import LinearProblem, LinearSolver
from solvers.vectors import Vector, norm


class State(NamedTuple):
    value: Vector
    residual: Vector


def richardson(
    rtol: float | None = None,
    atol: float = 0.0,
    max_steps: int = 500,
    damping: float = 1.0,
    *,
    side: str = "right",
    truncated: bool = False,
) -> LinearSolver:
    """`x <- x + damping (b - A x)`, one product a step.

    For `A = I - J` and damping 1 this is `x <- J x + b`, recurrent back-propagation
    (Algorithm 1 of the 2018 paper). Converges when the spectral radius of `I - damping A`
    (of `I - damping A M` with a preconditioner) is below one.
    """

    def init(problem: LinearProblem, start: Vector) -> tuple[State, Progress]:
        state = State(start, problem.rhs)
        return state, Progress(start, norm(problem.rhs), problem.scale, 0)

    def step(problem: LinearProblem, state: State, _: Goal) -> tuple[State, Progress]:
        value = state.value + damping * state.residual
        residual = problem.rhs - problem.operator(value)
        return State(value, residual), Progress(value, norm(residual), problem.scale, 1)

    return LinearSolver(
        Method(init, step, "richardson"),
        rtol=rtol,
        atol=atol,
        max_steps=max_steps,
        side=side,
        truncated=truncated,
    )
