"""`linear_solve`: a linear solve that can be differentiated, to any order and in both modes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import lax

from solvers.info import Info, require_converged
from solvers.linear.base import LinearSolver, Operator
from solvers.linear.bicgstab import bicgstab
from solvers.linear.cascade import LinearCascade
from solvers.linear.dense import Dense
from solvers.linear.lsqr import LeastSquares
from solvers.space import Tree, require_like, require_real, subtract

OnFailure = Literal["best", "zero", "nan"]
Solver = LinearSolver | LinearCascade | Dense | Callable[..., tuple[Tree, Info]]


def linear_solve(
    matvec: Operator,
    b: Tree,
    *,
    solver: Solver | str | None = None,
    x0: Tree | None = None,
    precond: Operator | None = None,
    on_failure: OnFailure = "best",
    throw: bool = False,
    unscaled: bool = False,
) -> tuple[Tree, Info]:
    """Solves `A x = b`; derivatives pass to `b` and to whatever `matvec` closes over.

    The derivative is that of the exact solution, `dx = A^-1 (db - dA x)`, computed by the same
    solver; reverse mode solves with `A^T`, preconditioned by the transpose of `precond`. Several
    right-hand sides are `jax.vmap` over `b`; what `matvec` closes over is then shared.

    Args:
      matvec: `v -> A v`, linear, on pytrees like `b`. For `lsqr`, whose `A` need not be square, on
        pytrees like `x0`.
      b: right-hand side.
      solver: any of `solvers.linear` or its name (default `bicgstab`), or a function with the same
        signature.
      x0: where to start (for the solve itself; derivatives start from zero).
      precond: `v -> M v` with `M` close to the inverse of `A`. Not differentiated.
      on_failure: what to return where the solve fails: its best iterate, zeros, or NaN.
      throw: raise an error if the solve fails, also out of `jit` and `vmap`.
      unscaled: `A` is of order one (`I - J`): spare the product that tells its scale.

    >>> x, info = linear_solve(lambda v: 2.0 * v, jnp.ones(3))
    >>> print(x, bool(info.converged))
    [0.5 0.5 0.5] True
    """
    solver = resolve(solver)
    check_policy(on_failure)
    b = require_real(b, "b")
    if x0 is not None:
        x0 = lax.stop_gradient(x0)
    if isinstance(solver, LeastSquares) and solver.least(b, x0):
        x, info = _least_squares(matvec, b, solver, x0, precond)
        x = apply_policy(x, solver.failed(info), on_failure)
    else:
        require_like(jax.eval_shape(matvec, b), b, "matvec(b)", "b")
        x, info = _square(matvec, b, solver, x0, precond, on_failure, unscaled)
    return (require_converged(info, x, "linear solves") if throw else x), info


def _square(
    matvec: Operator,
    b: Tree,
    solver: Any,
    x0: Tree | None,
    precond: Operator | None,
    on_failure: str,
    unscaled: bool,
) -> tuple[Tree, Info]:
    options = {"unscaled": True} if unscaled and isinstance(solver, _OURS) else {}
    if precond is not None:
        precond = _frozen(precond, b)

    def solved(matvec: Operator, b: Tree, x0: Tree | None, precond: Any) -> tuple[Tree, Info]:
        x, info = solver(matvec, b, x0, precond, **options)
        return apply_policy(x, failed(solver, info), on_failure), info

    def forward(matvec: Operator, b: Tree) -> tuple[Tree, Info]:
        return solved(matvec, b, x0, precond)

    def transposed(matvec: Operator, b: Tree) -> tuple[Tree, Info]:
        precond_t = precond and (lambda v: jax.linear_transpose(precond, b)(v)[0])
        return solved(matvec, b, None, precond_t)

    # The matrix may give back what it was given in another precision.
    same = jax.tree.map(lambda leaf: leaf.dtype, b)
    return lax.custom_linear_solve(
        lambda v: jax.tree.map(lambda leaf, dtype: leaf.astype(dtype), matvec(v), same),
        b,
        forward,
        transposed,
        has_aux=True,
    )


def _least_squares(
    matvec: Operator, b: Tree, solver: LeastSquares, x0: Tree | None, precond: Operator | None
) -> tuple[Tree, Info]:
    """Found by `solver`; its derivative is that of `(A^T A + damp^2) x = A^T b`."""
    from solvers.adjoint import tangent
    from solvers.adjoint.given import implicit_diff

    like = b if x0 is None else require_real(x0, "x0")
    frozen = _frozen(matvec, like)
    x, info = solver(frozen, lax.stop_gradient(b), x0, precond)
    x = lax.stop_gradient(x)

    def gradient(_: None, x: Tree) -> Tree:
        pull = jax.linear_transpose(matvec, like)
        excess = subtract(matvec(x), b)
        return jax.tree.map(lambda g, leaf: g + solver.damp**2 * leaf, pull(excess)[0], x)

    square = LeastSquares(solver.method, solver.rtol, solver.atol, solver.max_steps)
    x, _ = implicit_diff(gradient, None, x, kind="root", adjoint=tangent(square))
    return x, info


def resolve(solver: Solver | str | None) -> Any:
    """A solver given as itself or by name; `bicgstab()` if not given."""
    from solvers.linear import SOLVERS

    if solver is None:
        return bicgstab()
    if not isinstance(solver, str):
        if not callable(solver):
            raise TypeError(
                "a linear solver is a record of solvers.linear, its name, or a function "
                f"solve(matvec, b, x0, precond); got {type(solver).__name__}"
            )
        return solver
    if solver not in SOLVERS:
        raise ValueError(f"unknown linear solver {solver!r}; choose from {sorted(SOLVERS)}")
    if solver == "neumann":
        raise ValueError("the solver 'neumann' needs its number of terms: neumann(steps)")
    return SOLVERS[solver]()


_OURS = (LinearSolver, LinearCascade, Dense)


def failed(solver: Any, info: Info) -> jax.Array:
    """Whether a solve is of no use, by the solver's own judgement where it has one."""
    return solver.failed(info) if isinstance(solver, _OURS) else ~info.converged


def check_policy(on_failure: str) -> None:
    """Refuses an unknown failure policy."""
    if on_failure not in ("best", "zero", "nan"):
        raise ValueError(f'on_failure must be "best", "zero" or "nan", got {on_failure!r}')


def apply_policy(x: Tree, bad: jax.Array, on_failure: str, spread: Callable | None = None) -> Tree:
    """`x`, or its replacement where the solve was `bad`."""
    if on_failure == "best":
        return x
    fill = 0.0 if on_failure == "zero" else jnp.nan
    place = spread or (lambda numbers, leaf: numbers)
    return jax.tree.map(
        lambda leaf: jnp.where(place(bad, leaf), jnp.asarray(fill, leaf.dtype), leaf), x
    )


def _frozen(function: Operator, example: Tree) -> Operator:
    """`function` with everything it closes over held constant under differentiation."""
    from solvers.adjoint.closure import close

    closed, constants = close(function, example)
    constants = lax.stop_gradient(constants)
    return lambda vector: closed(constants, vector)
