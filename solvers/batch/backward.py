"""Backwards through a batch in its own layout: sweeps with the transposed bands."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from solvers import iterate
from solvers.adjoint import Adjoint
from solvers.adjoint.closure import Map
from solvers.adjoint.system import System, transposed_solve
from solvers.bands import splitting_inverse
from solvers.batch.rows import Rows, in_groups, taken
from solvers.batch.truncated import SPACE, extrapolated, plain
from solvers.fixed_point.forward import combine
from solvers.info import Info
from solvers.linear import bicgstab
from solvers.linear.base import LinearProblem, LinearSolver
from solvers.linear.richardson import Richardson, richardson
from solvers.linear.solve import OnFailure, check_policy
from solvers.settings import Settings, require_count, require_number
from solvers.space import Vector, cast_like, subtract, zeros_like
from solvers.verdict import Stop, recheck


@dataclasses.dataclass(frozen=True, eq=False)
class Sweeps(Settings):
    """The backward solve by sweeps with the transposed bands.

    Attributes:
      rtol: tolerance.
      steps: take so many sweeps instead (a truncated banded Neumann series). It fails where what is
        left grows from sweep to sweep. Of three and more the residual that is reported is the one
        before the last sweep: it costs no product of its own.
      extrapolated: of truncated sweeps: in place of their sum, the combination of them that leaves
        the least residual, and the last sweep from there. The products are the same; memory for
        `steps` vectors. For a few sweeps: in float32 more of them come no nearer than 1e-4.
      max_steps: limit, if not truncated.
      on_failure: what an example whose solve fails gets: its best iterate, zero, or NaN.
      rescue: go on by BiCGSTAB, preconditioned by the bands, with the examples that have not
        converged, a few at a time.
    """

    rtol: float | None = None
    steps: int | None = None
    extrapolated: bool = False
    max_steps: int = 200
    on_failure: OnFailure = "best"
    rescue: bool = False

    def __post_init__(self) -> None:
        check_policy(self.on_failure)
        require_number("rtol", self.rtol)
        require_count("max_steps", self.max_steps)
        if self.steps is not None:
            require_count("steps", self.steps, 1)
            if self.rescue:
                raise ValueError("truncated sweeps are what they are: leave out steps, or rescue")
        if self.extrapolated and (self.steps is None or self.steps < 2):
            raise ValueError(f"extrapolated takes steps of 2 or more, got {self.steps}")

    def adjoint(self) -> Adjoint:
        """What the backward solve is judged by."""
        steps = self.max_steps if self.steps is None else self.steps
        linear = richardson(self.rtol, max_steps=steps, truncated=self.steps is not None)
        return Adjoint("sweeps", "reverse", linear, self.on_failure)


@dataclasses.dataclass(frozen=True)
class One:
    """The map of one example, from that of a batch: a batch of one."""

    f: Map
    rows: Rows
    sweep: Callable

    def _swept(self, operands: tuple, x: Vector) -> tuple[Vector, Any]:
        arrays = [
            leaf if axis is None else jnp.expand_dims(leaf, axis)
            for leaf, axis in zip(operands[0], self.rows.axes, strict=True)
        ]
        wide = jax.tree.map(lambda leaf: leaf[:, None], x)
        found = self.sweep(self.f.theta((arrays, operands[1])), wide)
        return jax.tree.map(lambda leaf: leaf[:, 0], found)

    def __call__(self, operands: tuple, x: Vector) -> Vector:
        return cast_like(self._swept(operands, x)[0], x)

    def inverse(self, operands: tuple, x: Vector) -> Callable[[Vector], Vector]:
        """`v -> (I - B)^-1 v`."""
        return splitting_inverse(self._swept(*lax.stop_gradient((operands, x)))[1])


@dataclasses.dataclass(frozen=True, eq=False)
class TogetherBackward(Settings):
    """`(operands, x, cotangent, status, memory) -> (w, Info)` by transposed sweeps."""

    f: Map
    settings: Sweeps
    accelerated: bool
    sweep: Callable
    rows: Rows | None
    throw: bool = False

    def __call__(
        self, operands: tuple, x: Vector, cotangent: Vector, status: jax.Array, memory: Any
    ) -> tuple[Vector, Info]:
        adjoint = self.settings.adjoint()
        system = System.of(self.f, operands, x, adjoint)
        fixed, fixed_x = lax.stop_gradient((operands, x))
        inverse = splitting_inverse(self.sweep(self.f.theta(fixed), fixed_x)[1])
        transposed = jax.linear_transpose(inverse, x)

        def solve(matvec: Callable, rhs: Vector) -> tuple[Vector, Info]:
            w, info = self._sweeps(lambda v: transposed(v)[0], matvec, rhs)
            if self.settings.rescue:
                w, info = iterate.skip_if(
                    jnp.all(info.converged),
                    lambda before: self._rescued(fixed, fixed_x, rhs, before),
                    (w, info),
                )
            return w, info

        def runner(matvec: Callable, rhs: Vector, **_: Any) -> tuple[Vector, Info]:
            untransposed = partial(self._sweeps, inverse)
            return lax.custom_linear_solve(matvec, rhs, solve, untransposed, has_aux=True)

        return transposed_solve(
            system, cotangent, adjoint, status, runner=runner, space=SPACE, throw=self.throw
        )

    def _sweeps(self, inverse: Callable, matvec: Callable, rhs: Vector) -> tuple[Vector, Info]:
        """`matvec(w) = rhs` by sweeps `w <- w + inverse(rhs - matvec(w))`."""
        unit = SPACE.unit(rhs)
        target = SPACE.scale(1 / unit, rhs)
        size = SPACE.length(target)
        rtol = richardson(self.settings.rtol).tolerance(rhs)
        if self.settings.steps is not None:
            series = extrapolated if self.settings.extrapolated else plain
            w, info = series(matvec, inverse, target, size, self.settings.steps)
            info = info._replace(status=recheck(info.status, info.residual, rtol))
            return SPACE.scale(unit, SPACE.finite(w)), info
        problem = LinearProblem(lambda y: matvec(inverse(y)), None, target, size, SPACE)
        stop = Stop(rtol, 0.0, self.settings.max_steps)
        method = Richardson(accelerated=self.accelerated)
        y, info = iterate.run(iterate.Task(method, problem, zeros_like(target), stop))
        return SPACE.scale(unit, SPACE.finite(inverse(y))), info

    def _rescued(
        self, operands: tuple, x: Vector, rhs: Vector, result: tuple
    ) -> tuple[Vector, Info]:
        assert self.rows is not None
        rows, one = self.rows, One(self.f, self.rows, self.sweep)
        solver: LinearSolver = bicgstab(rtol=self.settings.rtol)

        def solve(operands: tuple, x: Vector, rhs: Vector, w: Vector, before: Info) -> tuple:
            pull = jax.vjp(lambda x: one(operands, x), x)[1]
            undo = jax.linear_transpose(one.inverse(operands, x), x)
            w, later = solver(
                lambda w: subtract(w, pull(w)[0]), rhs, w, lambda v: undo(v)[0], unscaled=True
            )
            return w, combine(before, later)

        def some(index: jax.Array | None, w: Vector, before: Info) -> tuple[Vector, Info]:
            at, c = taken((x, rhs), index, 1)
            axes = (rows.in_axes, 1, 1, 1, 0)
            return jax.vmap(solve, axes, (1, 0))(rows.take(operands, index), at, c, w, before)

        return in_groups(some, *result, axis=1)
