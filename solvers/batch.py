"""Many problems at once: the race of several starts, and compaction of finished examples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from solvers import adjoint as adjoints
from solvers import iterate
from solvers.fixed_point.base import Cascade, Map
from solvers.fixed_point.solve import combine, fixed_point, resolve, run, tasks, tolerances
from solvers.info import Info
from solvers.linear.base import LinearSolver, failed
from solvers.vectors import (
    Tree,
    Vector,
    ravel,
    require_like,
    require_real,
    unraveler,
    working_dtype,
)

_AXIS = "solvers.batch"


def race(
    f: Map,
    theta: Any,
    starts: Tree,
    *,
    method: iterate.Method | Cascade | str = "auto",
    adjoint: adjoints.Adjoint | str = "implicit",
    rtol: float | jax.Array | None = None,
    atol: float | jax.Array | None = None,
    max_steps: int = 200,
    probe: Info | None = None,
) -> tuple[Tree, Info]:
    """Solves `x = f(theta, x)` from several starts; the first to converge wins and ends the rest.

    The 2017 paper's two-start solve (section 2.6). The starts advance in lockstep, as a batch.

    Args:
      starts: like a state, with one more leading axis: one entry per start.
      f, theta, method, adjoint, rtol, atol, max_steps, probe: as for `fixed_point`; the `bptt`
        adjoint is refused.

    Returns:
      The winner's value and `Info`, whose `winner` is its index. If none converged, that with the
      smallest residual.
    """
    starts = require_real(starts, "starts")
    counts = {leaf.shape[0] if leaf.ndim else 0 for leaf in jax.tree.leaves(starts)}
    if len(counts) != 1 or 0 in counts:
        raise ValueError(
            "starts needs a common leading axis with at least one start, got leaf shapes "
            f"{[leaf.shape for leaf in jax.tree.leaves(starts)]}"
        )
    first = jax.tree.map(lambda leaf: leaf[0], starts)
    require_like(jax.eval_shape(f, theta, first), first, "f(theta, starts[0])", "starts[0]")
    adjoint = adjoints.resolve(adjoint)
    if adjoint.name == "bptt":
        raise ValueError("a race cannot be unrolled: use tbptt(steps) or implicit()")
    stages = resolve(method)

    def forward(
        f: Map, theta: Any, starts: Tree, tolerances: tuple, max_steps: int
    ) -> tuple[Tree, Info]:
        def open_race(loop: iterate.Loop) -> jax.Array:
            return lax.psum((loop.record.status == 0).astype(jnp.int32), _AXIS) == 0

        def contender(start: Tree) -> tuple[Vector, Info]:
            sequence = tasks(stages, f, theta, start, tolerances, max_steps)
            return run(sequence, lambda task, loop: iterate.resume(task, loop, open_race))

        x, info = jax.vmap(contender, axis_name=_AXIS)(starts)
        candidates = info.converged | ~jnp.any(info.converged)
        winner = jnp.argmin(jnp.where(candidates, info.residual, jnp.inf)).astype(jnp.int32)
        x, info = jax.tree.map(lambda leaf: leaf[winner], (x, info))
        return unraveler(first)(x), info._replace(winner=winner)

    return adjoints.differentiate(
        forward,
        f,
        theta,
        starts,
        adjoint=adjoint,
        tolerances=tolerances(first, rtol, atol),
        max_steps=max_steps,
        probe=probe,
        example=(theta, first),
    )


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
      method, adjoint, rtol, atol, max_steps: as for `fixed_point`; an adjoint that solves in
        the backward pass (not `bptt`, `tbptt` or `tangent`).

    Returns:
      Values `[batch, ...]` and an `Info` of arrays `[batch]`.
    """
    x0 = require_real(x0, "x0")
    adjoint = adjoints.resolve(adjoint)
    if adjoint.mode != "reverse" or not isinstance(adjoint.linear, LinearSolver):
        raise ValueError(
            f"compacted needs an adjoint with a linear solver of solvers.linear, got {adjoint.name}"
        )
    batch = _batch_size(x0)
    axes = jax.tree.broadcast(in_axes, theta, is_leaf=lambda axis: axis is None)
    if any(axis not in (0, None) for axis in jax.tree.leaves(axes, is_leaf=lambda a: a is None)):
        raise ValueError(f"in_axes may only hold 0 and None, got {in_axes}")
    if batch == 0:
        return jax.vmap(
            lambda theta, x: fixed_point(f, theta, x, method=method), in_axes=(axes, 0)
        )(theta, x0)
    stages = resolve(method)
    sizes = _sizes(batch, levels)
    example = (_Split.of(theta, axes).row(0), jax.tree.map(lambda leaf: leaf[0], x0))
    require_like(jax.eval_shape(f, *example), example[1], "f(theta, x0)", "x0")

    def forward(
        f: Map, theta: Any, x0: Tree, tolerances: tuple, max_steps: int
    ) -> tuple[Tree, Info]:
        split = _Split.of(theta, (axes, None))

        def stage(number: int, start: jax.Array) -> tuple[jax.Array, Info]:
            def make(mapped: list, data: tuple[Tree, Vector]) -> iterate.Task:
                state, vector = data
                sequence = tasks(stages, f, split.join(mapped), state, tolerances, max_steps)
                return sequence[number]._replace(start=vector)

            return _shrinking(make, split.mapped, (x0, start), sizes)

        x, info = stage(0, jax.vmap(lambda x: ravel(x, working_dtype(x)))(x0))
        for number in range(1, len(stages)):
            x, latest = stage(number, x)
            info = combine(info, latest)
        return jax.vmap(unraveler(example[1]))(x), info

    def backward(
        f: Map, theta: Any, x: Tree, cotangent: Tree, adjoint: adjoints.Adjoint
    ) -> tuple[Any, Info]:
        split = _Split.of(theta, (axes, None))
        w, info = _solve_transposed(f, split, x, cotangent, adjoint, sizes)
        if adjoint.on_failure == "zero":
            # A NaN among the inputs of a failed example must not meet its zero cotangent.
            bad = failed(adjoint.linear, info)
            split = split._replace(mapped=_clear(split.mapped, bad))
            x = _clear(x, bad)

        def images(mapped: list, shared: list) -> Tree:
            both = split._replace(shared=shared)
            return jax.vmap(lambda row, x: f(both.join(row), x))(mapped, x)

        mapped_bar, shared_bar = jax.vjp(images, split.mapped, split.shared)[1](w)
        return split._replace(mapped=mapped_bar, shared=shared_bar).whole(), info

    return adjoints.differentiate(
        forward,
        f,
        theta,
        x0,
        adjoint=adjoint,
        tolerances=tolerances(x0, rtol, atol),
        max_steps=max_steps,
        probe=probe,
        backward=backward,
        example=example,
    )


class _Split(NamedTuple):
    """The leaves of a tree, those with one row per example apart from the shared ones."""

    mapped: list
    shared: list
    is_mapped: tuple[bool, ...]
    structure: Any

    @classmethod
    def of(cls, tree: Any, in_axes: Any) -> _Split:
        def absent(axis: Any) -> bool:
            return axis is None

        leaves, structure = jax.tree.flatten(tree)
        axes = jax.tree.leaves(jax.tree.broadcast(in_axes, tree, is_leaf=absent), is_leaf=absent)
        is_mapped = tuple(axis == 0 for axis in axes)
        pairs = list(zip(leaves, is_mapped, strict=True))
        return cls(
            [leaf for leaf, per_example in pairs if per_example],
            [leaf for leaf, per_example in pairs if not per_example],
            is_mapped,
            structure,
        )

    def join(self, mapped: list) -> Any:
        """The tree with `mapped` in place of the per-example leaves."""
        rows, shared = iter(mapped), iter(self.shared)
        leaves = [next(rows) if per_example else next(shared) for per_example in self.is_mapped]
        return jax.tree.unflatten(self.structure, leaves)

    def whole(self) -> Any:
        return self.join(self.mapped)

    def row(self, index: int) -> Any:
        return self.join([leaf[index] for leaf in self.mapped])


def _shrinking(
    make: Callable[[list, Tree], iterate.Task], mapped: list, data: Tree, sizes: list[int]
) -> tuple[jax.Array, Info]:
    """Runs `make(row, data)` for every example, the batch shrinking through `sizes`."""
    rows = (mapped, data)
    loop = jax.vmap(lambda rows: iterate.begin(make(*rows)))(rows)
    active = jnp.arange(sizes[0])
    result = jax.vmap(iterate.outcome)(loop)
    for size, smaller in zip(sizes, [*sizes[1:], 0], strict=True):
        if size < sizes[0]:
            order = jnp.argsort(~loop.running)[:size]
            active, loop, rows = jax.tree.map(lambda leaf, o=order: leaf[o], (active, loop, rows))

        def advance(rows: tuple, loop: iterate.Loop, smaller: int = smaller) -> iterate.Loop:
            def crowded(loop: iterate.Loop) -> jax.Array:
                return lax.psum(loop.running.astype(jnp.int32), _AXIS) > smaller

            return iterate.resume(make(*rows), loop, crowded)

        loop = jax.vmap(advance, axis_name=_AXIS)(rows, loop)
        result = jax.tree.map(
            lambda whole, part, a=active: whole.at[a].set(part),
            result,
            jax.vmap(iterate.outcome)(loop),
        )
    return result


def _solve_transposed(
    f: Map, split: _Split, x: Tree, cotangent: Tree, adjoint: adjoints.Adjoint, sizes: list[int]
) -> tuple[Tree, Info]:
    """`(I - J^T) w = cotangent` for every example, differentiable, the batch shrinking."""
    solver = adjoint.linear
    assert isinstance(solver, LinearSolver)

    def images(x: Tree) -> Tree:
        return jax.vmap(lambda row, x: f(split.join(row), x))(split.mapped, x)

    _, pull = jax.vjp(images, x)
    mapped, shared, frozen_x = lax.stop_gradient((split.mapped, split.shared, x))
    frozen = split._replace(mapped=mapped, shared=shared)

    def solve(transposed: bool) -> Callable:
        def system(row: list, x: Tree) -> tuple:
            both = frozen.join(row)
            matvec, inverse = adjoints.transposed_system(f, both, x, adjoint)
            if transposed:
                return matvec, inverse
            back = jax.linear_transpose(matvec, x)
            undo = inverse and jax.linear_transpose(inverse, x)
            return (lambda v: back(v)[0]), undo and (lambda v: undo(v)[0])

        def solution(_: Callable, rhs: Tree) -> tuple[Tree, Info]:
            start = None if adjoint.start is None else adjoint.start(rhs)

            def prepare(row: list, data: tuple) -> tuple:
                x, rhs, start = data
                matvec, inverse = system(row, x)
                return solver.prepare(matvec, rhs, start, inverse)

            data = (frozen_x, rhs, start)
            y, info = _shrinking(lambda *rows: prepare(*rows)[0], frozen.mapped, data, sizes)
            w, info = jax.vmap(lambda row, data, y, info: prepare(row, data)[1](y, info))(
                frozen.mapped, data, y, info
            )
            if adjoint.on_failure != "best":
                fill = 0.0 if adjoint.on_failure == "zero" else jnp.nan
                w = _clear(w, failed(solver, info), fill)
            return w, info

        return solution

    return lax.custom_linear_solve(
        lambda w: jax.tree.map(jnp.subtract, w, pull(w)[0]),
        cotangent,
        solve(transposed=True),
        solve(transposed=False),
        has_aux=True,
    )


def _batch_size(x0: Tree) -> int:
    sizes = {leaf.shape[0] if leaf.ndim else -1 for leaf in jax.tree.leaves(x0)}
    if len(sizes) != 1 or -1 in sizes:
        raise ValueError(
            "x0 needs a common leading batch axis, got leaf shapes "
            f"{[leaf.shape for leaf in jax.tree.leaves(x0)]}"
        )
    return sizes.pop()


def _sizes(batch: int, levels: int) -> list[int]:
    """batch, batch/2, batch/4, ... (rounded up), at most `levels` of them."""
    if levels < 1:
        raise ValueError(f"levels must be at least 1, got {levels}")
    sizes = [batch]
    while len(sizes) < levels and sizes[-1] > 1:
        sizes.append(-(-sizes[-1] // 2))
    return sizes


def _clear(tree: Tree, bad: jax.Array, fill: float = 0.0) -> Tree:
    """`tree` with the rows of the examples marked `bad` overwritten."""

    def clear(leaf: jax.Array) -> jax.Array:
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            return leaf
        rows = bad.reshape(bad.shape + (1,) * (leaf.ndim - 1))
        return jnp.where(rows, jnp.asarray(fill, leaf.dtype), leaf)

    return jax.tree.map(clear, tree)
