"""A batch that shrinks as its examples finish."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from solvers import adjoint as adjoints
from solvers import iterate
from solvers.adjoint.closure import Map as ClosedMap
from solvers.adjoint.solution import solution
from solvers.adjoint.system import System, transposed_solve
from solvers.batch.rows import BatchMap, Clear, Rows, batch_size
from solvers.fixed_point.base import Cascade, Map
from solvers.fixed_point.forward import Forward, Limits, combine
from solvers.fixed_point.solve import resolve
from solvers.info import Info
from solvers.linear.base import LinearSolver
from solvers.mesh import on_explicit_mesh
from solvers.settings import Settings, require_count
from solvers.space import Space, Tree, Vector, require_real, working_dtype


def compacted(
    f: Map,
    theta: Any,
    x0: Tree,
    *,
    in_axes: Any = 0,
    method: iterate.Method | Cascade | str = "auto",
    adjoint: adjoints.Adjoint | str = "implicit",
    rtol: float | jax.Array | None = None,
    atol: float | jax.Array | None = None,
    max_steps: int = 200,
    probe: Info | None = None,
    levels: int = 5,
    throw: bool = False,
) -> tuple[Tree, Info]:
    """`jax.vmap(fixed_point)` whose batch shrinks as examples finish.

    Under plain `vmap` a finished example costs as much as a running one until the last is done.
    Here the loop runs on the whole batch until at most half of it is left, moves the rest to a
    batch of half the size, and so on through static sizes, forwards and backwards, inside one
    program. Worth it where the numbers of steps differ widely.

    Args:
      f: the map for one example.
      theta: parameters; which leaves are per example, `in_axes` says.
      x0: starts, `[batch, ...]`.
      in_axes: 0 or `None`, or a prefix tree of those, for `theta`, as in `jax.vmap`.
      probe: `solvers.adjoint_probe((batch,))`.
      levels: how many batch sizes; each is compiled.
      method, adjoint, rtol, atol, max_steps, throw: as for `fixed_point`; an adjoint that solves
        in the backward pass (not `bptt`, `tbptt` or `tangent`).

    Returns:
      Values `[batch, ...]` and an `Info` of arrays `[batch]`.
    """
    x0 = require_real(x0, "x0")
    chosen = adjoints.resolve(adjoint)
    if chosen.mode != "reverse" or not isinstance(chosen.linear, LinearSolver):
        raise ValueError(
            f"compacted needs an adjoint with a linear solver of solvers.linear, got {chosen.name}"
        )
    if chosen.precond == "forward":
        raise ValueError("compacted keeps no inverse of the forward method: use jax.vmap")
    if on_explicit_mesh():
        raise ValueError(
            "compacted reorders examples, which a mesh with explicit axes forbids: "
            "use jax.vmap or lockstep, or a mesh with Auto axes"
        )
    batch, rows = batch_size(x0), Rows.of(theta, in_axes)
    if any(axis not in (0, None) for axis in rows.axes):
        raise ValueError(f"in_axes may only hold 0 and None, got {in_axes}")
    sizes = _sizes(batch, require_count("levels", levels, 1))
    limits, tolerances = Limits.of(x0, rtol, atol, max_steps)
    stages = resolve(method)
    if batch == 0:
        none = jnp.zeros(0, jnp.int32)
        return x0, Info(none, none.astype(working_dtype(x0)), none, none)
    first_theta, first = rows.first(theta), jax.tree.map(lambda leaf: leaf[0], x0)
    return solution(
        f,
        theta,
        x0,
        adjoint=chosen,
        forward=lambda f: Shrinking(Forward.of(f, stages, limits, first, chosen), rows, sizes),
        backward=lambda f: ShrinkingBackward(f, chosen, rows, sizes, throw),
        clean=lambda f: Clear(f, rows, axis=0),
        lift=lambda f: BatchMap(f, rows),
        tolerances=tolerances,
        probe=probe,
        example=(first_theta, first),
        throw=throw,
    )


@dataclasses.dataclass(frozen=True, eq=False)
class Shrinking(Settings):
    """`(operands, x0, tolerances) -> (x, Info, None)` for a batch."""

    one: Forward
    rows: Rows
    sizes: tuple[int, ...]

    def __call__(self, operands: tuple, x0: Vector, tolerances: tuple) -> tuple:
        return *staged(self.one, self.rows, operands, x0, tolerances, self.sizes), None


def staged(
    one: Forward,
    rows: Rows,
    operands: tuple,
    x0: Vector,
    tolerances: tuple,
    sizes: tuple[int, ...],
    decided: Callable[[jax.Array], jax.Array] | None = None,
) -> tuple[Vector, Info]:
    """The stages of `one`, each for the whole batch before the next."""

    def stage(number: int, start: Vector) -> tuple[Vector, Info]:
        def make(operands: tuple, data: tuple[Vector, Vector]) -> iterate.Task:
            tasks = one.tasks(operands, data[0], tolerances)
            return tasks[number]._replace(start=data[1])

        return _shrinking(make, rows, operands, (x0, start), sizes, decided)

    x, info = stage(0, x0)
    for number in range(1, len(one.stages)):
        later, latest = stage(number, x)
        x = Space(0).where(info.converged, x, later)
        combined = combine(info, latest)
        info = jax.tree.map(lambda a, b, c=info.converged: jnp.where(c, a, b), info, combined)
    return x, info


@dataclasses.dataclass(frozen=True, eq=False)
class ShrinkingBackward(Settings):
    """`(operands, x, cotangent, status, memory) -> (w, Info)` for a batch."""

    f: ClosedMap
    adjoint: adjoints.Adjoint
    rows: Rows
    sizes: tuple[int, ...]
    throw: bool = False

    def __call__(
        self, operands: tuple, x: Vector, cotangent: Vector, status: jax.Array, memory: Any
    ) -> tuple[Vector, Info]:
        # A preconditioner is one for a single example.
        plain = dataclasses.replace(self.adjoint, precond=None)
        system = System.of(BatchMap(self.f, self.rows), operands, x, plain)
        fixed, fixed_x = lax.stop_gradient((operands, x))

        def runner(matvec: Callable, rhs: Vector, *, x0: Any = None, **_: Any) -> tuple:
            solve, untransposed = (self._solver(fixed, fixed_x, x0, t) for t in (True, False))
            return lax.custom_linear_solve(matvec, rhs, solve, untransposed, has_aux=True)

        return transposed_solve(
            system, cotangent, self.adjoint, status, runner=runner, space=Space(0), throw=self.throw
        )

    def _solver(self, operands: tuple, x: Vector, start: Any, transposed: bool) -> Callable:
        solver = self.adjoint.linear
        assert isinstance(solver, LinearSolver)

        def prepare(operands: tuple, data: tuple) -> tuple:
            x, rhs, start = data
            system = System.of(self.f, operands, x, self.adjoint)
            matvec, inverse = system.matvec, system.inverse
            if not transposed:
                back = jax.linear_transpose(matvec, x)
                undo = inverse and jax.linear_transpose(inverse, x)
                matvec = lambda v: back(v)[0]  # noqa: E731
                inverse = undo and (lambda v: undo(v)[0])
            return solver.prepare(matvec, rhs, start, inverse, unscaled=True)

        def solution(_: Callable, rhs: Vector) -> tuple[Vector, Info]:
            data = (x, rhs, start if transposed else None)
            y, info = _shrinking(
                lambda *rows: prepare(*rows)[0], self.rows, operands, data, self.sizes
            )
            return jax.vmap(
                lambda operands, data, y, info: prepare(operands, data)[1](y, info),
                (self.rows.in_axes, 0, 0, 0),
            )(operands, data, y, info)

        return solution


def _shrinking(
    make: Callable[[tuple, Any], iterate.Task],
    rows: Rows,
    operands: tuple,
    data: Any,
    sizes: tuple[int, ...],
    decided: Callable[[jax.Array], jax.Array] | None = None,
) -> tuple[Vector, Info]:
    """Runs `make(operands, data)` for every example, the batch shrinking through `sizes`.

    It ends early when `decided` says so of the statuses.
    """
    axes = (rows.in_axes, 0)
    loop = jax.vmap(lambda *row: iterate.begin(make(*row)), axes)(operands, data)
    active = jnp.arange(sizes[0])

    def outcome(operands: tuple, data: Any, loop: iterate.Loop) -> tuple[Vector, Info]:
        return jax.vmap(lambda o, d, loop: iterate.outcome(make(o, d), loop), (*axes, 0))(
            operands, data, loop
        )

    result = outcome(operands, data, loop)
    for size, smaller in zip(sizes, (*sizes[1:], 0), strict=True):
        if size < sizes[0]:
            order = jnp.argsort(~loop.running)[:size]
            active, loop, data = jax.tree.map(lambda leaf, o=order: leaf[o], (active, loop, data))
            operands = rows.take(operands, order)

        def advance(
            loop: iterate.Loop, operands: tuple = operands, data: Any = data
        ) -> iterate.Loop:
            return jax.vmap(lambda o, d, loop: iterate.advance(make(o, d), loop), (*axes, 0))(
                operands, data, loop
            )

        def crowded(loop: iterate.Loop, smaller: int = smaller) -> jax.Array:
            many = jnp.sum(loop.running) > smaller
            return many if decided is None else many & ~decided(loop.record.status)

        loop = iterate.resume_batch(advance, loop, crowded)
        result = jax.tree.map(
            lambda whole, part, a=active: whole.at[a].set(part),
            result,
            outcome(operands, data, loop),
        )
    return result


def _sizes(batch: int, levels: int) -> tuple[int, ...]:
    """batch, batch/2, batch/4, ... (rounded up), at most `levels` of them."""
    sizes = [batch]
    while len(sizes) < levels and sizes[-1] > 1:
        sizes.append(-(-sizes[-1] // 2))
    return tuple(sizes)
