"""`fixed_point`: solve `x = f(theta, x)` and let gradients pass."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from solvers import adjoint as adjoints
from solvers import iterate
from solvers.adjoint.closure import Map as ClosedMap
from solvers.adjoint.closure import shape_of
from solvers.adjoint.given import slope
from solvers.adjoint.solution import solution
from solvers.adjoint.system import Backward
from solvers.fixed_point.base import Cascade, FixedPointProblem, Map, Stage
from solvers.fixed_point.broyden import Broyden
from solvers.info import Info, Status, require_converged
from solvers.settings import Settings, require_count, require_number
from solvers.space import (
    Space,
    Tree,
    Vector,
    cast_like,
    epsilon,
    require_like,
    require_real,
)
from solvers.verdict import Stop


def fixed_point(
    f: Map,
    theta: Any,
    x0: Tree,
    *,
    method: iterate.Method | Cascade | str = "auto",
    adjoint: adjoints.Adjoint | str = "implicit",
    rtol: float | jax.Array | None = None,
    atol: float | jax.Array | None = None,
    max_steps: int = 200,
    probe: Info | None = None,
    trace: int = 0,
    patience: int | None = 60,
    blowup: float | None = 1e6,
    norm: Callable[[Tree], jax.Array] | None = None,
    record: Sequence[int] = (),
    has_aux: bool = False,
    throw: bool = False,
    mesh_axis: str | None = None,
) -> tuple[Any, Info]:
    """Solves `x = f(theta, x)` from `x0`.

    Args:
      f: the map; `f(theta, x)` has the structure and shapes of `x`. It may close over anything:
        arrays that are being differentiated, an example's data under `vmap`, integers, keys.
      theta: parameters, any pytree; leaves that are no numbers reach `f` as they are.
      x0: where to start: a pytree of real floating-point arrays.
      method: a method, a cascade or the name of one (`solvers.METHODS`).
      adjoint: how gradients pass, or its name (`solvers.adjoint.ADJOINTS`).
      rtol, atol: stop at `||f(x) - x|| <= max(rtol max(||x||, ||f(x)||), atol)`; may be traced.
        By default the 2/3 power of the rounding unit (2e-5 in float32), and the square of the
        rounding unit times the size of the start and its image.
      max_steps: step limit.
      probe: `solvers.adjoint_probe()`, whose gradient reports the backward solve.
      trace: length of the residual trace in the returned `Info`.
      patience: steps without a smaller residual before the solve ends as STALLED; None: never.
      blowup: growth of the residual at which it ends as DIVERGED; None: never.
      norm: `tree -> scalar`, in place of the Euclidean norm.
      record: numbers of steps after which the iterate is wanted, for losses on the way
        (`Info.iterates`, one more leading axis). Each is given after one more evaluation of the
        map, through which its gradient passes; of a solve that ends earlier, the last one.
      has_aux: `f` returns `(x, aux)`; `aux` at the solution is returned beside it.
      throw: raise an error if the solve, or its backward solve, does not converge, also out of
        `jit` and `vmap`. By default that is told by the status alone.
      mesh_axis: inside `shard_map`, the axis of the mesh over which `x` is spread: norms, products
        and decisions are those of the whole, and `f` may exchange what it needs. Adjoints are those
        that solve (`implicit`, `rbp`, ...).

    Returns:
      The best iterate, in the structure and dtypes of `x0`, or `(iterate, aux)`; and its `Info`.

    >>> x, info = fixed_point(lambda a, x: jnp.cos(a * x), 1.0, jnp.zeros(()))
    >>> print(f"{x:.4f}", bool(info.converged))
    0.7391 True
    """
    x0 = require_real(x0, "x0")
    settings = Limits.of(x0, rtol, atol, max_steps, patience, blowup, trace, record)
    chosen = adjoints.resolve(adjoint)
    stages = resolve(method)
    if mesh_axis is not None and (chosen.mode != "reverse" or norm is not None):
        raise ValueError("over a mesh_axis: an adjoint such as implicit(), and no norm of your own")
    require_fitting(chosen, stages, max_steps)
    require_image(shape_of(f, theta, x0), x0, has_aux, "f")

    def value_of(theta: Any, x: Tree) -> Tree:
        return f(theta, x)[0] if has_aux else f(theta, x)

    x, info = solution(
        value_of,
        theta,
        x0,
        adjoint=chosen,
        forward=lambda f: Forward.of(f, stages, settings, x0, chosen, norm, mesh_axis),
        backward=lambda f: Backward(f, chosen, throw, mesh_axis),
        tolerances=settings.tolerances,
        probe=probe,
        throw=throw,
        mesh_axis=mesh_axis,
    )
    if throw:
        x, info = require_converged(info, (x, info), "solves")
    if record:
        states = jax.lax.stop_gradient(cast_like(info.iterates, x))
        info = info._replace(iterates=jax.lax.map(lambda x: value_of(theta, x), states))
    return ((x, f(theta, x)[1]) if has_aux else x), info


def require_fitting(adjoint: adjoints.Adjoint, stages: tuple[Stage, ...], max_steps: int) -> None:
    """Refuses an adjoint that needs what the forward solve does not have."""
    if adjoint.steps is not None and adjoint.steps > max_steps:
        raise ValueError(
            f"{adjoint.name}({adjoint.steps}) needs max_steps >= {adjoint.steps}, got {max_steps}"
        )
    fixed = [stage.method.name for stage in stages if not stage.method.unrollable]
    if fixed and adjoint.name == "bptt":
        raise ValueError(
            f"bptt cannot go back through {fixed[0]}, which compares signs: implicit()"
        )
    if adjoint.precond == "forward" and not isinstance(stages[-1].method, Broyden):
        raise ValueError(
            f"{adjoint.name} takes the inverse that broyden ends with: method=broyden()"
        )


def require_image(image: Any, x0: Tree, has_aux: bool, name: str) -> None:
    """Refuses a map whose values are not like `x0`."""
    if has_aux and not (isinstance(image, tuple) and len(image) == 2):
        raise ValueError(f"with has_aux, {name} must return (x, aux), got {type(image).__name__}")
    require_like(image[0] if has_aux else image, x0, f"{name}(theta, x0)", "x0")


@dataclasses.dataclass(frozen=True)
class Limits:
    """The stop rule as the user gave it, checked and with its defaults."""

    tolerances: tuple
    floor: float
    max_steps: int
    patience: int | None
    blowup: float | None
    trace: int = 0
    record: tuple[int, ...] = ()

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
    ) -> Limits:
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
        return cls((rtol, atol), eps**2, max_steps, patience, blowup, trace, tuple(record))


@dataclasses.dataclass(frozen=True, eq=False)
class Forward(Settings):
    """`(operands, x0, tolerances) -> (x, Info, memory)`: the stages, one after the other.

    Attributes:
      f: the map.
      stages: methods and the most steps each may take.
      dtypes: of the user's trees.
      unrolled: make a program through which reverse mode can pass; `segment` as in `bptt`.
      inverse: return the approximate inverse that the last method ends with.
    """

    f: ClosedMap
    stages: tuple[Stage, ...]
    dtypes: tuple[str, ...]
    floor: float
    max_steps: int
    patience: int | None
    blowup: float | None
    trace: int = 0
    record: tuple[int, ...] = ()
    norm: Callable | None = None
    unrolled: bool = False
    segment: int | None = None
    inverse: bool = False
    mesh_axis: str | None = None

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
            f=f,
            stages=stages,
            dtypes=tuple(str(leaf.dtype) for leaf in jax.tree.leaves(x0)),
            floor=limits.floor,
            max_steps=limits.max_steps - (adjoint.steps or 0),
            patience=limits.patience,
            blowup=limits.blowup,
            trace=limits.trace,
            record=limits.record,
            norm=norm,
            unrolled=adjoint.mode == "unroll" and adjoint.steps is None,
            segment=adjoint.checkpoint,
            inverse=adjoint.precond == "forward",
            mesh_axis=mesh_axis,
        )

    def __call__(self, operands: tuple, x0: Vector, tolerances: tuple) -> tuple:
        tasks = self.tasks(operands, x0, tolerances)
        return run(
            tasks, self._loop if self.unrolled else iterate.resume, self.inverse, self.unrolled
        )

    def _loop(self, task: iterate.Task, loop: iterate.Loop) -> iterate.Loop:
        return iterate.unroll(task, loop, self.segment)

    def tasks(self, operands: tuple, x0: Vector, tolerances: tuple) -> list[iterate.Task]:
        """One task per stage, all from `x0`; `run` gives the later ones the start they deserve."""
        problem = self.problem(operands)
        rtol, atol = tolerances
        if self.f.root:
            problem, atol = _rooted(problem, x0, atol)
        result: list[iterate.Task] = []
        left = self.max_steps
        for stage in self.stages:
            allowed = left if stage.max_steps is None else min(stage.max_steps, left)
            stop = Stop(
                rtol, atol, allowed, self.patience, self.blowup, trace=self.trace, floor=self.floor
            )
            result.append(iterate.Task(stage.method, problem, x0, stop, self.record))
            left -= allowed
        return result

    def problem(self, operands: tuple, space: Space | None = None) -> FixedPointProblem:
        """The equation, as a method sees it."""
        space = Space(mesh_axis=self.mesh_axis) if space is None else space

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
            space,
            norm,
            unscaled=not self.f.root,
        )


def _rooted(problem: FixedPointProblem, x0: Vector, atol: Any) -> tuple[FixedPointProblem, Any]:
    """A problem whose residuals are relative to the first one: `g` has units of its own.

    A start at the root leaves nothing to be relative to: there, `g` is zero when it is as small as
    its change over the rounding of `x`.
    """
    here = problem.defect(x0)
    first = problem.space.norm(here)
    if atol is None:
        eps = float(jnp.finfo(first.dtype).eps)
        atol = 4 * eps * slope(problem.defect, x0, here, problem.space)
    return problem._replace(reference=first), atol


def run(
    tasks: list[iterate.Task],
    loop: Callable[[iterate.Task, iterate.Loop], iterate.Loop] = iterate.resume,
    inverse: bool = False,
    unrolled: bool = False,
) -> tuple[Vector, Info, Any]:
    """The tasks one after the other, each from the best iterate of the one before.

    Returns value, `Info`, and the inverse that the last method ends with, if that is wanted.
    """

    def solve(task: iterate.Task) -> tuple:
        last = loop(task, iterate.begin(task))
        return *iterate.outcome(task, last), last.state.inverse if inverse else None

    result = solve(tasks[0])
    for task in tasks[1:]:

        def proceed(before: tuple, task: iterate.Task = task) -> tuple:
            x, latest, memory = solve(task._replace(start=before[0]))
            return x, combine(before[1], latest), memory

        if unrolled or inverse:
            result = proceed(result)
        else:
            result = iterate.skip_if(result[1].converged, proceed, result)
    return result


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


def resolve(method: iterate.Method | Cascade | str) -> tuple[Stage, ...]:
    """The stages of a method given as itself, as a cascade or by name."""
    from solvers.fixed_point import METHODS

    if isinstance(method, str):
        if method not in METHODS:
            raise ValueError(f"unknown method {method!r}; choose from {sorted(METHODS)}")
        method = METHODS[method]()
    if isinstance(method, Cascade):
        return method.stages
    if isinstance(method, iterate.Method):
        return (Stage(method),)
    raise TypeError(
        f"method must be a solvers method, a cascade or a name, got {type(method).__name__}"
    )
