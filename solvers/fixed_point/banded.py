"""Banded splitting: `x <- x + (I - B)^-1 (f(x) - x)` with `B` the bands of the Jacobian."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

from solvers.bands import Bands
from solvers.fixed_point.base import FixedPointProblem, Precondition, evaluate
from solvers.iterate import Goal, Method, Progress
from solvers.settings import Settings, require_number
from solvers.space import Tree, Vector, add, cast_like
from solvers.split import inverse_of

Sweep = Callable[[Any, Tree], tuple[Tree, Bands]]
BandsOf = Callable[[Any, Tree], Bands] | Bands


class State(NamedTuple):
    next: Vector  # x + damping (I - B)^-1 (f(x) - x), or the secant step
    swept: Any  # the former, where the latter is `next`
    correction: Any


@dataclasses.dataclass(frozen=True, eq=False)
class BandPrecondition(Settings):
    """`(theta, x) -> (v -> (I - B)^-1 v)`."""

    bands: BandsOf
    mesh_axis: str | None = None

    def __call__(self, theta: Any, x: Tree) -> Callable[[Tree], Tree]:
        found = self.bands if isinstance(self.bands, Bands) else self.bands(theta, x)
        return inverse_of(found, self.mesh_axis)


def precondition(bands: BandsOf, mesh_axis: str | None = None) -> Precondition:
    """`(theta, x) -> (v -> (I - B)^-1 v)`: bands as a preconditioner, for newton and adjoints.

    Args:
      bands: as for `banded`.
      mesh_axis: as for `fixed_point`.
    """
    return BandPrecondition(bands, mesh_axis)


@dataclasses.dataclass(frozen=True, eq=False)
class Banded(Method):
    """Solves the part of the equation that couples neighbours in time exactly, every step.

    Converges when the spectral radius of `(I - B)^-1 (J - B)` is below one; with exact bands and
    nothing else in the Jacobian it is Newton's method.

    Args:
      bands: `(theta, x) -> Bands`, the tridiagonal part of `df/dx` per channel (or what is cheap
        of it). Constant `Bands` will do for a linear map.
      damping: length of the step.
      sweep: instead of `bands`: `(theta, x) -> (f(theta, x), Bands)`, for maps whose bands come
        with their value.
      accelerated: add a secant step (`Space.secant`): where one isolated direction is slow, as
        in trained implicit RNNs, it takes that direction out.
    """

    bands: BandsOf | None = None
    damping: float = 1.0
    _: dataclasses.KW_ONLY
    sweep: Sweep | None = None
    accelerated: bool = False

    def __post_init__(self) -> None:
        if (self.bands is None) == (self.sweep is None):
            raise ValueError("banded takes either bands or sweep")
        require_number("damping", self.damping, open_at_least=True)

    def init(self, problem: FixedPointProblem, x: Vector) -> tuple[State, Progress]:
        return self._at(problem, x, None)

    def step(self, problem: FixedPointProblem, state: State, _: Goal) -> tuple[State, Progress]:
        return self._at(problem, state.next, state)

    def _at(
        self, problem: FixedPointProblem, x: Vector, before: State | None
    ) -> tuple[State, Progress]:
        if self.sweep is not None:
            image, found = self.sweep(problem.theta, problem.user(x))
            point = evaluate(problem, x, cast_like(image, x))
            inverse = inverse_of(found, problem.space.mesh_axis)
        else:
            assert self.bands is not None
            point = evaluate(problem, x)
            axis = problem.space.mesh_axis
            inverse = problem.precondition(precondition(self.bands, axis), x)
        correction = problem.space.scale(self.damping, inverse(point.step))
        following = swept = add(x, correction)
        if not self.accelerated:
            return State(swept, None, None), point.progress()._replace(following=swept)
        if before is not None:
            following = problem.space.secant(swept, correction, before.swept, before.correction)
        state = State(following, swept, correction)
        return state, point.progress()._replace(following=following)
