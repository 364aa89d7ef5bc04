"""`root`: solve `g(theta, x) = 0` by any method for fixed points, or within a bracket."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from solvers import adjoint as adjoints
from solvers.fixed_point.base import Cascade, FixedPointProblem, Map, evaluate
from solvers.fixed_point.solve import solve_equation
from solvers.info import Info
from solvers.iterate import Goal, Method, Progress
from solvers.mesh import vary_with
from solvers.settings import require_number
from solvers.space import Tree, Vector


def root(
    g: Map,
    theta: Any,
    x0: Tree,
    *,
    method: Method | Cascade | str = "newton",
    adjoint: adjoints.Adjoint | str = "implicit",
    rtol: float | jax.Array | None = None,
    atol: float | jax.Array | None = None,
    max_steps: int = 200,
    probe: Info | None = None,
    trace: int = 0,
    patience: int | None = 60,
    blowup: float | None = 1e6,
    norm: Callable[[Tree], jax.Array] | None = None,
    has_aux: bool = False,
    throw: bool = False,
) -> tuple[Any, Info]:
    """Solves `g(theta, x) = 0` from `x0`.

    The equation is `x = x - g(theta, x)`, with products by `dg/dx` and never its matrix; every
    method and adjoint for fixed points serves. `picard(damping)` is `x <- x - damping g`.

    Args:
      g: `g(theta, x)` has the structure and shapes of `x`. It may close over anything.
      theta: parameters, any pytree.
      x0: where to start: a pytree of real floating-point arrays.
      method: a method, a cascade or the name of one; `bracket(lower, upper)` for a scalar.
      adjoint: how gradients pass, or its name: `(dg/dx)^T w = c` is what the exact ones solve.
      rtol, atol: stop at `||g(x)|| <= max(rtol ||g(x0)||, atol)`. By default `rtol` is the 2/3
        power of the rounding unit, and `atol` what rounding of `x0` makes of `g`.
      max_steps, probe, trace, patience, blowup, norm, throw: as for `fixed_point`.
      has_aux: `g` returns `(value, aux)`; `aux` at the root is returned beside it.

    Returns:
      The best iterate, or `(iterate, aux)`; and its `Info`, with residuals relative to `g(x0)`.

    >>> x, info = root(lambda a, x: x**2 - a, 2.0, jnp.ones(()))
    >>> print(f"{x:.4f}", bool(info.converged))
    1.4142 True
    """
    return solve_equation(
        g,
        theta,
        x0,
        method=method,
        adjoint=adjoint,
        tolerances=(rtol, atol),
        probe=probe,
        norm=norm,
        has_aux=has_aux,
        throw=throw,
        root=True,
        max_steps=max_steps,
        patience=patience,
        blowup=blowup,
        trace=trace,
    )


class State(NamedTuple):
    low: jax.Array
    high: jax.Array
    at_low: jax.Array  # g there, scaled down when that end has stayed
    at_high: jax.Array
    side: jax.Array  # which end moved last: -1, 0, 1
    before: jax.Array  # width of the bracket a step ago
    earlier: jax.Array  # width two steps ago
    unit: jax.Array  # residual at the start over the width there


@dataclasses.dataclass(frozen=True, eq=False)
class Bracket(Method):
    """The root of a scalar equation between two points at which `g` has different signs.

    False position in the Illinois form, with a bisection whenever two steps have not halved the
    bracket: never worse than twice bisection, and superlinear near a simple root. Ends as BREAKDOWN
    where the signs at the ends are the same, or the bracket is as small as rounding lets it be and
    the residual is not (a pole or a jump).

    Args:
      lower, upper: the ends; numbers or scalar arrays.
    """

    lower: float | jax.Array
    upper: float | jax.Array

    unrollable = False

    def __post_init__(self) -> None:
        require_number("lower", self.lower, -math.inf)
        require_number("upper", self.upper, -math.inf)

    def init(self, problem: FixedPointProblem, x: Vector) -> tuple[State, Progress]:
        if not isinstance(x, jax.Array) or x.ndim:
            raise ValueError("a bracket holds the root of a scalar equation: x0 must be a scalar")
        ends = (jnp.asarray(end, x.dtype) for end in (self.lower, self.upper))
        low, high = (vary_with(end, x) for end in ends)
        at_low, at_high = (-evaluate(problem, end).step for end in (low, high))
        point, width = evaluate(problem, x), jnp.abs(high - low)
        unit = point.size / jnp.where(width > 0, width, 1)
        state = State(low, high, at_low, at_high, jnp.int32(0), 4 * width, 4 * width, unit)
        best = jnp.where(jnp.abs(at_low) < jnp.abs(at_high), low, high)
        size = jnp.minimum(jnp.abs(at_low), jnp.abs(at_high))
        ends = size <= point.size
        return state, Progress(
            jnp.where(ends, best, x), jnp.where(ends, size, point.size), point.scale, 3
        )

    def step(self, problem: FixedPointProblem, state: State, _: Goal) -> tuple[State, Progress]:
        low, high, at_low, at_high, side, before, earlier, unit = state
        width = jnp.abs(high - low)
        gap = at_high - at_low
        middle = 0.5 * (low + high)
        secant = high - at_high * (high - low) / jnp.where(gap == 0, 1, gap)
        inside = (secant > jnp.minimum(low, high)) & (secant < jnp.maximum(low, high))
        slow = width > 0.5 * earlier
        x = jnp.where(inside & ~slow & (gap != 0), secant, middle)
        point = evaluate(problem, x)
        value = -point.step
        left = jnp.sign(value) == jnp.sign(at_low)  # the root lies on the other side
        new = State(
            jnp.where(left, x, low),
            jnp.where(left, high, x),
            # An end that stays twice counts half: the next secant falls on its side.
            jnp.where(left, value, jnp.where(side == 1, 0.5 * at_low, at_low)),
            jnp.where(left, jnp.where(side == -1, 0.5 * at_high, at_high), value),
            jnp.where(left, -1, 1).astype(jnp.int32),
            width,
            before,
            unit,
        )
        eps = jnp.finfo(x.dtype).eps
        shut = width <= 2 * eps * jnp.maximum(jnp.abs(low), jnp.abs(high))
        same = jnp.sign(at_low) * jnp.sign(at_high) > 0
        # Residuals may grow on the way; what falls is the width.
        monitor = unit * jnp.abs(new.high - new.low)
        return new, point.progress()._replace(broken=shut | same, monitor=monitor)
