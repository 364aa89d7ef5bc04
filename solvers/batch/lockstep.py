"""A whole batch in its own layout, forwards and backwards.

`jax.vmap` moves the batch to the front of every array, and products with shared weights lose the
shape in which they are fast. Here the map sees `[time, batch, channels]` as it is; every example
still stops, fails and reports by itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from solvers import iterate
from solvers.adjoint.closure import Map
from solvers.adjoint.solution import solution
from solvers.bands import splitting_inverse
from solvers.batch.backward import SPACE, One, Sweeps, TogetherBackward
from solvers.batch.rows import Clear, Rows, in_groups
from solvers.fixed_point.banded import Banded, Sweep
from solvers.fixed_point.base import FixedPointProblem, Stage
from solvers.fixed_point.forward import Forward, Limits, combine
from solvers.fixed_point.newton import Newton
from solvers.info import Info
from solvers.iterate import Method
from solvers.settings import Settings
from solvers.space import Tree, Vector, add, cast_like, require_real, subtract, zeros_like
from solvers.verdict import relative


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
        problem = task.problem._replace(space=SPACE)
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
        rows, one = self.rows, One(self.one.f, self.rows, self.sweep)
        stop = self.one.limits.stop(tolerances, self.rescue)

        def solve(operands: tuple, x: Vector, before: Info) -> tuple[Vector, Info]:
            newton = Newton(precond=lambda _, x: one.inverse(operands, x))
            problem = FixedPointProblem(
                lambda x: one(operands, x), lambda x: subtract(one(operands, x), x), None
            )
            x, later = iterate.run(iterate.Task(newton, problem, x, stop))
            return x, combine(before, later)

        def some(index: jax.Array | None, x: Vector, before: Info) -> tuple[Vector, Info]:
            axes = (rows.in_axes, 1, 0)
            return jax.vmap(solve, axes, (1, 0))(rows.take(operands, index), x, before)

        return in_groups(some, *result, axis=1)


@dataclasses.dataclass(frozen=True, eq=False)
class Finish(Settings):
    """`(operands, x, f(x), Info) -> (x, Info)`: a sweep more, from an evaluation that is there."""

    f: Map
    sweep: Callable

    def __call__(self, operands: tuple, x: Vector, image: Vector, info: Info) -> tuple:
        gap = subtract(image, x)
        sizes = SPACE.norms(x, image, gap)
        bands = self.sweep(self.f.theta(operands), x)[1]
        step = splitting_inverse(bands)(gap)
        usable = info.converged & SPACE.all(jax.tree.map(jnp.isfinite, step))
        residual = relative(sizes[2], jnp.maximum(sizes[0], sizes[1]))
        info = info._replace(
            steps=info.steps + jnp.where(info.converged, 1, 0) + usable,
            residual=jnp.where(usable, residual, info.residual),
            evaluations=info.evaluations + 1,
        )
        return add(x, SPACE.where(usable, step, zeros_like(step))), info
