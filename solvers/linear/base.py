"""What the linear solvers share: the problem in normal form, and `LinearSolver`.

Warm start, preconditioner and scale are taken out before a method sees the problem. With
`r0 = b - A x0`, a preconditioner `M ~ A^-1` and powers of two `s` and `a`, a method always solves,
from zero,

    (A M / a) y = r0 / s

and the solution is `x = x0 + (s / a) M y`, whose residual the stop rule sees. Right-hand side and
operator are of order one, so a solve does not depend on the units of `A` or `b`, and no inner
product underflows.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from solvers import iterate
from solvers.info import Info, Status
from solvers.mesh import opaque
from solvers.settings import Settings, require_count, require_number
from solvers.space import (
    Space,
    Tree,
    Vector,
    add,
    cast_like,
    epsilon,
    require_like,
    require_real,
    subtract,
    working,
    zeros_like,
)
from solvers.verdict import Stop, of_remainder, recheck, relative

Operator = Callable[[Tree], Tree]
Finish = Callable[[Vector, Info], tuple[Tree, Info]]


class LinearProblem(NamedTuple):
    """`operator(y) = rhs`, solved from zero."""

    operator: Callable[[Vector], Vector]
    transpose: Any  # v -> A^T v; None for methods that do without
    rhs: Vector
    scale: jax.Array  # norm that residuals are relative to: ||b|| / s
    space: Space = Space()


class SolverRecord(Settings):
    """What all linear solvers of this package are: records that judge their own results."""

    rtol: float | jax.Array | None
    truncated: bool = False

    @property
    def spreads(self) -> bool:
        """Whether it takes a `space`, and so vectors that are spread over a mesh."""
        return False

    def __call__(self, matvec: Operator, b: Tree, *args: Any, **settings: Any) -> tuple[Tree, Info]:
        raise NotImplementedError

    def tolerance(self, b: Tree, rtol: float | jax.Array | None = None) -> float | jax.Array:
        """The relative tolerance for a right-hand side of this precision."""
        rtol = self.rtol if rtol is None else rtol
        return epsilon(b) ** (2 / 3) if rtol is None else rtol

    def failed(self, info: Info) -> jax.Array:
        """Whether a solve is of no use: not converged or, for a truncated one, growing."""
        if self.truncated:
            return (info.status != Status.CONVERGED) & (info.status != Status.MAX_STEPS)
        return ~info.converged


@dataclasses.dataclass(frozen=True, eq=False)
class LinearSolver(SolverRecord):
    """Solves `A x = b` from products with `A`: call it as `solve(matvec, b, x0, precond)`.

    Attributes:
      method: the iteration.
      rtol, atol: stop at `||b - A x|| <= max(rtol ||b||, atol)`; a `None` rtol stands for the
        2/3 power of the rounding unit (2e-5 in float32, 4e-11 in float64).
      max_steps: step limit.
      truncated: the step count is the definition (Neumann, RBP): every step is taken, and not
        having converged is no failure.
      patience: steps without a new best before the solve counts as stalled.
    """

    method: iterate.Method
    rtol: float | jax.Array | None = None
    atol: float | jax.Array = 0.0
    max_steps: int = 200
    truncated: bool = False
    patience: int = 60

    @property
    def spreads(self) -> bool:
        return True

    def __post_init__(self) -> None:
        require_count("max_steps", self.max_steps)
        require_number("rtol", self.rtol)
        require_number("atol", self.atol)

    def __call__(
        self,
        matvec: Operator,
        b: Tree,
        x0: Tree | None = None,
        precond: Operator | None = None,
        *,
        rtol: float | jax.Array | None = None,
        trace: int = 0,
        unscaled: bool = False,
        space: Space = Space(),  # noqa: B008
    ) -> tuple[Tree, Info]:
        """Solves for `x`. `solvers.linear_solve` is the solve that can be differentiated.

        Args:
          matvec: `v -> A v`, linear, on pytrees like `b`.
          b: right-hand side.
          x0: where to start; zeros if not given.
          precond: `v -> M v` with `M` close to the inverse of `A`.
          rtol: overrides the solver's own; may be traced (Newton's forcing term is).
          trace: length of the residual trace in the returned `Info`.
          unscaled: `A` is of order one: spare the product that tells its scale.
          space: what a scalar product is.
        """
        task, finish = self.prepare(
            matvec, b, x0, precond, rtol=rtol, trace=trace, unscaled=unscaled, space=space
        )
        return finish(*iterate.run(task))

    def prepare(
        self,
        matvec: Operator,
        b: Tree,
        x0: Tree | None = None,
        precond: Operator | None = None,
        *,
        rtol: float | jax.Array | None = None,
        trace: int = 0,
        unscaled: bool = False,
        space: Space = Space(),  # noqa: B008
    ) -> tuple[iterate.Task, Finish]:
        """The problem in normal form, and the way back from its solution to `(x, Info)`."""
        b = require_real(b, "b")
        require_like(jax.eval_shape(matvec, b), b, "matvec(b)", "b")
        rtol = self.tolerance(b, rtol)
        rhs_b = opaque(working(b))
        a = on_working(matvec, b)
        m = on_working(precond, b) if precond is not None else (lambda vector: vector)
        rhs, healthy = rhs_b, jnp.bool_(True)
        if x0 is None:
            start = zeros_like(rhs_b)
        else:
            require_like(x0, b, "x0", "b")
            given = cast_like(require_real(x0, "x0"), rhs_b)
            healthy = space.all(jax.tree.map(jnp.isfinite, given))
            usable = healthy & (space.norm(rhs_b) > 0)
            start = opaque(space.where(usable, given, zeros_like(given)))
            rhs = subtract(rhs_b, a(start))
        unit = space.unit(rhs)
        rhs, against = space.scale(1 / unit, rhs), space.scale(1 / unit, rhs_b)
        size = space.norm(against)
        in_units = unscaled or not self.method.scale_free
        order = None if in_units else space.unit(a(m(rhs)))

        def operator(vector: Vector) -> Vector:
            product = a(m(vector))
            return product if order is None else space.scale(1 / order, product)

        def transpose(vector: Vector) -> Vector:
            return jax.linear_transpose(operator, rhs_b)(vector)[0]

        task = iterate.Task(
            method=self.method,
            problem=LinearProblem(operator, transpose, rhs, size, space),
            start=zeros_like(rhs_b),
            stop=self.stop(rtol, self.atol / unit, trace),
        )

        def finish(y: Vector, info: Info) -> tuple[Tree, Info]:
            y = space.scale(unit if order is None else unit / order, y)
            # A preconditioner may be singular.
            x = space.finite(add(start, m(y)), start)
            # The residual is that of the value returned, not of a recurrence. Outside the loop,
            # so that it costs nothing where nobody looks at it.
            left_over = space.norm(space.scale(1 / unit, subtract(rhs_b, a(x))))
            residual = relative(left_over, size, rtol, self.atol / unit)
            status = recheck(info.status, residual, rtol * _ROUNDING)
            if self.truncated:
                status = of_remainder(residual, rtol, info.status != Status.NONFINITE)
            # A start that is not finite has been replaced by zero, and stays visible.
            status = jnp.where(healthy, status, int(Status.NONFINITE))
            return cast_like(x, b), info._replace(residual=residual, status=status)

        return task, finish

    def stop(self, rtol: float | jax.Array, atol: float | jax.Array, trace: int = 0) -> Stop:
        """When the loop ends."""
        if self.truncated:
            return Stop(0.0, 0.0, self.max_steps, None, None, keep_best=False, trace=trace)
        return Stop(rtol, atol, self.max_steps, self.patience, trace=trace)


# A residual that a loop found to be at its goal may come out at so much more of it.
_ROUNDING = 1.01


def on_working(function: Operator, like: Tree) -> Callable[[Vector], Vector]:
    """`function`, made for trees like `like`, on their working precision."""
    template = working(like)
    return lambda vector: cast_like(function(cast_like(vector, like)), template)


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
