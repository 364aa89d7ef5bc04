"""A cascade of linear solvers: a cheap one first, a robust one for the examples that need it."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from solvers.info import Info
from solvers.linear.base import LinearSolver, Operator
from solvers.vectors import Tree


@dataclasses.dataclass(frozen=True)
class LinearCascade:
    """Solvers that follow one another, each starting from the result of the one before."""

    solvers: tuple[LinearSolver, ...]

    def __call__(
        self,
        matvec: Operator,
        b: Tree,
        x0: Tree | None = None,
        precond: Operator | None = None,
        *,
        rtol: float | jax.Array | None = None,
    ) -> tuple[Tree, Info]:
        x, info = self.solvers[0](matvec, b, x0, precond, rtol=rtol)
        for solver in self.solvers[1:]:
            done = info.converged
            # Correction form: an example that is done has nothing left to correct.
            rest = jax.tree.map(lambda b, ax: jnp.where(done, 0, b - ax), b, matvec(x))  # noqa: B023
            left = info.residual
            tolerance = solver.tolerance(b) if rtol is None else rtol
            correction, later = solver(
                matvec, rest, None, precond, rtol=jnp.minimum(tolerance / left, 1)
            )
            x = jax.tree.map(jnp.add, x, correction)
            info = Info(
                steps=info.steps + later.steps,
                residual=jnp.where(done, left, left * later.residual),
                status=jnp.where(done, info.status, later.status),
                evaluations=info.evaluations + later.evaluations + 1,
            )
        return x, info


def cascade(*solvers: LinearSolver) -> LinearCascade:
    """`cascade(richardson(max_steps=20), bicgstab())`: the second solves what the first did not.

    Under `vmap` an example that is solved takes no further step, and when all are, a later solver
    costs one product.
    """
    if not solvers:
        raise ValueError("a cascade needs at least one solver")
    return LinearCascade(tuple(solvers))
