"""What a solve says about itself: `Info`, `Status`, advice in words, and `check`."""

from __future__ import annotations

import enum
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import checkify


class Status(enum.IntEnum):
    """How a solve ended. Each member carries a sentence of advice in `.advice`."""

    CONVERGED = 0
    MAX_STEPS = 1
    STALLED = 2
    DIVERGED = 3
    NONFINITE = 4
    BREAKDOWN = 5

    @property
    def advice(self) -> str:
        return _ADVICE[self]


_ADVICE = {
    Status.CONVERGED: "The residual met the tolerance.",
    Status.MAX_STEPS: (
        "The step limit was reached first: raise max_steps, loosen rtol, or use a faster method "
        "(anderson or newton for fixed points; a preconditioner for linear systems)."
    ),
    Status.STALLED: (
        "The residual stopped falling above the tolerance: the tolerance may lie below what this "
        "precision can reach (loosen rtol or use float64), the map may not contract there (use "
        "newton or auto), or the problem is nearly singular."
    ),
    Status.DIVERGED: (
        "The residual grew: the map does not contract from this start. Use newton or auto, "
        "damp the iteration, start closer, or bound the map's Jacobian (solvers.penalties)."
    ),
    Status.NONFINITE: (
        "A NaN or infinity appeared: look for it in the inputs and parameters first, "
        "then in the map itself (overflow, division by zero, log of a negative number)."
    ),
    Status.BREAKDOWN: (
        "The method ran out of usable directions, restarts included: the system is singular or "
        "nearly so. Try gmres or lsqr, a preconditioner, or solvers.diagnose.report."
    ),
}


class Info(NamedTuple):
    """Outcome of one solve; under `vmap` every field gains the batch dimension.

    Attributes:
      steps: int32, steps of the method that were taken.
      residual: relative residual at the returned value.
      status: int32, a `Status`.
      evaluations: int32, evaluations of the map, or products with the matrix, its
        Jacobian or their transposes: the cost, comparable across methods.
      trace: relative residual after 0, 1, 2, ... steps (NaN after the last), or None.
      winner: int32, which start won (`solvers.race`), or None.
    """

    steps: jax.Array
    residual: jax.Array
    status: jax.Array
    evaluations: jax.Array | int = 0
    trace: jax.Array | None = None
    winner: jax.Array | None = None

    @property
    def converged(self) -> jax.Array:
        """Whether the tolerance was met: a bool array, one entry per example."""
        return self.status == Status.CONVERGED


class SolveError(RuntimeError):
    """A solve that was required to converge did not."""


def explain(status: int | jax.Array | Status) -> str:
    """The name of a status and what to do about it; of a batch, a line for each that occurs.

    >>> explain(Status.CONVERGED)
    'CONVERGED: The residual met the tolerance.'
    """
    members = [Status(int(number)) for number in np.unique(np.asarray(status))]
    return "\n".join(f"{member.name}: {member.advice}" for member in members)


def check(info: Info) -> None:
    """Raises `SolveError` unless every example converged.

    Inside `jit` the check becomes a `jax.experimental.checkify.check`; wrap the jitted
    function with `checkify.checkify` to receive it.
    """
    if isinstance(info.status, jax.core.Tracer):
        checkify.check(
            jnp.all(info.converged),
            "a solve did not converge: worst status {status}, largest relative residual {residual}",
            status=jnp.max(info.status),
            residual=jnp.max(info.residual),
        )
        return
    status = np.atleast_1d(np.asarray(info.status))
    failed = np.flatnonzero(status.ravel() != Status.CONVERGED)
    if failed.size == 0:
        return
    residual = np.broadcast_to(np.asarray(info.residual), status.shape).ravel()
    steps = np.broadcast_to(np.asarray(info.steps), status.shape).ravel()
    lines = [f"{failed.size} of {status.size} solves did not converge"]
    for code in np.unique(status.ravel()[failed]):
        where = failed[status.ravel()[failed] == code]
        first = where[0]
        lines.append(
            f"  {where.size} x {explain(code)}\n"
            f"    first at index {first}: {steps[first]} steps, "
            f"relative residual {residual[first]:.3g}"
        )
    raise SolveError("\n".join(lines))
