"""What the fixed-point methods share: the problem in flat form, its residual, and cascades."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from solvers.iterate import Method, Progress
from solvers.vectors import FLAT, Geometry, Tree, Vector

Map = Callable[[Any, Tree], Tree]
Inverse = Callable[[Tree], Tree]
Precondition = Callable[[Any, Tree], Inverse]


class FixedPointProblem(NamedTuple):
    """`x = f(theta, x)` on flat vectors, with the way to trees for methods that know structure.

    In a batch that advances in lockstep (`solvers.lockstep`) the vectors are those of all examples
    and the geometry has one number for each.
    """

    f: Callable[[Vector], Vector]
    theta: Any
    unravel: Callable[[Vector], Tree]
    ravel: Callable[[Tree], Vector]
    geometry: Geometry = FLAT

    def precondition(self, precond: Precondition, x: Vector) -> Callable[[Vector], Vector]:
        """`precond(theta, x)`, an approximate inverse of `I - df/dx`, on vectors."""
        inverse = precond(self.theta, self.unravel(x))
        return lambda vector: self.ravel(inverse(self.unravel(vector)))


class Point(NamedTuple):
    """An iterate with what one evaluation of the map tells about it."""

    x: Vector
    step: Vector  # f(x) - x
    size: jax.Array  # norm of the step
    scale: jax.Array  # what that norm is relative to

    def progress(self, evaluations: jax.Array | int = 1) -> Progress:
        return Progress(self.x, self.size, self.scale, evaluations)


def evaluate(problem: FixedPointProblem, x: Vector) -> Point:
    """The map at `x`, once."""
    return compare(problem, x, problem.f(x))


def compare(problem: FixedPointProblem, x: Vector, image: Vector) -> Point:
    """An iterate beside its image."""
    step = image - x
    scale = jnp.maximum(problem.geometry.norm(x), problem.geometry.norm(image))
    return Point(x, step, problem.geometry.norm(step), scale)


class Stage(NamedTuple):
    """One method of a cascade and the most steps it may take (`None`: all that are left)."""

    method: Method
    max_steps: int | None = None


class Cascade(NamedTuple):
    """Methods that follow one another, each starting from the best iterate of the one before.

    Under `vmap` an example that has converged takes no part in later stages.
    """

    stages: tuple[Stage, ...]
