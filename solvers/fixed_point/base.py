"""What the fixed-point methods share: the problem, its residual, and cascades."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from solvers.iterate import Method, Progress
from solvers.settings import Settings, require_count
from solvers.space import Space, Tree, Vector, add, cast_like, subtract

Map = Callable[[Any, Tree], Tree]
Inverse = Callable[[Tree], Tree]
Precondition = Callable[[Any, Tree], Inverse]


class FixedPointProblem(NamedTuple):
    """`x = f(x)` in working precision.

    Attributes:
      f: the map.
      defect: `f(x) - x`.
      theta: its parameters, for methods that know its structure (bands, preconditioners).
      user: `x` in the precision in which the user's functions expect it.
      space: what a scalar is: one number, or one for each example of a batch in its own layout.
      norm: of the residual, in place of the Euclidean one.
      reference: what residuals are relative to, in place of the size of the iterate (roots).
      unscaled: whether `I - df/dx` is of order one (not so for roots).
    """

    f: Callable[[Vector], Vector]
    defect: Callable[[Vector], Vector]
    theta: Any
    user: Callable[[Vector], Tree] = lambda x: x
    space: Space = Space()
    norm: Callable[[Tree], Any] | None = None
    reference: Any = None
    unscaled: bool = True

    def size(self, v: Vector) -> jax.Array:
        """Its norm: the user's, where there is one."""
        size = self.space.norm(v)
        return size if self.norm is None else jnp.asarray(self.norm(v), size.dtype)

    def precondition(self, precond: Precondition, x: Vector) -> Callable[[Vector], Vector]:
        """`precond(theta, x)`, an approximate inverse of `I - df/dx`."""
        inverse = precond(self.theta, self.user(x))
        return lambda vector: cast_like(inverse(vector), vector)


class Point(NamedTuple):
    """An iterate with what one evaluation of the map tells about it."""

    x: Vector
    step: Vector  # f(x) - x
    size: Any  # norm of the step
    scale: Any  # what that norm is relative to
    image_size: Any  # norm of f(x)

    def progress(self, evaluations: Any = 1) -> Progress:
        return Progress(self.x, self.size, self.scale, evaluations)


def evaluate(
    problem: FixedPointProblem, x: Vector, image: Vector | None = None, x_size: Any = None
) -> Point:
    """The map at `x`, once; or not, where the image is there already (or the norm of `x`)."""
    step = problem.defect(x) if image is None else subtract(image, x)
    image = add(x, step)
    vectors = (step, image) if x_size is not None else (step, image, x)
    if problem.norm is None:
        size, *others = problem.space.norms(*vectors)
    else:
        size, *others = (problem.size(v) for v in vectors)
    image_size, x_size = others[0], others[-1] if x_size is None else x_size
    scale = jnp.maximum(x_size, image_size) if problem.reference is None else problem.reference
    return Point(x, step, size, scale, image_size)


@dataclasses.dataclass(frozen=True, eq=False)
class Stage(Settings):
    """One method of a cascade and the most steps it may take (`None`: all that are left)."""

    method: Method
    max_steps: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.method, Method):
            raise TypeError(f"a stage takes a method like picard(), got {self.method!r}")
        if self.max_steps is not None:
            require_count("max_steps", self.max_steps)


@dataclasses.dataclass(frozen=True, eq=False)
class Cascade(Settings):
    """Methods that follow one another, each starting from the best iterate of the one before.

    Under `vmap` an example that has converged takes no part in later stages.
    """

    stages: tuple[Stage, ...]

    def __post_init__(self) -> None:
        if not self.stages or not all(isinstance(stage, Stage) for stage in self.stages):
            raise TypeError(f"a cascade takes at least one Stage, got {self.stages!r}")
