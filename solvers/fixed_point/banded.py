"""Banded splitting: `x <- x + (I - B)^-1 (f(x) - x)` with `B` the bands of the Jacobian."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from solvers.bands import Bands, splitting_inverse
from solvers.fixed_point.base import FixedPointProblem, Precondition, evaluate
from solvers.iterate import Goal, Method, Progress
from solvers.vectors import Tree, Vector


class State(NamedTuple):
    next: Vector  # x + damping (I - B)^-1 (f(x) - x)


def precondition(bands: Callable[[Any, Tree], Bands] | Bands) -> Precondition:
    """`(theta, x) -> (v -> (I - B)^-1 v)`: bands as a preconditioner, for newton and adjoints."""
    if isinstance(bands, Bands):
        return lambda theta, x: splitting_inverse(bands)
    return lambda theta, x: splitting_inverse(bands(theta, x))


def banded(bands: Callable[[Any, Tree], Bands] | Bands, damping: float = 1.0) -> Method:
    """Solves the part of the equation that couples neighbours in time exactly, every step.

    Args:
      bands: `(theta, x) -> Bands`, the tridiagonal part of `df/dx` per channel (or what is cheap
        of it). It is evaluated beside `f`, at the same `x`, so that the compiler computes what
        the two have in common once. Constant `Bands` will do for a linear map.
      damping: length of the step.

    Converges when the spectral radius of `(I - B)^-1 (J - B)` is below one; with exact bands and
    nothing else in the Jacobian it is Newton's method.
    """
    inverse = precondition(bands)

    def at(problem: FixedPointProblem, x: Vector) -> tuple[State, Progress]:
        point = evaluate(problem, x)
        correction = problem.precondition(inverse, x)(point.step)
        return State(x + damping * correction), point.progress()

    def step(problem: FixedPointProblem, state: State, _: Goal) -> tuple[State, Progress]:
        return at(problem, state.next)

    return Method(at, step, "banded")
