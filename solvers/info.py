"""What a solve says about itself: `Info`, `Status`, advice in words, and `check`."""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import checkify, io_callback


class Status(enum.IntEnum):
    """How a solve ended. Each member carries a sentence of advice in `.advice`.

    The numbers are hexadecimal digits, so that up to 15 of them can be added and told apart: the
    gradients of a probe that several backward solves share are (`solvers.adjoint.read_probe`).
    """

    CONVERGED = 0
    MAX_STEPS = 0x1
    STALLED = 0x10
    DIVERGED = 0x100
    NONFINITE = 0x1000
    BREAKDOWN = 0x10000

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
      trace: relative residual after 0, 1, 2, ... steps (-1 after the last), or None.
      winner: int32, which start won (`solvers.race`), or None.
      iterates: recorded iterates, leaves with a leading axis (`fixed_point(record=...)`), or None.
    """

    steps: jax.Array
    residual: jax.Array
    status: jax.Array
    evaluations: jax.Array | int = 0
    trace: jax.Array | None = None
    winner: jax.Array | None = None
    iterates: Any = None

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

    Inside `jit` the check becomes a `jax.experimental.checkify.check`; wrap the jitted function
    with `checkify.checkify` to receive it. Checkify takes no loop under `vmap`: the `Info` of a
    batch, or of an example inside of `vmap`, is looked at by the program when it runs, which then
    fails with the same text.
    """
    if isinstance(info.status, jax.core.Tracer) and (info.status.ndim or _is_mapped(info.status)):
        numbers = jax.lax.stop_gradient((info.status, info.residual, info.steps))
        io_callback(_raise_unless_converged, None, *numbers)
        return
    if isinstance(info.status, jax.core.Tracer):
        checkify.check(
            jnp.all(info.converged),
            "a solve did not converge: worst status {status}, largest relative residual {residual}",
            status=jnp.max(info.status),
            residual=jnp.max(info.residual),
        )
        return
    _raise_unless_converged(info.status, info.residual, info.steps)


def _is_mapped(value: Any) -> bool:
    """Whether a value is traced by `vmap`, on whatever level."""
    while isinstance(value, jax.core.Tracer):
        if type(value).__name__ == "BatchTracer":
            return True
        value = getattr(value, "primal", None)
    return False


def _raise_unless_converged(status: Any, residual: Any, steps: Any, what: str = "solves") -> None:
    message = _complaint(status, residual, steps, what)
    if message:
        raise SolveError(message)


def require_converged(info: Info, value: Any, what: str) -> Any:
    """`value`, from which nothing can be computed unless every example has converged.

    Outside of a trace the error is raised here. Inside `jit` and `vmap` it is raised by the program
    when it runs, for the whole batch at once, and carries the same text.
    """
    if not isinstance(info.status, jax.core.Tracer):
        _raise_unless_converged(info.status, info.residual, info.steps, what)
        return value

    def look(status: np.ndarray, residual: np.ndarray, steps: np.ndarray) -> np.ndarray:
        _raise_unless_converged(status, residual, steps, what)
        return np.zeros(np.shape(status), bool)

    failed = jax.pure_callback(
        look,
        jax.ShapeDtypeStruct(info.status.shape, bool),
        *jax.lax.stop_gradient((info.status, info.residual, info.steps)),
        vmap_method="broadcast_all",
    )
    failed = jnp.any(failed)
    return jax.tree.map(lambda leaf: jnp.where(failed, jnp.zeros_like(leaf), leaf), value)


def _complaint(status: Any, residual: Any, steps: Any, what: str = "solves") -> str | None:
    """What did not converge, where it is in the batch, and what to try; None if nothing."""
    status = np.atleast_1d(np.asarray(status))
    failed = np.flatnonzero(status.ravel() != Status.CONVERGED)
    if failed.size == 0:
        return None
    residual = np.broadcast_to(np.asarray(residual), status.shape).ravel()
    steps = np.broadcast_to(np.asarray(steps), status.shape).ravel()
    lines = [f"{failed.size} of {status.size} {what} did not converge"]
    for code in np.unique(status.ravel()[failed]):
        where = failed[status.ravel()[failed] == code]
        first = where[0]
        shown = ", ".join(map(str, where[:_MOST_SHOWN])) + (", ..." * (where.size > _MOST_SHOWN))
        lines.append(
            f"  {where.size} x {explain(code)}\n"
            f"    at index {shown}; first at index {first}: {steps[first]} steps, "
            f"relative residual {residual[first]:.3g}"
        )
    return "\n".join(lines)


_MOST_SHOWN = 10
