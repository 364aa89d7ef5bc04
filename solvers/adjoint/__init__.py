"""How a gradient passes a solve.

At `x = f(theta, x)` with `J = df/dx` and `c` the cotangent of `x`, the gradient is

    w = (I - J^T)^-1 c,    theta_bar = (df/dtheta)^T w.

An adjoint says how `w` is found: exactly, by a truncated series, or, for `bptt` and `tbptt`, by
going back through iterations that were really made. `docs/choosing.md` compares them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from solvers.info import Info, Status
from solvers.linear import cgne, richardson
from solvers.linear import neumann as neumann_series
from solvers.linear import resolve as resolve_linear
from solvers.linear.solve import OnFailure, Solver, check_policy
from solvers.settings import Settings, require_callable, require_count, require_number


@dataclasses.dataclass(frozen=True, eq=False)
class Adjoint(Settings):
    """How a gradient passes a solve; made by the factories of this module.

    Attributes:
      name: for messages.
      mode: "reverse" (a linear solve in the backward pass), "tangent" (a linear solve for
        tangents, transposed for cotangents) or "unroll" (back through iterations).
      linear: the solver for `(I - J^T) w = c`.
      on_failure: what an example yields whose forward or backward solve failed: the best iterate of
        the backward one, zero, or NaN. Zero is zero even where the map or its data are NaN; its
        price is a gradient of shared parameters for every example of a `vmap`.
      precond: `(theta, x) -> (v -> M v)`, `M` close to `(I - J)^-1`; used transposed. `"forward"`:
        what the forward method found out about the inverse (`broyden`).
      key: draws the start of the backward solve, uniform in [0, 1]; None: it starts from zero.
      steps: iterations to go back through, for "unroll"; None is all of them.
      checkpoint: for "unroll": keep every so many iterates and compute the others again.
    """

    name: str
    mode: str
    linear: Solver | None = None
    on_failure: OnFailure = "best"
    precond: Callable | str | None = None
    key: jax.Array | None = None
    steps: int | None = None
    checkpoint: int | None = None

    def __post_init__(self) -> None:
        check_policy(self.on_failure)
        if self.checkpoint is not None:
            require_count("checkpoint", self.checkpoint, 1)
        if not isinstance(self.precond, str):
            require_callable("precond", self.precond)
        elif self.precond != "forward":
            raise ValueError(f'precond must be a function or "forward", got {self.precond!r}')


def implicit(
    linear: Solver | str | None = None,
    *,
    precond: Callable | str | None = None,
    on_failure: OnFailure = "best",
) -> Adjoint:
    """Exact: solves `(I - J^T) w = c` with any linear solver (or its name), by default
    `bicgstab()`.

    `precond="forward"` preconditions it by the approximate inverse that the forward method
    `broyden` ends with (SHINE: Ramzi et al., 2022), at no further cost.
    """
    return Adjoint("implicit", "reverse", resolve_linear(linear), on_failure, precond)


def shine(steps: int = 0, *, on_failure: OnFailure = "best") -> Adjoint:
    """SHINE (Ramzi et al., 2022): `w = H^T c` with the inverse `H` that `broyden` ends with.

    No backward solve at all, or `steps` Richardson steps preconditioned by `H^T` to refine it:
    `implicit(precond="forward")` is the exact form.
    """
    linear = richardson(max_steps=require_count("steps", steps) + 1, truncated=True)
    return Adjoint("shine", "reverse", linear, on_failure, "forward")


def neumann(steps: int, *, on_failure: OnFailure = "best") -> Adjoint:
    """Neumann-RBP, Algorithm 2: `v <- J^T v; g <- g + v` from `v = g = c`, `steps` times."""
    return Adjoint("neumann", "reverse", neumann_series(require_count("steps", steps)), on_failure)


def rbp(
    steps: int | None = None,
    *,
    rtol: float | None = None,
    start: str = "zeros",
    key: jax.Array | None = None,
    precond: Callable | None = None,
    on_failure: OnFailure = "best",
) -> Adjoint:
    """Recurrent back-propagation, Algorithm 1: `z <- J^T z + c`, `steps` times or until `rtol`.

    From `start="zeros"`, `K + 1` steps equal `neumann(K)` (Proposition 3). The algorithm's own
    start is `"uniform"` in [0, 1], drawn with `key` (by default `jax.random.key(0)`, the same at
    every call). A `precond` turns it into the preconditioned iteration
    `z <- z + M^T (c - (I - J^T) z)`.
    """
    if start not in ("zeros", "uniform"):
        raise ValueError(f'start must be "zeros" or "uniform", got {start!r}')
    if start == "zeros" and key is not None:
        raise ValueError('rbp draws nothing from start="zeros": leave out the key')
    if start == "uniform" and key is None:
        key = jax.random.key(0)
    linear = richardson(**_length("rbp", steps, rtol))
    return Adjoint("rbp", "reverse", linear, on_failure, precond, key)


def cg_rbp(
    steps: int | None = None, *, rtol: float | None = None, on_failure: OnFailure = "best"
) -> Adjoint:
    """CG-RBP: conjugate gradients on `(I - J)(I - J^T) z = (I - J) c`."""
    return Adjoint("cg_rbp", "reverse", cgne(**_length("cg_rbp", steps, rtol)), on_failure)


def phantom(steps: int, damping: float = 0.5, *, on_failure: OnFailure = "best") -> Adjoint:
    """Phantom gradient: `damping sum_{k<steps} (damping J^T + (1 - damping) I)^k c`.

    What automatic differentiation of `steps` damped iterations at the solution gives, without
    keeping them.
    """
    steps = require_count("steps", steps)
    linear = richardson(max_steps=steps, damping=damping, truncated=True)
    return Adjoint("phantom", "reverse", linear, on_failure)


def one_step(*, on_failure: OnFailure = "best") -> Adjoint:
    """`w = c`: the gradient of one last evaluation of the map; no backward solve at all."""
    return Adjoint("one_step", "reverse", neumann_series(0), on_failure)


def tangent(
    linear: Solver | str | None = None,
    *,
    precond: Callable | None = None,
    on_failure: OnFailure = "best",
) -> Adjoint:
    """Exact, in both modes and to any order: `jvp`, `jacfwd` and `hessian` work.

    Tangents solve `(I - J) x_dot = (df/dtheta) theta_dot`; reverse mode transposes that solve,
    whose status is then not visible to a probe.
    """
    return Adjoint("tangent", "tangent", resolve_linear(linear), on_failure, precond)


def bptt(*, checkpoint: int | None = None, on_failure: OnFailure = "best") -> Adjoint:
    """Back through every iteration of the forward method, with its coefficients held fixed.

    Of `picard` and of `newton` with exact linear solves this is the derivative of the iterations.
    Methods that choose coefficients on their way (the weights of `anderson`, the approximate
    inverse of `broyden`, secants, step lengths, and which iterate is returned) have these taken as
    constants: the derivative of the iteration that uses the same numbers again. Derivatives reach
    `x0`.

    The forward loop becomes a scan of `max_steps` steps, all of whose iterates are kept. With
    `checkpoint`, only every so many of them are, and those between are computed again: of K steps,
    `checkpoint=sqrt(K)` keeps `2 sqrt(K)` for one more forward pass.
    """
    return Adjoint("bptt", "unroll", None, on_failure, checkpoint=checkpoint)


def tbptt(steps: int, *, checkpoint: int | None = None, on_failure: OnFailure = "best") -> Adjoint:
    """Back through the last `steps` evaluations of the map.

    The forward method gets `max_steps - steps` steps; then the map is applied `steps` times and
    these applications are differentiated. At the fixed point `tbptt(K + 1)` equals `neumann(K)`
    (Proposition 1). Memory grows with `steps`, less with `checkpoint` (as in `bptt`).
    """
    steps = require_count("steps", steps)
    return Adjoint("tbptt", "unroll", None, on_failure, steps=steps, checkpoint=checkpoint)


ADJOINTS: dict[str, Callable[..., Adjoint]] = {
    "implicit": implicit,
    "neumann": neumann,
    "rbp": rbp,
    "cg_rbp": cg_rbp,
    "bptt": bptt,
    "tbptt": tbptt,
    "phantom": phantom,
    "one_step": one_step,
    "tangent": tangent,
    "shine": shine,
}
"""Every adjoint by name, `name -> factory(**settings)`; those with a number of steps need it."""


def resolve(adjoint: Adjoint | str) -> Adjoint:
    """An adjoint given as itself or, where it has no required setting, by name."""
    if isinstance(adjoint, Adjoint):
        return adjoint
    if not isinstance(adjoint, str):
        raise TypeError(f"adjoint must be an Adjoint or a name, got {type(adjoint).__name__}")
    if adjoint not in ADJOINTS:
        raise ValueError(f"unknown adjoint {adjoint!r}; choose from {sorted(ADJOINTS)}")
    try:
        return ADJOINTS[adjoint]()
    except TypeError:
        raise ValueError(
            f"adjoint {adjoint!r} needs its number of steps: solvers.adjoint.{adjoint}(steps=...)"
        ) from None


def _length(name: str, steps: int | None, rtol: float | None) -> dict:
    """Settings of a linear solver that runs for `steps` steps or to `rtol`."""
    if (steps is None) == (rtol is None):
        raise ValueError(f"{name} takes either steps or rtol, got steps={steps}, rtol={rtol}")
    require_number("rtol", rtol)
    if steps is None:
        return {"rtol": rtol}
    return {"max_steps": require_count("steps", steps), "truncated": True}


def adjoint_probe(shape: tuple[int, ...] = ()) -> Info:
    """A zero-valued probe: pass it to `fixed_point` and differentiate with respect to it.

    Its "gradient" is the `Info` of the backward solve, as float32. Under `vmap` pass a probe of
    shape `(batch,)`, mapped, to see every example. The reports of solves that share a probe are
    added up; `read_probe` takes them apart.
    """
    zero = jnp.zeros(shape, jnp.float32)
    return Info(zero, zero, zero, zero)


def read_probe(gradient: Info) -> Info:
    """The `Info` in the gradient of a probe: of one backward solve, or of up to 15 that shared it.

    Steps and evaluations are those of all of them, the residual is the sum, and the status the
    worst: CONVERGED only if all have.
    """
    code = jnp.round(jnp.asarray(gradient.status)).astype(jnp.int32)
    status = jnp.zeros_like(code)
    for member in sorted(Status):
        if member != Status.CONVERGED:
            status = jnp.where((code // int(member)) % 16 > 0, int(member), status)
    steps, evaluations = (
        jnp.round(jnp.asarray(count)).astype(jnp.int32)
        for count in (gradient.steps, gradient.evaluations)
    )
    return Info(steps, jnp.asarray(gradient.residual), status, evaluations)
