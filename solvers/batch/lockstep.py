"""A whole batch in its own layout, forwards and backwards.

`jax.vmap` moves the batch to the front of every array, and products with shared weights lose the
shape in which they are fast. Here the map sees `[time, batch, channels]` as it is; every example
still stops, fails and reports by itself.
"""

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
from solvers.adjoint.solution import solution
from solvers.adjoint.system import System, transposed_solve
from solvers.bands import splitting_inverse
from solvers.batch.rows import Clear, Rows, in_groups
from solvers.fixed_point.banded import Banded, Sweep
from solvers.fixed_point.base import FixedPointProblem, Stage
from solvers.fixed_point.forward import Forward, Limits, combine
from solvers.fixed_point.newton import Newton
from solvers.info import Info
from solvers.iterate import Method
from solvers.linear import bicgstab
from solvers.linear.base import LinearProblem, LinearSolver
from solvers.linear.richardson import Richardson, richardson
from solvers.linear.solve import OnFailure, check_policy
from solvers.mesh import constant
from solvers.settings import Settings, require_count, require_number
from solvers.space import Space, Tree, Vector, add, cast_like, require_real, subtract, zeros_like
from solvers.verdict import Stop, of_remainder, recheck, relative

_SPACE = Space(batch_axis=1)


@dataclasses.dataclass(frozen=True, eq=False)
class Sweeps(Settings):
    """The backward solve by sweeps with the transposed bands.

    Attributes:
      rtol: tolerance.
      steps: take so many sweeps instead (a truncated banded Neumann series). It fails where what is
        left grows from sweep to sweep. Of three and more the residual that is reported is the one
        before the last sweep: it costs no product of its own.
      max_steps: limit, if not truncated.
      on_failure: what an example whose solve fails gets: its best iterate, zero, or NaN.
      rescue: go on by BiCGSTAB, preconditioned by the bands, with the examples that have not
        converged, a few at a time.
    """

    rtol: float | None = None
    steps: int | None = None
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

    def adjoint(self) -> Adjoint:
        """What the backward solve is judged by."""
        steps = self.max_steps if self.steps is None else self.steps
        linear = richardson(self.rtol, max_steps=steps, truncated=self.steps is not None)
        return Adjoint("sweeps", "reverse", linear, self.on_failure)


def lockstep(
    sweep: Sweep,
    theta: Any,
    x0: Tree,
    *,
    in_axes: Any = None,
    method: Method | None = None,
    backward: Sweeps | None = None,
    rescue: int = 0,
    accelerated: bool = True,
    free_sweeps: bool = False,
    rtol: float | jax.Array | None = None,
    atol: float | jax.Array | None = None,
    max_steps: int = 200,
    probe: Info | None = None,
    throw: bool = False,
) -> tuple[Tree, Info]:
    """Solves `x = f(theta, x)` for a batch, by banded splitting or any method that can serve one.

    Args:
      sweep: `(theta, x) -> (f(theta, x), Bands)` for the whole batch; no example may depend on
        another.
      theta: parameters, any pytree.
      x0: starts, each leaf `[time, batch, channels]`.
      in_axes: for every leaf of `theta` (or a prefix tree), the axis of its examples, or None where
        they share it. `rescue` and `on_failure="zero"` have to know.
      method: in place of `banded(sweep=sweep)`: `picard`, `anderson` or `broyden`. (`newton` and
        `recurrence` solve one problem at a time.)
      backward: settings of the backward solve.
      rescue: the most steps of Newton's method, preconditioned by the bands, for the examples that
        have not converged, a few at a time. Costs nothing when all have.
      accelerated: sweeps with secant steps (`solvers.banded`), in both directions.
      free_sweeps: go on by the two sweeps that cost nothing: that of the iterate which met the
        tolerance, and one by the evaluation through which gradients pass. Both count as steps. The
        residual before the last one is reported, and gradients are those at the point where it is
        measured. For training, with a loose tolerance.
      rtol, atol, max_steps, throw: as for `fixed_point`, per example.
      probe: `solvers.adjoint_probe((batch,))`.

    Returns:
      Values like `x0`, and an `Info` of arrays `[batch]`.
    """
    x0 = require_real(x0, "x0")
    leaves = jax.tree.leaves(x0)
    if len({leaf.shape[:2] for leaf in leaves}) != 1 or any(leaf.ndim != 3 for leaf in leaves):
        raise ValueError(
            f"x0 needs leaves [time, batch, channels], got shapes {[leaf.shape for leaf in leaves]}"
        )
    settings = backward or Sweeps()
    rows = None if in_axes is None else Rows.of(theta, in_axes)
    if rows is None and (rescue or settings.rescue or settings.on_failure == "zero"):
        raise ValueError(
            "lockstep has to know what belongs to which example: pass in_axes, the axis of the "
            "examples in every leaf of theta"
        )
    if free_sweeps and method is not None:
        raise ValueError("free_sweeps go on by sweeps: leave out the method")
    limits, tolerances = Limits.of(x0, rtol, atol, max_steps)
    stages = (Stage(method or Banded(sweep=sweep, accelerated=accelerated)),)
    adjoint = settings.adjoint()
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), x0)

    def swept(theta: Any, x: Vector) -> tuple[Tree, Any]:
        return sweep(theta, cast_like(x, shapes))

    return solution(
        lambda theta, x: sweep(theta, x)[0],
        theta,
        x0,
        adjoint=adjoint,
        forward=lambda f: Together(
            Forward.of(f, stages, limits, x0, adjoint), swept, rows, rescue, free_sweeps
        ),
        backward=lambda f: TogetherBackward(f, settings, accelerated, swept, rows, throw),
        finish=(lambda f: Finish(f, swept)) if free_sweeps else None,
        clean=(lambda f: Clear(f, rows, axis=1)) if rows is not None else None,
        tolerances=tolerances,
        probe=probe,
        throw=throw,
    )


@dataclasses.dataclass(frozen=True, eq=False)
class Together(Settings):
    """`(operands, x0, tolerances) -> (x, Info, None)`, and Newton for what is left."""

    one: Forward
    sweep: Callable
    rows: Rows | None
    rescue: int
    go_on: bool

    def __call__(self, operands: tuple, x0: Vector, tolerances: tuple) -> tuple:
        (task,) = self.one.tasks(operands, x0, tolerances)
        problem = task.problem._replace(space=_SPACE)
        result = iterate.run(task._replace(problem=problem, go_on=self.go_on))
        if self.rescue:
            result = iterate.skip_if(
                jnp.all(result[1].converged),
                lambda before: self._rescued(operands, before, tolerances),
                result,
            )
        return *result, None

    def _rescued(self, operands: tuple, result: tuple, tolerances: tuple) -> tuple[Vector, Info]:
        assert self.rows is not None
        rows, one = self.rows, _One(self.one.f, self.rows, self.sweep)
        stop = self.one.limits.stop(tolerances, self.rescue)

        def solve(operands: tuple, x: Vector, before: Info) -> tuple[Vector, Info]:
            newton = Newton(precond=lambda _, x: one.inverse(operands, x))
            problem = FixedPointProblem(
                lambda x: one(operands, x), lambda x: subtract(one(operands, x), x), None
            )
            x, later = iterate.run(iterate.Task(newton, problem, x, stop))
            return x, combine(before, later)

        def some(index: jax.Array, x: Vector, before: Info) -> tuple[Vector, Info]:
            axes = (rows.in_axes, 1, 0)
            return jax.vmap(solve, axes, (1, 0))(rows.take(operands, index), x, before)

        return in_groups(some, *result, axis=1)


@dataclasses.dataclass(frozen=True)
class _One:
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
            system, cotangent, adjoint, status, runner=runner, space=_SPACE, throw=self.throw
        )

    def _sweeps(self, inverse: Callable, matvec: Callable, rhs: Vector) -> tuple[Vector, Info]:
        """`matvec(w) = rhs` by sweeps `w <- w + inverse(rhs - matvec(w))`."""
        unit = _SPACE.unit(rhs)
        target = _SPACE.scale(1 / unit, rhs)
        size = _SPACE.norm(target)
        rtol = richardson(self.settings.rtol).tolerance(rhs)
        if self.settings.steps is not None:
            w, info = _truncated(matvec, inverse, target, size, self.settings.steps, rtol)
            return _SPACE.scale(unit, _SPACE.finite(w)), info
        problem = LinearProblem(lambda y: matvec(inverse(y)), None, target, size, _SPACE)
        stop = Stop(rtol, 0.0, self.settings.max_steps)
        method = Richardson(accelerated=self.accelerated)
        y, info = iterate.run(iterate.Task(method, problem, zeros_like(target), stop))
        return _SPACE.scale(unit, _SPACE.finite(inverse(y))), info

    def _rescued(
        self, operands: tuple, x: Vector, rhs: Vector, result: tuple
    ) -> tuple[Vector, Info]:
        assert self.rows is not None
        rows, one = self.rows, _One(self.f, self.rows, self.sweep)
        solver: LinearSolver = bicgstab(rtol=self.settings.rtol)

        def solve(operands: tuple, x: Vector, rhs: Vector, w: Vector, before: Info) -> tuple:
            pull = jax.vjp(lambda x: one(operands, x), x)[1]
            undo = jax.linear_transpose(one.inverse(operands, x), x)
            w, later = solver(
                lambda w: subtract(w, pull(w)[0]), rhs, w, lambda v: undo(v)[0], unscaled=True
            )
            return w, combine(before, later)

        def some(index: jax.Array, w: Vector, before: Info) -> tuple[Vector, Info]:
            at, c = jax.tree.map(lambda leaf: jnp.take(leaf, index, axis=1), (x, rhs))
            axes = (rows.in_axes, 1, 1, 1, 0)
            return jax.vmap(solve, axes, (1, 0))(rows.take(operands, index), at, c, w, before)

        return in_groups(some, *result, axis=1)


def _truncated(
    matvec: Callable, inverse: Callable, target: Vector, size: jax.Array, sweeps: int, rtol: Any
) -> tuple[Vector, Info]:
    """A fixed number of sweeps. In a row, not a loop, XLA linearises anew in every one of them."""

    def norm(rest: Vector) -> jax.Array:  # the target is of order one: squares are in range
        return jnp.sqrt(_SPACE.dot(*lax.stop_gradient((rest, rest))))

    def sweep(_: jax.Array, carry: tuple) -> tuple:
        w, _, residual = carry
        rest = subtract(target, matvec(w))
        return add(w, inverse(rest)), residual, norm(rest)

    start = inverse(target), size, size
    w, before, residual = lax.fori_loop(0, sweeps - 1, sweep, start)
    short = sweeps < 3
    if short:
        before, residual = residual, norm(subtract(target, matvec(w)))
    before, residual = relative(before, size), relative(residual, size)
    # What is left may exceed what was there at first and still be on its way down.
    status = recheck(of_remainder(residual / jnp.maximum(before, 1), 0.0), residual, rtol)
    steps = constant(sweeps, jnp.isnan(size).astype(jnp.int32))  # on the devices of the batch
    return w, Info(steps, residual, status, steps if short else steps - 1)


@dataclasses.dataclass(frozen=True, eq=False)
class Finish(Settings):
    """`(operands, x, f(x), Info) -> (x, Info)`: a sweep more, from an evaluation that is there."""

    f: Map
    sweep: Callable

    def __call__(self, operands: tuple, x: Vector, image: Vector, info: Info) -> tuple:
        gap = subtract(image, x)
        sizes = _SPACE.norms(x, image, gap)
        bands = self.sweep(self.f.theta(operands), x)[1]
        step = splitting_inverse(bands)(gap)
        usable = info.converged & jnp.isfinite(_SPACE.norm(step))
        residual = relative(sizes[2], jnp.maximum(sizes[0], sizes[1]))
        info = info._replace(
            steps=info.steps + jnp.where(info.converged, 1, 0) + usable,
            residual=jnp.where(usable, residual, info.residual),
            evaluations=info.evaluations + 1,
        )
        return add(x, _SPACE.where(usable, step, zeros_like(step))), info
