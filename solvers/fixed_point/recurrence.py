"""Newton's method over time: `x[t] = f_t(x[t-1])` for all `t` at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from solvers.bands import bidiagonal_solve
from solvers.fixed_point.base import FixedPointProblem, compare
from solvers.iterate import Goal, Method, Progress
from solvers.vectors import Vector

# How far beyond the largest entry met a step may lead before it is not believed.
_FARTHEST = 10.0


class State(NamedTuple):
    next: Vector
    size: jax.Array  # of the last residual
    share: jax.Array  # of the couplings that the next step goes by


def recurrence(
    sweep: Callable[[Any, jax.Array], tuple[jax.Array, jax.Array]], damping: float = 1.0
) -> Method:
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
    if not 0 <= damping <= 1:
        raise ValueError(f"damping must be from 0 (Picard) to 1 (Newton), got {damping}")

    def at(
        problem: FixedPointProblem, x: Vector, size: jax.Array, share: jax.Array
    ) -> tuple[State, Progress]:
        before = problem.unravel(x)
        image, coupling = sweep(problem.theta, before)
        point = compare(problem, x, problem.ravel(image))
        share = jnp.where(point.size <= size, jnp.minimum(2 * share, damping), 0.5 * share)
        picard = image - before
        step = bidiagonal_solve(share.astype(coupling.dtype) * lax.stop_gradient(coupling), picard)
        largest = jnp.maximum(jnp.max(jnp.abs(x), initial=0), jnp.max(jnp.abs(image), initial=0))
        near = jnp.all(jnp.abs(step) <= _FARTHEST * largest, axis=-1, keepdims=True)
        following = problem.ravel(before + jnp.where(near, step, picard))
        return State(following, point.size, share), point.progress()

    def init(problem: FixedPointProblem, x: Vector) -> tuple[State, Progress]:
        return at(problem, x, jnp.asarray(jnp.inf, x.dtype), jnp.asarray(damping, x.dtype))

    def step(problem: FixedPointProblem, state: State, _: Goal) -> tuple[State, Progress]:
        return at(problem, *state)

    return Method(init, step, "recurrence")
