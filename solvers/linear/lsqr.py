"""LSQR (Paige and Saunders, 1982): least squares by Golub-Kahan bidiagonalisation."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from solvers import iterate
from solvers.info import Info
from solvers.iterate import Goal, Method, Progress
from solvers.linear.base import _ROUNDING, Finish, LinearProblem, LinearSolver, Operator, reliable
from solvers.settings import require_number
from solvers.space import (
    Space,
    Tree,
    Vector,
    add,
    cast_like,
    epsilon,
    ratio,
    require_real,
    subtract,
    working,
    zeros_like,
)
from solvers.verdict import recheck, relative


class State(NamedTuple):
    value: Vector
    left: Vector  # u, unit
    right: Vector  # v, unit
    direction: Vector  # w
    alpha: jax.Array
    rho_bar: jax.Array
    phi_bar: jax.Array  # norm of the residual
    gain: jax.Array  # largest alpha, beta seen: a lower bound of ||A||
    drift: jax.Array  # largest ||residual|| or ||A|| ||value|| since the last restart
    restart: jax.Array  # bool: the next step recomputes the residual


@dataclasses.dataclass(frozen=True, eq=False)
class Lsqr(Method):
    """`least`: judge by `||A^T (b - A x)||`, because the residual does not vanish."""

    least: bool = False

    def init(self, problem: LinearProblem, start: Vector) -> tuple[State, Progress]:
        space = problem.space
        beta = space.norm(problem.rhs)
        left = space.scale(ratio(jnp.ones_like(beta), beta), problem.rhs)
        right = problem.transpose(left)
        alpha = space.norm(right)
        right = space.scale(ratio(jnp.ones_like(alpha), alpha), right)
        never = jnp.zeros_like(beta, dtype=bool)
        state = State(start, left, right, right, alpha, alpha, beta, alpha, beta, never)
        return state, self._report(problem, state, 1)

    def _report(self, problem: LinearProblem, state: State, products: int, **flags) -> Progress:
        size = state.phi_bar
        if self.least:
            size = jnp.abs(state.phi_bar * state.rho_bar)
        return Progress(state.value, size, problem.scale, products, **flags)

    def step(self, problem: LinearProblem, state: State, goal: Goal) -> tuple[State, Progress]:
        space, restart = problem.space, state.restart
        product = problem.operator(space.where(restart, state.value, state.right))
        u = space.where(
            restart, subtract(problem.rhs, product), space.plus(product, -state.alpha, state.left)
        )
        beta = space.norm(u)
        left = space.scale(ratio(jnp.ones_like(beta), beta), u)
        v = space.plus(problem.transpose(left), -jnp.where(restart, 0, beta), state.right)
        alpha = space.norm(v)
        right = space.scale(ratio(jnp.ones_like(alpha), alpha), v)

        rho = jnp.hypot(state.rho_bar, beta)
        cosine, sine = ratio(state.rho_bar, rho), ratio(beta, rho)
        gain = jnp.maximum(state.gain, jnp.maximum(alpha, beta))
        moved = space.plus(state.value, ratio(cosine * state.phi_bar, rho), state.direction)
        value = space.where(restart, state.value, moved)
        drift = jnp.maximum(state.drift, gain * space.norm(value))
        rotated = space.plus(right, -ratio(sine * alpha, rho), state.direction)
        new = State(
            value,
            left,
            right,
            space.where(restart, right, rotated),
            alpha,
            jnp.where(restart, alpha, -cosine * alpha),
            jnp.where(restart, beta, sine * state.phi_bar),
            jnp.where(restart, state.gain, gain),
            jnp.where(restart, beta, drift),
            jnp.zeros_like(restart),
        )
        eps = jnp.finfo(alpha.dtype).eps
        stationary = jnp.abs(new.rho_bar) <= 10 * eps * new.gain
        if self.least:
            return new, self._report(problem, new, 2)
        met = new.phi_bar <= goal.residual
        verified = restart | reliable(new.drift, goal.residual)
        new = new._replace(restart=met & ~verified)
        return new, self._report(problem, new, 2, trusted=verified, broken=stationary & ~met)


@dataclasses.dataclass(frozen=True, eq=False)
class LeastSquares(LinearSolver):
    """`LinearSolver` for `min ||A x - b||^2 + damp^2 ||x||^2` with `A` of any shape.

    Damping is a block `damp I` below `A` and zeros below `b`.
    """

    damp: float = 0.0

    def least(self, b: Tree, x0: Tree | None) -> bool:
        """Whether the residual need not vanish: damped, or not square."""
        if x0 is None:
            return self.damp > 0
        shapes = [jax.tree.map(jnp.shape, tree) for tree in (b, x0)]
        return self.damp > 0 or shapes[0] != shapes[1]

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
        if not self.least(b, x0):
            return super().prepare(
                matvec, b, x0, precond, rtol=rtol, trace=trace, unscaled=unscaled, space=space
            )
        if precond is not None:
            raise ValueError(
                "a preconditioner changes a damped or rectangular least-squares problem: "
                "leave it out"
            )
        b = require_real(b, "b")
        like = b if x0 is None else require_real(x0, "x0")
        start = zeros_like(working(like)) if x0 is None else working(like)
        rtol = self.tolerance(b, rtol)

        def a(vector: Vector) -> Vector:
            image = cast_like(matvec(cast_like(vector, like)), working(b))
            return (image, space.scale(self.damp, vector)) if self.damp else image

        def back(image: Vector) -> Vector:
            return jax.linear_transpose(a, start)(image)[0]

        target = (working(b), zeros_like(start)) if self.damp else working(b)
        rhs = target if x0 is None else subtract(target, a(start))
        unit = space.unit(rhs)
        rhs = space.scale(1 / unit, rhs)
        order = space.unit(back(rhs))
        reference = space.norm(space.scale(1 / unit / order, back(target)))
        task = iterate.Task(
            method=Lsqr(least=True),
            problem=LinearProblem(
                lambda v: space.scale(1 / order, a(v)),
                lambda u: space.scale(1 / order, back(u)),
                rhs,
                reference,
                space,
            ),
            start=zeros_like(start),
            stop=self.stop(rtol, self.atol / unit, trace),
        )

        def finish(y: Vector, info: Info) -> tuple[Tree, Info]:
            x = add(start, space.scale(unit / order, y))
            left_over = space.scale(1 / unit, subtract(target, a(x)))
            gradient = space.norm(space.scale(1 / order, back(left_over)))
            residual = relative(gradient, reference)
            # Rounding alone leaves as much of the residual as this along the columns.
            noise = 16 * epsilon(b) * ratio(space.norm(left_over), reference)
            status = recheck(info.status, residual, jnp.maximum(rtol * _ROUNDING, noise))
            return cast_like(x, like), info._replace(residual=residual, status=status)

        return task, finish


def lsqr(
    rtol: float | None = None,
    atol: float = 0.0,
    max_steps: int = 500,
    damp: float = 0.0,
) -> LeastSquares:
    """Minimises `||A x - b||^2 + damp^2 ||x||^2`, with products by `A` and `A^T`.

    For a square matrix and `damp = 0` the stop rule is the usual one on `||b - A x||`. With
    `damp > 0`, or where `x0` has another shape than `b` (a rectangular `A`), the residual does not
    vanish at the solution and the rule is on the gradient,
    `||A^T (b - A x) - damp^2 x|| <= rtol ||A^T b||`; there is no preconditioner then. The start
    has no influence on a damped solution.
    """
    require_number("damp", damp)
    return LeastSquares(Lsqr(), rtol, atol, max_steps, damp=damp)
