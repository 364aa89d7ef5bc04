"""The forward program of a solve: a stop rule, and methods that follow one another."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from solvers import adjoint as adjoints
from solvers import iterate
from solvers.adjoint.closure import Map as ClosedMap
from solvers.adjoint.given import slope
from solvers.fixed_point.base import FixedPointProblem, Stage, evaluate
from solvers.info import Info, Status
from solvers.settings import Settings, require_count, require_number
from solvers.space import Space, Tree, Vector, epsilon
from solvers.verdict import Stop, relative


@dataclasses.dataclass(frozen=True, eq=False)
class Limits(Settings):
    """The stop rule but for its tolerances, which may be traced."""

    floor: float
    max_steps: int
    patience: int | None
    blowup: float | None
    trace: int
    record: tuple[int, ...]

    @classmethod
    def of(
        cls,
        x0: Tree,
        rtol: Any,
        atol: Any,
        max_steps: int,
        patience: int | None = 60,
        blowup: float | None = 1e6,
        trace: int = 0,
        record: Sequence[int] = (),
    ) -> tuple[Limits, tuple]:
        """What the user gave, checked and with its defaults: limits and tolerances."""
        eps = epsilon(x0)
        require_number("rtol", rtol)
        require_number("atol", atol)
        require_number("blowup", blowup, 1.0)
        require_count("max_steps", max_steps)
        require_count("trace", trace)
        if patience is not None:
            require_count("patience", patience, 1)
        for number in record:
            require_count("record", number)
        rtol = eps ** (2 / 3) if rtol is None else rtol
        limits = cls(eps**2, max_steps, patience, blowup, trace, tuple(record))
        return limits, (rtol, atol)

    def stop(self, tolerances: tuple, max_steps: int) -> Stop:
        """When a loop of at most so many steps ends."""
        return Stop(
            rtol=tolerances[0],
            atol=tolerances[1],
            max_steps=max_steps,
            patience=self.patience,
            blowup=self.blowup,
            trace=self.trace,
            floor=self.floor,
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Forward(Settings):
    """`(operands, x0, tolerances) -> (x, Info, memory)`: the stages, one after the other.

    Attributes:
      f: the map.
      stages: methods and the most steps each may take.
      dtypes: of the user's trees.
      unrolled: make a program through which reverse mode can pass; `segment` as in `bptt`.
      inverse: return the approximate inverse that the last method ends with.
      mesh_axis: of the mesh, over which states are spread.
    """

    f: ClosedMap
    stages: tuple[Stage, ...]
    dtypes: tuple[str, ...]
    limits: Limits
    norm: Callable | None
    unrolled: bool
    segment: int | None
    inverse: bool
    mesh_axis: str | None

    @classmethod
    def of(
        cls,
        f: ClosedMap,
        stages: tuple[Stage, ...],
        limits: Limits,
        x0: Tree,
        adjoint: adjoints.Adjoint,
        norm: Callable | None = None,
        mesh_axis: str | None = None,
    ) -> Forward:
        return cls(
            f,
            stages,
            tuple(str(leaf.dtype) for leaf in jax.tree.leaves(x0)),
            dataclasses.replace(limits, max_steps=limits.max_steps - (adjoint.steps or 0)),
            norm,
            unrolled=adjoint.mode == "unroll" and adjoint.steps is None,
            segment=adjoint.checkpoint,
            inverse=adjoint.precond == "forward",
            mesh_axis=mesh_axis,
        )

    def __call__(self, operands: tuple, x0: Vector, tolerances: tuple) -> tuple:
        def solve(task: iterate.Task) -> tuple:
            loop = iterate.begin(task)
            if self.unrolled:
                last = iterate.unroll(task, loop, self.segment)
            else:
                last = iterate.resume(task, loop)
            return *iterate.outcome(task, last), last.state.inverse if self.inverse else None

        first, *later = self.tasks(operands, x0, tolerances)
        result = solve(first)
        for task in later:

            def proceed(before: tuple, task: iterate.Task = task) -> tuple:
                x, latest, memory = solve(task._replace(start=before[0]))
                return x, combine(before[1], latest), memory

            if self.unrolled or self.inverse:
                result = proceed(result)
            else:
                result = iterate.skip_if(result[1].converged, proceed, result)
        return result

    def tasks(self, operands: tuple, x0: Vector, tolerances: tuple) -> list[iterate.Task]:
        """One task per stage, all from `x0`."""
        problem = self.problem(operands)
        if self.f.root:
            problem, atol = _rooted(problem, x0, tolerances[1])
            tolerances = (tolerances[0], atol)
        result: list[iterate.Task] = []
        left = self.limits.max_steps
        for stage in self.stages:
            allowed = left if stage.max_steps is None else min(stage.max_steps, left)
            stop = self.limits.stop(tolerances, allowed)
            result.append(iterate.Task(stage.method, problem, x0, stop, self.limits.record))
            left -= allowed
        return result

    def judged(self, operands: tuple, x0: Vector, x: Vector, tolerances: tuple) -> tuple:
        """The relative residual at a point, and whether it meets the tolerance."""
        task = self.tasks(operands, x0, tolerances)[0]
        point = evaluate(task.problem, x)
        rtol, atol = task.stop.rtol, 0.0 if task.stop.atol is None else task.stop.atol
        met = point.size <= jnp.maximum(rtol * point.scale, atol)
        return relative(point.size, point.scale, rtol, atol), met

    def problem(self, operands: tuple) -> FixedPointProblem:
        """The equation, as a method sees it."""

        def user(x: Vector) -> Tree:
            leaves, structure = jax.tree.flatten(x)
            pairs = zip(leaves, self.dtypes, strict=True)
            return jax.tree.unflatten(structure, [leaf.astype(dtype) for leaf, dtype in pairs])

        norm = None
        if self.norm is not None:
            norm = lambda x: jax.lax.stop_gradient(self.norm(user(x)))  # noqa: E731
        return FixedPointProblem(
            lambda x: self.f(operands, x),
            lambda x: self.f.defect(operands, x),
            self.f.theta(operands),
            user,
            Space(mesh_axis=self.mesh_axis),
            norm,
            unscaled=not self.f.root,
        )


def _rooted(problem: FixedPointProblem, x0: Vector, atol: Any) -> tuple[FixedPointProblem, Any]:
    """A problem whose residuals are relative to the first one: `g` has units of its own.

    A start at the root leaves nothing to be relative to: there, `g` is zero when it is as small as
    its change over the rounding of `x`.
    """
    here = problem.defect(x0)
    first = problem.size(here)
    if atol is None:
        eps = float(jnp.finfo(first.dtype).eps)
        atol = 4 * eps * slope(problem.defect, x0, here, problem.size)
    return problem._replace(reference=first), atol


def combine(first: Info, second: Info) -> Info:
    """The `Info` of two stages that followed one another.

    A start that was not finite stays visible: a later stage begins from its finite part.
    """
    trace, iterates = None, None
    if first.trace is not None and second.trace is not None:
        position = jnp.arange(first.trace.size)
        later = jnp.clip(position - first.steps, 0, first.trace.size - 1)
        trace = jnp.where(position <= first.steps, first.trace, second.trace[later])
    if first.iterates is not None:
        iterates = second.iterates
    return second._replace(
        steps=first.steps + second.steps,
        evaluations=first.evaluations + second.evaluations,
        status=jnp.where(
            (first.status == Status.NONFINITE) & (first.steps == 0), first.status, second.status
        ),
        trace=trace,
        iterates=iterates,
    )
