"""What the linear solvers share: the problem in normal form, and `LinearSolver`.

Warm start, preconditioner and scale are taken out before a method sees the problem. With
`r0 = b - A x0` and a preconditioner `M ~ A^-1`, a method always solves, from zero,

    right:  (A M) y = r0 / s        left:  (M A) y = M r0 / s

and the solution is `x = x0 + s M y` (right) or `x0 + s y` (left). The power of two `s` makes the
right-hand side of order one, so a solve is exactly homogeneous in `b` and no dot product
underflows.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from solvers import iterate
from solvers.info import Info, Status
from solvers.vectors import (
    FLAT,
    Geometry,
    Tree,
    Vector,
    epsilon,
    norm,
    ravel,
    require_like,
    require_real,
    unraveler,
    working_dtype,
)

Operator = Callable[[Tree], Tree]


class LinearProblem(NamedTuple):
    """`operator(y) = rhs`, solved from zero."""

    operator: Callable[[Vector], Vector]
    transpose: Callable[[Vector], Vector]
    rhs: Vector
    scale: jax.Array  # norm that residuals are relative to: ||b|| / s
    geometry: Geometry = FLAT  # one number, or one for each example in lockstep


@dataclasses.dataclass(frozen=True)
class LinearSolver:
    """Solves `A x = b` from products with `A`: call it as `solve(matvec, b, x0, precond)`.

    Attributes:
      method: the iteration.
      rtol, atol: stop at `||b - A x|| <= max(rtol ||b||, atol)`; a `None` rtol stands for the
        2/3 power of the rounding unit (2e-5 in float32, 4e-11 in float64).
      max_steps: step limit.
      side: on which side a preconditioner acts; on the left, the stop rule sees `M (b - A x)`.
      truncated: the step count is the definition (Neumann, RBP): every step is taken, and not
        having converged is no failure.
      patience: steps without a new best before the solve counts as stalled.
    """

    method: iterate.Method
    rtol: float | None = None
    atol: float = 0.0
    max_steps: int = 200
    side: str = "right"
    truncated: bool = False
    patience: int = 60

    def __post_init__(self) -> None:
        if self.side not in ("left", "right"):
            raise ValueError(f'side must be "left" or "right", got {self.side!r}')
        if self.max_steps < 0:
            raise ValueError(f"max_steps must be at least 0, got {self.max_steps}")
        for name in ("rtol", "atol"):
            tolerance = getattr(self, name)
            if isinstance(tolerance, float | int) and tolerance < 0:
                raise ValueError(f"{name} must not be negative, got {tolerance}")

    def __call__(
        self,
        matvec: Operator,
        b: Tree,
        x0: Tree | None = None,
        precond: Operator | None = None,
        *,
        rtol: float | jax.Array | None = None,
        trace: int = 0,
    ) -> tuple[Tree, Info]:
        """Solves for `x`. `solvers.linear_solve` is the solve that can be differentiated.

        Args:
          matvec: `v -> A v`, linear, on pytrees like `b`.
          b: right-hand side.
          x0: where to start; zeros if not given.
          precond: `v -> M v` with `M` close to the inverse of `A`.
          rtol: overrides the solver's own; may be traced (Newton's forcing term is).
          trace: length of the residual trace in the returned `Info`.
        """
        task, finish = self.prepare(matvec, b, x0, precond, rtol=rtol, trace=trace)
        return finish(*iterate.run(task))

    def tolerance(self, b: Tree) -> float:
        """The relative tolerance for a right-hand side of this precision."""
        return epsilon(b) ** (2 / 3) if self.rtol is None else self.rtol

    def prepare(
        self,
        matvec: Operator,
        b: Tree,
        x0: Tree | None = None,
        precond: Operator | None = None,
        *,
        rtol: float | jax.Array | None = None,
        trace: int = 0,
    ) -> tuple[iterate.Task, Callable[[Vector, Info], tuple[Tree, Info]]]:
        """The problem in normal form, and the way back from its solution to `(x, Info)`."""
        b = require_real(b, "b")
        require_like(jax.eval_shape(matvec, b), b, "matvec(b)", "b")
        rtol = self.tolerance(b) if rtol is None else rtol
        dtype, unravel = working_dtype(b), unraveler(b)

        def on_vectors(function: Operator) -> Callable[[Vector], Vector]:
            return lambda vector: ravel(function(unravel(vector)), dtype)

        a = on_vectors(matvec)
        m = on_vectors(precond) if precond is not None else (lambda vector: vector)
        right = precond is not None and self.side == "right"
        left = precond is not None and self.side == "left"
        rhs = flat_b = ravel(b, dtype)
        if x0 is None:
            start = jnp.zeros_like(flat_b)
        else:
            require_like(x0, b, "x0", "b")
            start = jnp.where(jnp.any(flat_b != 0), ravel(require_real(x0, "x0"), dtype), 0)
            rhs = flat_b - a(start)
        unit = power_of_two(rhs)
        rhs = rhs / unit
        size = reference = norm(flat_b / unit)
        if left:
            rhs, reference = m(rhs), norm(m(flat_b / unit))

        def operator(vector: Vector) -> Vector:
            return a(m(vector)) if right else m(a(vector)) if left else a(vector)

        def transpose(vector: Vector) -> Vector:
            return jax.linear_transpose(operator, flat_b)(vector)[0]

        task = iterate.Task(
            method=self.method,
            problem=LinearProblem(operator, transpose, rhs, reference),
            start=jnp.zeros_like(flat_b),
            stop=iterate.Stop(
                rtol=0.0 if self.truncated else rtol,
                atol=0.0 if self.truncated else self.atol / unit,
                max_steps=self.max_steps,
                patience=None if self.truncated else self.patience,
                blowup=None if self.truncated else 1e6,
                keep_best=not self.truncated,
                trace=trace,
            ),
        )

        def finish(y: Vector, info: Info) -> tuple[Tree, Info]:
            x = start + unit * (m(y) if right else y)
            # The residual is that of the value returned, not of a recurrence. Outside the loop,
            # so that it costs nothing where nobody looks at it.
            residual = norm((flat_b - a(x)) / unit) / jnp.where(size > 0, size, 1)
            residual = jnp.where(jnp.isfinite(residual), residual, jnp.inf)
            status = info.status
            if self.truncated:
                status = truncated_status(status, residual, rtol)
            return unravel(x), info._replace(residual=residual, status=status)

        return task, finish


def failed(solver: object, info: Info) -> jax.Array:
    """Whether a solve is of no use: not converged or, for a truncated one, growing."""
    if getattr(solver, "truncated", False):
        return (info.status != Status.CONVERGED) & (info.status != Status.MAX_STEPS)
    return ~info.converged


def truncated_status(status: jax.Array, residual: jax.Array, rtol: jax.Array | float) -> jax.Array:
    """Judges a truncated series by its remainder: small, shrinking, or growing."""
    return jnp.select(
        [(status == Status.NONFINITE) | ~jnp.isfinite(residual), residual <= rtol, residual > 1],
        [int(Status.NONFINITE), int(Status.CONVERGED), int(Status.DIVERGED)],
        int(Status.MAX_STEPS),
    ).astype(jnp.int32)


def power_of_two(vector: Vector) -> jax.Array:
    """The power of two at or below the largest magnitude; 1 for a zero or non-finite vector."""
    largest = jnp.max(jnp.abs(lax.stop_gradient(vector)), initial=0)
    usable = jnp.isfinite(largest) & (largest > jnp.finfo(vector.dtype).tiny)
    _, exponent = jnp.frexp(jnp.where(usable, largest, 1))
    return jnp.ldexp(jnp.ones((), vector.dtype), exponent - 1)


def ratio(numerator: jax.Array, denominator: jax.Array) -> jax.Array:
    """`numerator / denominator`, and 0 where the denominator is 0."""
    safe = jnp.where(denominator == 0, 1, denominator)
    return jnp.where(denominator == 0, 0, numerator / safe)


def negligible(product: jax.Array, *norms: jax.Array) -> jax.Array:
    """Whether a scalar product is rounding noise beside the norms of its factors."""
    bound = math.prod(norms, start=10 * jnp.finfo(product.dtype).eps)
    return jnp.abs(product) <= bound


def reliable(drift: jax.Array, goal: jax.Array) -> jax.Array:
    """Whether a residual carried by a recurrence can be believed down to `goal`.

    It drifts from the true one by a few rounding units of `drift`: the largest residual met, or
    `||A|| ||x||` if that is larger. Below, a method recomputes `b - A x` before it may stop.
    """
    return 16 * jnp.finfo(drift.dtype).eps * drift <= goal
