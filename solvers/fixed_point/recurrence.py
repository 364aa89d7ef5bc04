"""Newton's method over time: `x[t] = f_t(x[t-1])` for all `t` at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from solvers.fixed_point.base import FixedPointProblem, evaluate
from solvers.iterate import Goal, Method, Progress
from solvers.settings import require_number
from solvers.space import Vector
from solvers.split import recurrence_solve

# How far beyond the largest entry met a step may lead before it is not believed.
_FARTHEST = 10.0


class State(NamedTuple):
    next: Vector
    size: jax.Array  # of the last residual
    share: jax.Array  # of the couplings that the next step goes by


@dataclasses.dataclass(frozen=True, eq=False)
class Recurrence(Method):
    """Solves the equation linearised around `x`, a linear recurrence, every step:

        y[t] = f_t(x[t-1]) + share coupling[t] (y[t-1] - x[t-1]).

    With exact couplings and a share of 1 this is Newton's method (DEER: Lim et al., 2024); with
    their diagonal, quasi-Newton; with a share of 0, Picard iteration. A share below 1 is implicit
    Euler continuation, as in `newton`. Whatever the couplings are, after k steps the first k
    entries are exact: as many steps as there are times always suffice. To keep that, a step is
    never shortened or taken back. Instead the share is halved when the residual rises and doubled
    when it falls, and where the recurrence has run away a step is `y[t] = f_t(x[t-1])`.

    Args:
      sweep: `(theta, x) -> (f(theta, x), coupling)` for `x` `[time, n]`, with `coupling[t]` close
        to the derivative of row t with respect to row t - 1: `[time, n, n]`, or `[time, n]`, its
        diagonal.
      damping: the largest share.
    """

    sweep: Callable[[Any, jax.Array], tuple[jax.Array, jax.Array]]
    damping: float = 1.0

    def __post_init__(self) -> None:
        require_number("damping", self.damping, 0.0, 1.0)

    def init(self, problem: FixedPointProblem, x: Vector) -> tuple[State, Progress]:
        if not isinstance(x, jax.Array) or x.ndim != 2:
            raise ValueError("recurrence takes states that are one array [time, n]")
        if problem.space.batch_axis is not None:
            raise ValueError("recurrence solves one sequence at a time: use jax.vmap")
        return self._at(
            problem, x, jnp.asarray(jnp.inf, x.dtype), jnp.asarray(self.damping, x.dtype)
        )

    def step(self, problem: FixedPointProblem, state: State, _: Goal) -> tuple[State, Progress]:
        return self._at(problem, *state)

    def _at(
        self, problem: FixedPointProblem, x: jax.Array, size: jax.Array, share: jax.Array
    ) -> tuple[State, Progress]:
        image, coupling = self.sweep(problem.theta, problem.user(x))
        image, coupling = image.astype(x.dtype), coupling.astype(x.dtype)
        point = evaluate(problem, x, image)
        share = jnp.where(point.size <= size, jnp.minimum(2 * share, self.damping), 0.5 * share)
        picard = image - x
        coupling = share * lax.stop_gradient(coupling)
        step = recurrence_solve(coupling, picard, problem.space.mesh_axis)
        largest = problem.space.largest(x, image)
        near = jnp.all(jnp.abs(step) <= _FARTHEST * largest, axis=-1, keepdims=True)
        following = x + jnp.where(near, step, picard)
        return State(following, point.size, share), point.progress()
