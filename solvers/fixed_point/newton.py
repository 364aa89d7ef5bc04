"""Inexact Newton-Krylov: Eisenstat-Walker forcing, line search, pseudo-transient continuation."""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core

from solvers.fixed_point.base import FixedPointProblem, Precondition, evaluate
from solvers.iterate import Goal, Method, Progress
from solvers.linear.base import SolverRecord
from solvers.linear.bicgstab import bicgstab
from solvers.linear.solve import Solver, resolve, solve_system
from solvers.mesh import constant, vary_like, while_loop
from solvers.settings import require_callable
from solvers.space import Vector, add, ratio, subtract

_HALVINGS = 3  # a Newton direction that needs shorter steps leads into a local minimum
_SUFFICIENT = 1e-4  # share of the predicted decrease that a step must deliver
_GROWTH = 4.0  # of the residual that continuation tolerates in one step
_LOOSEST, _GAMMA = 0.5, 0.9
_FAILURES = 3


class State(NamedTuple):
    x: Vector
    size: jax.Array  # ||f(x) - x||
    scale: jax.Array
    forcing: jax.Array  # relative tolerance of the next linear solve
    anchor: jax.Array  # residual at which continuation began; 0 while Newton serves
    failures: jax.Array  # int32, searches in a row that found no acceptable point


@dataclasses.dataclass(frozen=True, eq=False)
class Newton(Method):
    """Solves `(I - J) d = f(x) - x` for a step `x <- x + length d`, with products by `J` alone.

    A map that forward mode cannot pass (one with a `custom_vjp` or a callback in it) gets products
    by differences, `J v ~ (f(x + h v) - f(x)) / h`: an evaluation each, good to half the digits,
    which is enough for a direction.

    Args:
      linear: any linear solver (or its name), by default `bicgstab(max_steps=50)`. With
        `neumann(k)` this is the approximate inverse `P_k(J)` of the 2017 paper.
      forcing: relative tolerance of the linear solves: a number, or `"eisenstat_walker"`, which
        asks for `0.9 (||g_k|| / ||g_{k-1}||)^2`, so that early solves are loose and the end
        converges superlinearly, never tighter than the tolerance of the whole solve needs.
      line_search: safeguard the step. It is halved until `||f(x) - x||` falls; a point where that
        is not finite is never accepted. When three halvings do not help, the norm has a local
        minimum nearby, and the method changes to pseudo-transient continuation: implicit Euler
        steps of `dx/dt = f(x) - x`,

            ((1 + shift) I - J) d = f(x) - x,    shift = ||f(x) - x|| / ||that at the change||,

        which may climb out of it and become Newton steps again as the residual falls.
      precond: `(theta, x) -> (v -> M v)` with `M` close to `(I - J)^-1`;
        `solvers.precondition(bands)` makes one from bands.
    """

    linear: Solver | str | None = None
    forcing: float | str = "eisenstat_walker"
    line_search: bool = True
    precond: Precondition | None = None

    def __post_init__(self) -> None:
        solver = bicgstab(max_steps=50) if self.linear is None else resolve(self.linear)
        object.__setattr__(self, "linear", solver)
        require_callable("precond", self.precond)
        if not isinstance(self.line_search, bool):
            raise TypeError(f"line_search must be True or False, got {self.line_search!r}")
        number = isinstance(self.forcing, numbers.Real) and 0 <= self.forcing < 1
        if self.forcing != "eisenstat_walker" and not number:
            raise ValueError(
                f'forcing must be "eisenstat_walker" or a number in [0, 1), got {self.forcing!r}'
            )

    def init(self, problem: FixedPointProblem, x: Vector) -> tuple[State, Progress]:
        if problem.space.batch_axis is not None:
            raise ValueError("newton solves one problem at a time: use jax.vmap")
        point = evaluate(problem, x)
        forcing = _LOOSEST if isinstance(self.forcing, str) else self.forcing
        first = jnp.full_like(point.size, forcing)
        zero = jnp.zeros_like(point.size)
        failures = jnp.zeros_like(point.size, dtype=jnp.int32)
        return State(x, point.size, point.scale, first, zero, failures), point.progress()

    def step(self, problem: FixedPointProblem, state: State, goal: Goal) -> tuple[State, Progress]:
        d, cost = self._direction(problem, state, goal)
        space = problem.space
        fixed_x, fixed_d = lax.stop_gradient((state.x, d))
        continuing = state.anchor > 0

        def trial(length: jax.Array) -> tuple[jax.Array, tuple]:
            point = evaluate(problem, space.plus(fixed_x, length, fixed_d))
            decrease = 1 - _SUFFICIENT * length * (1 - state.forcing)
            limit = jnp.where(continuing, _GROWTH, decrease) * state.size
            accepted = jnp.isfinite(point.size) & (point.size <= jnp.maximum(limit, goal.residual))
            return accepted, (length, point.size, point.scale)

        one = constant(1, state.size)
        if not self.line_search:
            _, (_, size, scale) = trial(one)
            new = state._replace(x=add(state.x, d), size=size, scale=scale)
            trials = jnp.int32(1)
        else:
            accepted, (length, size, scale), trials = _backtrack(trial, one)
            new = State(
                space.plus(state.x, jnp.where(accepted, length, 0), d),
                jnp.where(accepted, size, state.size),
                jnp.where(accepted, scale, state.scale),
                state.forcing,
                # A search that fails (re)starts the continuation at the full shift.
                jnp.where(accepted, state.anchor, state.size),
                jnp.where(accepted, 0, state.failures + 1),
            )
        if isinstance(self.forcing, str):
            new = new._replace(forcing=_next_forcing(state, new.size))
        progress = Progress(new.x, new.size, new.scale, evaluations=cost + trials + 1)
        return new, progress._replace(broken=new.failures >= _FAILURES)

    def _direction(
        self, problem: FixedPointProblem, state: State, goal: Goal
    ) -> tuple[Vector, jax.Array]:
        space = problem.space
        rhs, product, exact = _linearised(problem, state.x)
        shift = ratio(state.size, state.anchor)
        enough = 0.5 * ratio(goal.residual, state.size)
        tolerance = jnp.clip(jnp.maximum(state.forcing, enough), 0.0, _LOOSEST)
        # What a linear solve closes over has to vary as its vectors do.
        shift, tolerance = vary_like((shift, tolerance), state.x)
        solver: Any = self.linear
        if isinstance(solver, SolverRecord) and not solver.truncated:
            solver = partial(solver, rtol=tolerance, unscaled=problem.unscaled)
        precond = self.precond and problem.precondition(self.precond, lax.stop_gradient(state.x))

        def matvec(v: Vector) -> Vector:
            return subtract(space.scale(shift, v), product(v))

        if exact:
            d, info = solve_system(matvec, rhs, solver, precond=precond, space=space)
        else:
            options = {} if space.mesh_axis is None else {"space": space}
            d, info = solver(matvec, rhs, None, precond, **options)
        return d, jnp.asarray(info.evaluations, jnp.int32)


def _linearised(
    problem: FixedPointProblem, x: Vector
) -> tuple[Vector, Callable[[Vector], Vector], bool]:
    """`f(x) - x` and products with its derivative: exact, or by differences.

    Differences are for maps that forward mode cannot pass.
    """
    if _forward_mode_passes(problem.defect, x):
        return *jax.linearize(problem.defect, x), True
    space, here = problem.space, problem.defect(x)
    eps = jnp.finfo(jax.tree.leaves(x)[0].dtype).eps

    def product(v: Vector) -> Vector:
        sizes = space.norms(x, v)
        h = jnp.sqrt(eps) * ratio(jnp.maximum(sizes[0], sizes[1]), sizes[1])
        near = problem.defect(space.plus(x, h, v))
        return space.scale(ratio(jnp.ones_like(h), h), subtract(near, here))

    return here, product, False


def _forward_mode_passes(function: Callable[[Vector], Vector], x: Vector) -> bool:
    """Whether a function has tangents: not those with a `custom_vjp` or a callback in them."""
    try:
        traced = jax.make_jaxpr(lambda x, v: jax.jvp(function, (x,), (v,))[1])(x, x)
    except (TypeError, ValueError, NotImplementedError):
        return False
    return not _has_reverse_only(traced.jaxpr)


def _has_reverse_only(jaxpr: core.Jaxpr) -> bool:
    # The tangent of a custom_vjp is left as a mark that only reverse mode can resolve.
    return any(
        equation.primitive.name == "custom_lin"
        or any(map(_has_reverse_only, _inner(equation.params)))
        for equation in jaxpr.eqns
    )


def _inner(params: Mapping[str, Any]) -> Iterator[core.Jaxpr]:
    """The programs within an equation; jax has a function for it from 0.10 on only."""
    for value in params.values():
        for item in value if isinstance(value, tuple | list) else (value,):
            if isinstance(item, core.Jaxpr | core.ClosedJaxpr):
                yield item.jaxpr if isinstance(item, core.ClosedJaxpr) else item


def _backtrack(
    trial: Callable[[jax.Array], tuple[jax.Array, Any]], length: jax.Array
) -> tuple[jax.Array, Any, jax.Array]:
    """Halves `length` until `trial(length) -> (accepted, result)` accepts, or as often as allowed.

    Returns `(accepted, result, trials)`; the result is that of the last trial.
    """

    def body(carry: tuple) -> tuple:
        length, _, _, trials = carry
        accepted, result = trial(0.5 * length)
        return 0.5 * length, accepted, result, trials + 1

    accepted, result = trial(length)
    _, accepted, result, trials = while_loop(
        lambda carry: ~carry[1] & (carry[3] <= _HALVINGS),
        body,
        (length, accepted, result, constant(1, length).astype(jnp.int32)),
    )
    return accepted, result, trials


def _next_forcing(state: State, size: jax.Array) -> jax.Array:
    """Eisenstat and Walker's second choice with its safeguard against tightening too fast."""
    forcing = _GAMMA * ratio(size, state.size) ** 2
    memory = _GAMMA * state.forcing**2
    forcing = jnp.where(memory > 0.1, jnp.maximum(forcing, memory), forcing)
    return jnp.minimum(forcing, _LOOSEST).astype(state.forcing.dtype)
