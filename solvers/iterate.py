"""The one loop: stop rule, step limit, best iterate, failure detection, status and trace.

A `Method` is a pair of pure functions `(init, step)` over a state of its own, as in optax and
blackjax. It reports its `Progress`; everything that is common to iterations happens here.
`docs/adding_a_method.md` shows a complete one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from solvers.info import Info, Status
from solvers.vectors import Vector

State = Any
Problem = Any

_RUNNING = -1
# A solve may leave its starting scale, but a residual is never excused by a runaway iterate:
# x <- x + 1 has residual 1 for ever, and 1 is small beside 1e6.
_SCALE_CEILING = 100.0


class Progress(NamedTuple):
    """What a method reports after `init` and after every `step`."""

    value: Any  # the iterate, a vector
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


class Method(NamedTuple):
    """An iteration: `init(problem, x0)` and `step(problem, state, goal)`.

    Both return `(state, Progress)`. All arrays in `state` keep their shapes and dtypes.
    """

    init: Callable[[Problem, Vector], tuple[State, Progress]]
    step: Callable[[Problem, State, Any], tuple[State, Progress]]
    name: str = "method"


class Stop(NamedTuple):
    """When the loop ends: `residual <= max(rtol * scale, atol)`, or one of the limits."""

    rtol: jax.Array | float
    atol: jax.Array | float
    max_steps: int
    patience: int | None = 60  # steps without a new best before STALLED; None: never
    blowup: float | None = 1e6  # growth over the first residual before DIVERGED; None: never
    keep_best: bool = True  # False: the last finite iterate (fixed-length truncations)
    trace: int = 0  # length of the residual trace


class Task(NamedTuple):
    """One problem, ready to be iterated."""

    method: Method
    problem: Problem
    start: Vector
    stop: Stop


class Record(NamedTuple):
    """What the loop remembers of a solve besides vectors: all scalars, but for the trace."""

    best_residual: jax.Array
    best_scale: jax.Array
    scale: jax.Array
    ceiling: jax.Array
    first: jax.Array
    reference: jax.Array  # monitor at the last real improvement
    quiet: jax.Array  # steps since then
    steps: jax.Array
    status: jax.Array
    evaluations: jax.Array
    trace: jax.Array

    @property
    def running(self) -> jax.Array:
        return self.status == _RUNNING

    def info(self) -> Info:
        """What the user is told."""
        return Info(
            steps=self.steps,
            residual=_relative(self.best_residual, self.best_scale),
            status=self.status,
            evaluations=self.evaluations,
            trace=self.trace if self.trace.size else None,
        )


class Loop(NamedTuple):
    """The carry of the loop. A batch of these can be gathered, resumed and scattered."""

    state: State
    best: Vector
    record: Record

    @property
    def running(self) -> jax.Array:
        return self.record.running


def begin(task: Task) -> Loop:
    """The state of the loop before its first step."""
    finite_start = jnp.isfinite(task.start)
    start = jnp.where(finite_start, task.start, 0)
    state, progress = task.method.init(task.problem, start)
    record = open_record(task.stop, progress, jnp.all(finite_start), task.start.dtype)
    usable = record.status != Status.NONFINITE
    return Loop(state, jnp.where(usable, progress.value, start), record)


def advance(task: Task, loop: Loop) -> Loop:
    """One step of the method and everything the loop decides about it."""
    stop, record = task.stop, loop.record
    goal = jnp.maximum(stop.rtol * record.scale, stop.atol).astype(record.scale.dtype)
    last = record.steps + 1 >= stop.max_steps
    state, progress = task.method.step(task.problem, loop.state, Goal(goal, last))
    record, better = judge(stop, record, progress)
    return Loop(state, jnp.where(better, progress.value, loop.best), record)


def open_record(stop: Stop, progress: Progress, healthy: jax.Array, dtype: jnp.dtype) -> Record:
    """The record of a solve from what `init` reports; `healthy`: was the start finite?"""
    residual = lax.stop_gradient(progress.residual)
    scale = lax.stop_gradient(progress.scale)
    monitor = residual if progress.monitor is None else lax.stop_gradient(progress.monitor)
    finite = healthy & jnp.isfinite(residual) & jnp.isfinite(monitor) & jnp.isfinite(scale)
    goal = jnp.maximum(stop.rtol * scale, stop.atol)
    status = jnp.select(
        [~finite, (residual <= goal) & progress.trusted],
        [int(Status.NONFINITE), int(Status.CONVERGED)],
        _RUNNING if stop.max_steps > 0 else int(Status.MAX_STEPS),
    )
    trace = jnp.full((stop.trace,), jnp.nan, dtype)
    if stop.trace:
        trace = trace.at[0].set(_relative(monitor, scale))
    return Record(
        best_residual=jnp.where(finite, residual, jnp.inf).astype(dtype),
        best_scale=scale.astype(dtype),
        scale=scale.astype(dtype),
        ceiling=(_SCALE_CEILING * scale).astype(dtype),
        first=jnp.maximum(monitor, goal).astype(dtype),
        reference=monitor.astype(dtype),
        quiet=jnp.int32(0),
        steps=jnp.int32(0),
        status=status.astype(jnp.int32),
        evaluations=jnp.asarray(progress.evaluations, jnp.int32),
        trace=trace,
    )


def judge(stop: Stop, record: Record, progress: Progress) -> tuple[Record, jax.Array]:
    """The record after a step, and whether its iterate is the best so far."""
    dtype = record.scale.dtype
    steps = record.steps + 1
    residual = lax.stop_gradient(progress.residual).astype(dtype)
    monitor = residual if progress.monitor is None else lax.stop_gradient(progress.monitor)
    reached = lax.stop_gradient(progress.scale).astype(dtype)
    scale = jnp.minimum(reached, record.ceiling)
    goal = jnp.maximum(stop.rtol * scale, stop.atol).astype(dtype)
    finite = jnp.isfinite(residual) & jnp.isfinite(monitor) & jnp.isfinite(scale)
    # Far out, f(x) - x is rounded to zero whatever f is.
    resolved = (reached <= record.ceiling) | (jnp.finfo(dtype).eps * reached <= goal)
    converged = finite & (residual <= goal) & resolved & progress.trusted
    improved = monitor < 0.999 * record.reference
    quiet = jnp.where(improved, 0, record.quiet + 1)
    stalled = quiet > stop.patience if stop.patience is not None else False
    diverged = monitor > stop.blowup * record.first if stop.blowup is not None else False
    status = jnp.where(steps >= stop.max_steps, int(Status.MAX_STEPS), _RUNNING)
    # The strongest verdict comes last. (Nested selections compile to one small kernel.)
    for verdict, reason in (
        (stalled, Status.STALLED),
        (diverged, Status.DIVERGED),
        (progress.broken, Status.BREAKDOWN),
        (converged, Status.CONVERGED),
        (~finite, Status.NONFINITE),
    ):
        status = jnp.where(verdict, int(reason), status)
    better = finite & ((residual < record.best_residual) | converged | (not stop.keep_best))
    trace = record.trace
    if stop.trace:
        trace = trace.at[steps].set(_relative(monitor, scale).astype(dtype), mode="drop")
    return Record(
        best_residual=jnp.where(better, residual, record.best_residual),
        best_scale=jnp.where(better, scale, record.best_scale),
        scale=jnp.where(finite, scale, record.scale),
        ceiling=record.ceiling,
        first=record.first,
        reference=jnp.where(improved, monitor, record.reference).astype(dtype),
        quiet=quiet,
        steps=steps,
        status=status.astype(jnp.int32),
        evaluations=record.evaluations + progress.evaluations,
        trace=trace,
    ), better


def resume(task: Task, loop: Loop, keep_going: Callable[[Loop], jax.Array] | None = None) -> Loop:
    """Advances `loop` until it ends, or until `keep_going(loop)` is false."""

    def running(loop: Loop) -> jax.Array:
        return loop.running if keep_going is None else loop.running & keep_going(loop)

    return lax.while_loop(running, lambda loop: advance(task, loop), loop)


def unroll(task: Task, loop: Loop) -> Loop:
    """Like `resume`, as a scan of `max_steps` steps through which reverse mode can pass."""

    def body(loop: Loop, _: None) -> tuple[Loop, None]:
        return lax.cond(
            loop.running, lambda loop: advance(task, loop), lambda loop: loop, loop
        ), None

    return lax.scan(body, loop, None, length=task.stop.max_steps)[0]


def unless(done: jax.Array, turn: Callable[[Any], Any], value: Any) -> Any:
    """`value` if `done`, else `turn(value)`.

    A loop of at most one turn. Under `vmap` a conditional evaluates both branches for every
    example; a loop is not entered at all once every example is done.
    """
    start = (done, value)
    return lax.while_loop(
        lambda carry: ~carry[0], lambda carry: (jnp.ones_like(done), turn(carry[1])), start
    )[1]


def outcome(loop: Loop) -> tuple[Vector, Info]:
    """The best iterate and its `Info`."""
    return loop.best, loop.record.info()


def run(task: Task) -> tuple[Vector, Info]:
    """Iterates one task to its end."""
    return outcome(resume(task, begin(task)))


def run_batch(
    task: Task, spread: Callable[[jax.Array], jax.Array], go_on: bool = False
) -> tuple[Vector, Info]:
    """A task whose vectors are those of a whole batch, in whatever layout.

    One step of the method serves all examples; each has a record and a verdict of its own. The
    method reports residuals and scales `[batch]` and may look neither at its goal nor at the
    identity of an example. `spread` makes numbers `[batch]` broadcast against vectors. With `go_on`
    an example that converges is left with the iterate that follows the one that did.
    """
    # The state of an example that has ended goes on changing; its best iterate does not.
    state, progress = task.method.init(task.problem, task.start)
    dtype = task.start.dtype

    def told(progress: Progress, residual: jax.Array, scale: jax.Array) -> Progress:
        return progress._replace(value=None, following=None, residual=residual, scale=scale)

    def held(progress: Progress, record: Record) -> Vector:
        if not go_on:
            return progress.value
        usable = record.status == Status.CONVERGED
        return jnp.where(spread(usable), progress.following, progress.value)

    record = jax.vmap(
        lambda residual, scale: open_record(
            task.stop, told(progress, residual, scale), jnp.bool_(True), dtype
        )
    )(progress.residual, progress.scale)
    usable = record.status != Status.NONFINITE
    best = jnp.where(spread(usable), held(progress, record), 0)

    def turn(carry: tuple) -> tuple:
        state, best, record = carry
        state, progress = task.method.step(task.problem, state, None)
        later, better = jax.vmap(
            lambda record, residual, scale: judge(
                task.stop, record, told(progress, residual, scale)
            )
        )(record, progress.residual, progress.scale)
        running = record.running
        record = jax.vmap(lambda going, *both: jax.tree.map(partial(jnp.where, going), *both))(
            running, later, record
        )
        return state, jnp.where(spread(better & running), held(progress, record), best), record

    _, best, record = lax.while_loop(
        lambda carry: jnp.any(carry[2].running), turn, (state, best, record)
    )
    return best, record.info()


def in_groups(
    count: jax.Array, size: int, turn: Callable[[jax.Array, Any], Any], carry: Any
) -> Any:
    """`carry <- turn(first, carry)` for `first` = 0, `size`, 2 `size`, ... below `count`."""
    return lax.while_loop(
        lambda state: state[0] < count,
        lambda state: (state[0] + size, turn(*state)),
        (jnp.int32(0), carry),
    )[1]


def backtrack(
    trial: Callable[[jax.Array], tuple[jax.Array, Any]], length: jax.Array, halvings: int
) -> tuple[jax.Array, Any, jax.Array]:
    """Halves `length` until `trial(length) -> (accepted, result)` accepts, or `halvings` times.

    Returns `(accepted, result, trials)`; the result is that of the last trial.
    """

    def body(carry: tuple) -> tuple:
        length, _, _, trials = carry
        accepted, result = trial(0.5 * length)
        return 0.5 * length, accepted, result, trials + 1

    accepted, result = trial(length)
    _, accepted, result, trials = lax.while_loop(
        lambda carry: ~carry[1] & (carry[3] <= halvings),
        body,
        (length, accepted, result, jnp.int32(1)),
    )
    return accepted, result, trials


def _relative(residual: jax.Array, scale: jax.Array) -> jax.Array:
    return jnp.where(jnp.isfinite(residual), residual / jnp.where(scale > 0, scale, 1), jnp.inf)
