"""`linear_solve`: a linear solve that can be differentiated, to any order and in both modes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
from jax import lax

from solvers.info import Info
from solvers.linear.base import LinearSolver, Operator, failed
from solvers.linear.bicgstab import bicgstab
from solvers.vectors import Tree, require_like, require_real

OnFailure = Literal["best", "zero", "nan"]
Solver = LinearSolver | Callable[..., tuple[Tree, Info]]


def linear_solve(
    matvec: Operator,
    b: Tree,
    *,
    solver: Solver | str | None = None,
    x0: Tree | None = None,
    precond: Operator | None = None,
    on_failure: OnFailure = "best",
) -> tuple[Tree, Info]:
    """Solves `A x = b`; derivatives pass to `b` and to whatever `matvec` closes over.

    The derivative is that of the exact solution, `dx = A^-1 (db - dA x)`, computed by the same
    solver; reverse mode solves with `A^T`, preconditioned by the transpose of `precond`.

    Args:
      matvec: `v -> A v`, linear, on pytrees like `b`.
      b: right-hand side.
      solver: any of `solvers.linear` or its name (default `bicgstab`), or a function with the same
        signature.
      x0: where to start (for the solve itself; derivatives start from zero).
      precond: `v -> M v` with `M` close to the inverse of `A`. Not differentiated.
      on_failure: what to return where the solve fails: its best iterate, zeros, or NaN.

    >>> x, info = linear_solve(lambda v: 2.0 * v, jnp.ones(3))
    >>> print(x, bool(info.converged))
    [0.5 0.5 0.5] True
    """
    solver = resolve(solver)
    check_policy(on_failure)
    b = require_real(b, "b")
    require_like(jax.eval_shape(matvec, b), b, "matvec(b)", "b")
    if precond is not None:
        precond = _frozen(precond, b)
    if x0 is not None:
        x0 = lax.stop_gradient(x0)

    def forward(matvec: Operator, b: Tree) -> tuple[Tree, Info]:
        return apply_policy(solver, *solver(matvec, b, x0, precond), on_failure)

    def transposed(matvec: Operator, b: Tree) -> tuple[Tree, Info]:
        precond_t = precond and (lambda v: jax.linear_transpose(precond, b)(v)[0])
        return apply_policy(solver, *solver(matvec, b, None, precond_t), on_failure)

    return lax.custom_linear_solve(matvec, b, forward, transposed, has_aux=True)


def resolve(solver: Solver | str | None) -> Solver:
    """A solver given as itself or by name; `bicgstab()` if not given."""
    from solvers.linear import SOLVERS

    if solver is None:
        return bicgstab()
    if not isinstance(solver, str):
        return solver
    if solver not in SOLVERS:
        raise ValueError(f"unknown linear solver {solver!r}; choose from {sorted(SOLVERS)}")
    if solver == "neumann":
        raise ValueError("the solver 'neumann' needs its number of terms: neumann(steps)")
    return SOLVERS[solver]()


def check_policy(on_failure: str) -> None:
    """Refuses an unknown failure policy."""
    if on_failure not in ("best", "zero", "nan"):
        raise ValueError(f'on_failure must be "best", "zero" or "nan", got {on_failure!r}')


def apply_policy(solver: object, x: Tree, info: Info, on_failure: str) -> tuple[Tree, Info]:
    """`x`, or its replacement where the solve failed."""
    if on_failure == "best":
        return x, info
    fill = 0.0 if on_failure == "zero" else jnp.nan
    bad = failed(solver, info)
    return jax.tree.map(lambda leaf: jnp.where(bad, jnp.asarray(fill, leaf.dtype), leaf), x), info


def _frozen(function: Operator, example: Tree) -> Operator:
    """`function` with everything it closes over held constant under differentiation."""
    converted, constants = jax.closure_convert(function, example)
    constants = lax.stop_gradient(constants)
    return lambda vector: converted(vector, *constants)
