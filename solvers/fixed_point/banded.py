"""Banded splitting: `x <- x + (I - B)^-1 (f(x) - x)` with `B` the bands of the Jacobian."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from solvers.bands import Bands, splitting_inverse
from solvers.fixed_point.base import FixedPointProblem, Point, Precondition, evaluate
from solvers.iterate import Goal, Method, Progress
from solvers.vectors import Tree, Vector


def precondition(bands: Callable[[Any, Tree], Bands]) -> Precondition:
    """`(theta, x) -> (v -> (I - B)^-1 v)`: bands as a preconditioner, for newton and adjoints."""
    return lambda theta, x: splitting_inverse(bands(theta, x))


def banded(bands: Callable[[Any, Tree], Bands], damping: float = 1.0) -> Method:
    """Solves the part of the equation that couples neighbours in time exactly, every step.

    Args:
      bands: `(theta, x) -> Bands`, the tridiagonal part of `df/dx` per channel (or what is cheap
        of it); it shares its computation with `f` where the compiler sees the same terms.
      damping: length of the step.

    Converges when the spectral radius of `(I - B)^-1 (J - B)` is below one; with exact bands and
    nothing else in the Jacobian it is Newton's method.
    """
    inverse = precondition(bands)

    def init(problem: FixedPointProblem, x: Vector) -> tuple[Point, Progress]:
        point = evaluate(problem, x)
        return point, point.progress()

    def step(problem: FixedPointProblem, state: Point, _: Goal) -> tuple[Point, Progress]:
        correction = problem.precondition(inverse, state.x)(state.step)
        point = evaluate(problem, state.x + damping * correction)
        return point, point.progress()

    return Method(init, step, "banded")
