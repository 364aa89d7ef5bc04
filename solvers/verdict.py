"""From residuals to a `Status`: the one place where that is decided.

A solve has met its goal when `residual <= max(rtol scale, atol)`. What is reported is the residual
relative to `max(scale, atol / rtol)`, so that CONVERGED says that the reported number is at most
`rtol`.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from solvers.info import Info, Status

RUNNING = -1
# Farther out than this many times the scale of the start, a small relative residual is no longer
# taken at its word: x <- x + 1 has residual 1 for ever, and 1 is small beside 1e6.
_FAR = 100.0
# There, the residual must have fallen to a share of the first one, beside which rounding is small.
_FALLEN, _RESOLVED = 0.01, 0.1


class Stop(NamedTuple):
    """When a loop ends: `residual <= max(rtol scale, atol)`, or one of the limits.

    Attributes:
      rtol, atol: tolerances; an `atol` of None is `floor` times the scale of the start.
      max_steps: step limit.
      patience: steps without a new best before STALLED; None: never.
      blowup: growth over the first residual before DIVERGED; None: never.
      keep_best: False: the last finite iterate (fixed-length truncations).
      trace: length of the residual trace.
      floor: see `atol`.
    """

    rtol: jax.Array | float
    atol: jax.Array | float | None
    max_steps: int
    patience: int | None = 60
    blowup: float | None = 1e6
    keep_best: bool = True
    trace: int = 0
    floor: float = 0.0


class Record(NamedTuple):
    """What a loop remembers of a solve besides vectors; scalars, or one for each example."""

    best_residual: jax.Array
    best_scale: jax.Array
    scale: jax.Array
    atol: jax.Array
    first: jax.Array  # residual at the start, but at least the goal
    first_scale: jax.Array
    reference: jax.Array  # monitor at the last real improvement
    quiet: jax.Array  # steps since then
    steps: jax.Array
    status: jax.Array
    evaluations: jax.Array
    trace: jax.Array | None

    @property
    def running(self) -> jax.Array:
        return self.status == RUNNING

    def goal(self, stop: Stop) -> jax.Array:
        """The residual at which the solve ends, as far as is known."""
        return jnp.maximum(stop.rtol * self.scale, self.atol).astype(self.scale.dtype)

    def info(self, stop: Stop) -> Info:
        """What the user is told."""
        return Info(
            steps=self.steps,
            residual=relative(self.best_residual, self.best_scale, stop.rtol, self.atol),
            status=self.status,
            evaluations=self.evaluations,
            trace=self.trace,
        )


def verdict(
    *,
    finite: jax.Array,
    met: jax.Array,
    broken: jax.Array | bool = False,
    diverged: jax.Array | bool = False,
    stalled: jax.Array | bool = False,
    exhausted: jax.Array | bool = True,
) -> jax.Array:
    """The status of a solve; of several reasons the strongest, and RUNNING where there is none."""
    status = jnp.where(jnp.asarray(exhausted), int(Status.MAX_STEPS), RUNNING)
    # The strongest comes last. (Nested selections compile to one small kernel.)
    for holds, reason in (
        (stalled, Status.STALLED),
        (diverged, Status.DIVERGED),
        (broken, Status.BREAKDOWN),
        (met, Status.CONVERGED),
        (~finite, Status.NONFINITE),
    ):
        status = jnp.where(holds, int(reason), status)
    return status.astype(jnp.int32)


def of_remainder(residual: jax.Array, rtol: jax.Array | float, healthy: jax.Array | bool = True):
    """A series that was cut off, judged by what is left of it: small, shrinking, or growing."""
    finite = jnp.isfinite(residual) & healthy
    return verdict(finite=finite, met=residual <= rtol, diverged=residual > 1)


def recheck(status: jax.Array, residual: jax.Array, rtol: jax.Array | float) -> jax.Array:
    """A status after its residual has been computed again, from the value that is returned."""
    met = residual <= rtol
    lost = (status == Status.CONVERGED) & ~met
    found = met & (status != Status.NONFINITE)
    status = jnp.where(lost, int(Status.STALLED), status)
    return jnp.where(found, int(Status.CONVERGED), status).astype(jnp.int32)


def relative(
    residual: jax.Array,
    scale: jax.Array,
    rtol: jax.Array | float = 0.0,
    atol: jax.Array | float = 0.0,
) -> jax.Array:
    """A residual beside `max(scale, atol / rtol)`; infinite where it is not finite.

    Beside nothing, what is left is all there is: 1.
    """
    rtol = jnp.asarray(rtol, scale.dtype)
    by_atol = jnp.where(rtol > 0, atol / jnp.where(rtol > 0, rtol, 1), 0)
    against = jnp.maximum(scale, jnp.where(jnp.isfinite(by_atol), by_atol, 0))
    value = residual / jnp.where(against > 0, against, jnp.where(residual > 0, residual, 1))
    return jnp.where(jnp.isfinite(value), value, jnp.inf).astype(scale.dtype)


def open_record(stop: Stop, progress: NamedTuple, healthy: jax.Array) -> Record:
    """The record of a solve from what `init` reports; `healthy`: was the start finite?"""
    residual, scale, monitor, trusted, _ = _steering(progress)
    dtype = scale.dtype
    finite = healthy & jnp.isfinite(residual) & jnp.isfinite(monitor) & jnp.isfinite(scale)
    atol = stop.floor * scale if stop.atol is None else jnp.asarray(stop.atol, dtype)
    atol = jnp.broadcast_to(atol, scale.shape)
    goal = jnp.maximum(stop.rtol * scale, atol).astype(dtype)
    status = verdict(finite=finite, met=(residual <= goal) & trusted, exhausted=stop.max_steps == 0)
    trace = None
    if stop.trace:
        entry = relative(monitor, scale, stop.rtol, atol)
        trace = jnp.full((stop.trace,), -1, dtype).at[0].set(entry)
    zero = jnp.zeros_like(status)
    return Record(
        best_residual=jnp.where(finite, residual, jnp.inf).astype(dtype),
        best_scale=scale,
        scale=scale,
        atol=atol,
        first=jnp.maximum(monitor, goal).astype(dtype),
        first_scale=scale,
        reference=monitor.astype(dtype),
        quiet=zero,
        steps=zero,
        status=status,
        evaluations=zero + jnp.asarray(progress.evaluations, jnp.int32),  # type: ignore[attr-defined]
        trace=trace,
    )


def judge(stop: Stop, record: Record, progress: NamedTuple) -> tuple[Record, jax.Array]:
    """The record after a step, and whether its iterate is the best so far."""
    residual, scale, monitor, trusted, broken = _steering(progress)
    dtype = record.scale.dtype
    residual, scale, monitor = (a.astype(dtype) for a in (residual, scale, monitor))
    steps = record.steps + 1
    goal = jnp.maximum(stop.rtol * scale, record.atol).astype(dtype)
    finite = jnp.isfinite(residual) & jnp.isfinite(monitor) & jnp.isfinite(scale)
    credible = (scale <= _FAR * record.first_scale) | (
        (residual <= _FALLEN * record.first)
        & (jnp.finfo(dtype).eps * scale <= _RESOLVED * record.first)
    )
    converged = finite & (residual <= goal) & credible & trusted
    improved = monitor < 0.999 * record.reference
    quiet = jnp.where(improved, 0, record.quiet + 1)
    status = verdict(
        finite=finite,
        met=converged,
        broken=broken,
        diverged=False if stop.blowup is None else monitor > stop.blowup * record.first,
        stalled=False if stop.patience is None else quiet > stop.patience,
        exhausted=steps >= stop.max_steps,
    )
    better = finite & ((residual < record.best_residual) | converged | (not stop.keep_best))
    trace = record.trace
    if trace is not None:
        entry = relative(monitor, scale, stop.rtol, record.atol)
        trace = trace.at[steps].set(entry.astype(dtype), mode="drop")
    return Record(
        best_residual=jnp.where(better, residual, record.best_residual),
        best_scale=jnp.where(better, scale, record.best_scale),
        scale=jnp.where(finite, scale, record.scale),
        atol=record.atol,
        first=record.first,
        first_scale=record.first_scale,
        reference=jnp.where(improved, monitor, record.reference).astype(dtype),
        quiet=quiet,
        steps=steps,
        status=status,
        evaluations=record.evaluations + progress.evaluations,  # type: ignore[attr-defined]
        trace=trace,
    ), better


def _steering(progress: NamedTuple) -> tuple:
    """Residual, scale, monitor, trusted and broken, constant under differentiation."""
    p = progress
    monitor = p.residual if p.monitor is None else p.monitor  # type: ignore[attr-defined]
    return lax.stop_gradient((p.residual, p.scale, monitor, p.trusted, p.broken))  # type: ignore[attr-defined]
