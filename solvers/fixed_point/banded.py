"""Banded splitting: `x <- x + (I - B)^-1 (f(x) - x)` with `B` the bands of the Jacobian."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from solvers.bands import Bands, splitting_inverse
from solvers.fixed_point.base import FixedPointProblem, Precondition, compare, evaluate
from solvers.iterate import Goal, Method, Progress
from solvers.vectors import Tree, Vector

Sweep = Callable[[Any, Tree], tuple[Tree, Bands]]


class State(NamedTuple):
    next: Vector  # x + damping (I - B)^-1 (f(x) - x), or the secant step
    swept: Any  # the former, where the latter is `next`
    correction: Any


def precondition(bands: Callable[[Any, Tree], Bands] | Bands) -> Precondition:
    """`(theta, x) -> (v -> (I - B)^-1 v)`: bands as a preconditioner, for newton and adjoints."""
    if isinstance(bands, Bands):
        return lambda theta, x: splitting_inverse(bands)
    return lambda theta, x: splitting_inverse(bands(theta, x))


def banded(
    bands: Callable[[Any, Tree], Bands] | Bands | None = None,
    damping: float = 1.0,
    *,
    sweep: Sweep | None = None,
    accelerated: bool = False,
) -> Method:
    """Solves the part of the equation that couples neighbours in time exactly, every step.

    Args:
      bands: `(theta, x) -> Bands`, the tridiagonal part of `df/dx` per channel (or what is cheap
        of it). Constant `Bands` will do for a linear map.
      damping: length of the step.
      sweep: instead of `bands`: `(theta, x) -> (f(theta, x), Bands)`, for maps whose bands come
        with their value.
      accelerated: add a secant step (`Geometry.secant`): where one isolated direction is slow, as
        in trained implicit RNNs, it takes that direction out.

    Converges when the spectral radius of `(I - B)^-1 (J - B)` is below one; with exact bands and
    nothing else in the Jacobian it is Newton's method.
    """
    if (bands is None) == (sweep is None):
        raise ValueError("banded takes either bands or sweep")

    def at(problem: FixedPointProblem, x: Vector, before: State | None) -> tuple[State, Progress]:
        if sweep is not None:
            image, found = sweep(problem.theta, problem.unravel(x))
            point = compare(problem, x, problem.ravel(image))
            inverse = splitting_inverse(found)
        else:
            assert bands is not None
            point = evaluate(problem, x)
            inverse = precondition(bands)(problem.theta, problem.unravel(x))
        correction = damping * problem.ravel(inverse(problem.unravel(point.step)))
        swept = x + correction
        if not accelerated:
            return State(swept, None, None), point.progress()._replace(following=swept)
        following = swept
        if before is not None:
            following = problem.geometry.secant(swept, correction, before.swept, before.correction)
        state = State(following, swept, correction)
        return state, point.progress()._replace(following=following)

    def init(problem: FixedPointProblem, x: Vector) -> tuple[State, Progress]:
        return at(problem, x, None)

    def step(problem: FixedPointProblem, state: State, _: Goal) -> tuple[State, Progress]:
        return at(problem, state.next, state)

    return Method(init, step, "banded")
