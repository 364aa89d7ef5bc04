"""The one loop: it steps a method until the verdict, and keeps the best iterate.

A `Method` is a record of settings with two pure functions, `init` and `step`, over a state of its
own. It reports its `Progress`; everything that is common to iterations happens here and in
`solvers.verdict`. `docs/adding_a_method.md` shows a complete one.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from solvers.info import Info, Status
from solvers.mesh import (
    alike,
    on_explicit_mesh,
    opaque,
    placed_alike,
    settled,
    spread_alike,
    while_loop,
)
from solvers.settings import Settings
from solvers.space import Space, Vector
from solvers.verdict import Record, Stop, judge, open_record

State = Any
Problem = Any  # has a `space`


class Progress(NamedTuple):
    """What a method reports after `init` and after every `step`."""

    value: Any  # the iterate
    residual: jax.Array  # norm of the residual at `value`
    scale: jax.Array  # what that residual is relative to
    evaluations: jax.Array | int = 1  # of the map or matrix, in this call
    monitor: jax.Array | None = None  # a running estimate that is ahead of `value` (gmres)
    trusted: jax.Array | bool = True  # may this residual end the solve as converged?
    broken: jax.Array | bool = False  # no way to go on
    following: Any = None  # the iterate that a next step would look at, where it is known already


class Goal(NamedTuple):
    """What the loop tells a method before a step."""

    residual: jax.Array  # absolute residual at which the solve ends
    last: jax.Array  # bool: no further step will be granted


@dataclasses.dataclass(frozen=True, eq=False)
class Method(Settings):
    """An iteration. Its fields are its settings; equal settings are equal methods.

    Both functions return `(state, Progress)`. All arrays in a state keep their shapes and dtypes.
    """

    def init(self, problem: Problem, x: Vector) -> tuple[State, Progress]:
        raise NotImplementedError

    def step(self, problem: Problem, state: State, goal: Goal) -> tuple[State, Progress]:
        raise NotImplementedError

    # Whether `bptt` may go back through its steps.
    unrollable = True

    # Whether a linear system may be given to it in other units: not where A = I - J is the point.
    scale_free = True

    @property
    def name(self) -> str:
        return type(self).__name__.lower()


class Task(NamedTuple):
    """One problem (or one batch in its own layout), ready to be iterated.

    Attributes:
      keep: the numbers of steps after which the iterate is recorded.
      go_on: leave an example that converges with the iterate that follows the one that did.
    """

    method: Method
    problem: Problem
    start: Vector
    stop: Stop
    keep: tuple[int, ...] = ()
    go_on: bool = False


class Loop(NamedTuple):
    """The carry of the loop. A batch of these can be gathered, resumed and scattered."""

    state: State
    best: Vector
    record: Record
    kept: Vector | None = None  # recorded iterates, leaves [len(keep), ...]

    @property
    def running(self) -> jax.Array:
        return self.record.running


def begin(task: Task) -> Loop:
    """The state of the loop before its first step."""
    space: Space = task.problem.space
    finite_start = jax.tree.map(jnp.isfinite, task.start)
    start = opaque(jax.tree.map(lambda ok, leaf: jnp.where(ok, leaf, 0), finite_start, task.start))
    state, progress = task.method.init(task.problem, start)
    healthy = space.all(finite_start)
    record = open_record(task.stop, progress, healthy)
    usable = record.status != Status.NONFINITE
    best = space.where(usable, _reported(task, progress, record), start)
    kept = None
    if task.keep:
        kept = jax.tree.map(lambda leaf: jnp.stack([leaf] * len(task.keep)), best)
    if space.batch_axis is not None:
        return Loop(state, best, placed_alike(record, record.best_residual), kept)
    return alike(Loop(state, best, record, kept), record.best_residual)


def advance(task: Task, loop: Loop) -> Loop:
    """One step of the method and everything that is decided about it."""
    space, before = task.problem.space, loop.record
    goal = Goal(before.goal(task.stop), before.steps + 1 >= task.stop.max_steps)
    state, progress = task.method.step(task.problem, loop.state, goal)
    record, better = judge(task.stop, before, progress)
    if space.batch_axis is not None:
        # The state of an example that has ended goes on changing; its record and value do not.
        better &= before.running
        record = jax.tree.map(lambda new, old: jnp.where(before.running, new, old), record, before)
    best = space.where(better, _reported(task, progress, record), loop.best)
    kept = loop.kept
    if task.keep:
        # Until its time comes an entry follows the iterates: a solve that ends early ends there.
        open_still = jnp.asarray(task.keep) >= record.steps
        finite = progress.residual < jnp.inf
        kept = space.put(open_still & finite, progress.value, kept)
    return Loop(state, best, record, kept)


def resume(task: Task, loop: Loop) -> Loop:
    """Advances `loop` until it ends."""
    # The count of evaluations decides nothing, and may be of a batch where nothing else is.
    pack, unpack = packing(_counted(loop, None), loop.running.shape)

    def unpacked(carry: tuple) -> Loop:
        return _counted(unpack(carry[0]), carry[1])

    def packed(loop: Loop) -> tuple:
        return pack(_counted(loop, None)), loop.record.evaluations

    last = while_loop(
        lambda carry: jnp.any(unpacked(carry).running),
        lambda carry: packed(advance(task, unpacked(carry))),
        packed(loop),
    )
    return unpacked(last)


def _counted(loop: Loop, evaluations: Any) -> Loop:
    return loop._replace(record=loop.record._replace(evaluations=evaluations))


# Scalars that the compiler still puts together in one kernel.
_FUSED = 8


def packing(tree: Any, shape: tuple[int, ...]) -> tuple[Callable, Callable]:
    """How to put the leaves of a shape side by side, by dtypes, and how to take them out.

    For a small problem a step takes the time in which its kernels are started. Scalars by
    themselves are a kernel or two each; too many together are not fused.
    """
    leaves, structure = jax.tree.flatten(tree)
    by_dtype: dict[Any, list[int]] = {}
    for place, leaf in enumerate(leaves):
        if leaf.shape == shape:
            by_dtype.setdefault(leaf.dtype, []).append(place)
    taken = {place for group in by_dtype.values() for place in group}
    groups = [
        same[start : start + _FUSED]
        for same in by_dtype.values()
        for start in range(0, len(same), _FUSED)
    ]

    def pack(tree: Any) -> tuple:
        leaves = jax.tree.leaves(tree)
        others = [leaf for place, leaf in enumerate(leaves) if place not in taken]
        rows = (spread_alike(*(leaves[place] for place in group)) for group in groups)
        return [jnp.stack(row) for row in rows], others

    def unpack(packed: tuple) -> Any:
        arrays, others = packed
        rest = iter(others)
        found = [None if place in taken else next(rest) for place in range(len(leaves))]
        for array, group in zip(arrays, groups, strict=True):
            for place, leaf in zip(group, array, strict=True):
                found[place] = leaf
        return jax.tree.unflatten(structure, found)

    return pack, unpack


def resume_batch(
    advance: Callable[[Loop], Loop], loop: Loop, keep_going: Callable[[Loop], jax.Array]
) -> Loop:
    """Advances those of a batch of loops, leading axes, that run, until `keep_going` is false."""
    return while_loop(
        keep_going, lambda loop: Space(0).where(loop.running, advance(loop), loop), loop
    )


def unroll(task: Task, loop: Loop, segment: int | None = None) -> Loop:
    """Like `resume`, as a scan of `max_steps` steps through which reverse mode can pass.

    With a `segment`, only every so many iterates are kept and the others computed again.
    """

    def body(loop: Loop, _: None) -> tuple[Loop, None]:
        if on_explicit_mesh():  # where a conditional cannot be made a batch of
            return Space().where(loop.running, advance(task, loop), loop), None
        return lax.cond(
            loop.running, lambda loop: advance(task, loop), lambda loop: loop, loop
        ), None

    loop = settled(lambda loop: advance(task, loop), loop)
    steps = task.stop.max_steps
    if segment is None:
        return lax.scan(body, loop, None, length=steps)[0]

    @jax.checkpoint
    def several(loop: Loop, _: None) -> tuple[Loop, None]:
        return lax.scan(body, loop, None, length=segment)[0], None

    # The record ends the solve at `max_steps`; a last segment may be longer than what is left.
    return lax.scan(several, loop, None, length=math.ceil(steps / segment))[0]


def outcome(task: Task, loop: Loop) -> tuple[Vector, Info]:
    """The best iterate and its `Info`."""
    return loop.best, loop.record.info(task.stop)._replace(iterates=loop.kept)


def run(task: Task) -> tuple[Vector, Info]:
    """Iterates one task to its end."""
    return outcome(task, resume(task, begin(task)))


def skip_if(done: jax.Array, otherwise: Callable[[Any], Any], value: Any) -> Any:
    """`value` if `done`, else `otherwise(value)`.

    A loop of at most one step. Under `vmap` a conditional evaluates both branches for every
    example; a loop is not entered at all once every example is done.
    """
    return while_loop(
        lambda carry: ~carry[0],
        lambda carry: (jnp.ones_like(carry[0]), otherwise(carry[1])),
        (done, value),
    )[1]


def _reported(task: Task, progress: Progress, record: Record) -> Vector:
    if not task.go_on:
        return progress.value
    usable = record.status == Status.CONVERGED
    return task.problem.space.where(usable, progress.following, progress.value)
