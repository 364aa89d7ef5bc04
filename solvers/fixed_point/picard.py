"""Picard iteration: `x <- x + damping (f(x) - x)`."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from solvers.fixed_point.base import FixedPointProblem, evaluate
from solvers.iterate import Goal, Method, Progress
from solvers.settings import require_number
from solvers.space import Vector


class State(NamedTuple):
    next: Vector  # the iterate to be evaluated
    size: Any  # its norm, where that is known: undamped, it is f(x)


@dataclasses.dataclass(frozen=True, eq=False)
class Picard(Method):
    """Plain (damping 1) or damped substitution: one evaluation a step, no memory.

    Converges when the spectral radius of `(1 - damping) I + damping J` is below one.
    """

    damping: float = 1.0

    def __post_init__(self) -> None:
        require_number("damping", self.damping, open_at_least=True)

    def init(self, problem: FixedPointProblem, x: Vector) -> tuple[State, Progress]:
        return self._evaluated(problem, State(x, None))

    def step(self, problem: FixedPointProblem, state: State, _: Goal) -> tuple[State, Progress]:
        return self._evaluated(problem, state)

    def _evaluated(self, problem: FixedPointProblem, state: State) -> tuple[State, Progress]:
        point = evaluate(problem, state.next, x_size=state.size)
        following = problem.space.plus(point.x, self.damping, point.step)
        undamped = isinstance(self.damping, int | float) and self.damping == 1
        return State(following, point.image_size if undamped else None), point.progress()
