"""A cascade of linear solvers: a cheap one first, a robust one for the examples that need it."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from solvers import iterate
from solvers.info import Info
from solvers.linear.base import Operator, SolverRecord
from solvers.space import Space, Tree, add, subtract, working, zeros_like
from solvers.verdict import recheck, relative


@dataclasses.dataclass(frozen=True, eq=False)
class LinearCascade(SolverRecord):
    """Solvers that follow one another, each starting from the result of the one before."""

    solvers: tuple[SolverRecord, ...]

    @property
    def spreads(self) -> bool:
        return all(solver.spreads for solver in self.solvers)

    def __call__(
        self,
        matvec: Operator,
        b: Tree,
        x0: Tree | None = None,
        precond: Operator | None = None,
        *,
        rtol: float | jax.Array | None = None,
        unscaled: bool = False,
        space: Space = Space(),  # noqa: B008
    ) -> tuple[Tree, Info]:
        options: dict[str, Any] = {"unscaled": unscaled}
        options |= {"space": space} if self.spreads else {}
        x, info = self.solvers[0](matvec, b, x0, precond, rtol=rtol, **options)
        for solver in self.solvers[1:]:

            def correct(before: tuple[Tree, Info], solver: SolverRecord = solver) -> tuple:
                # What is worse than nothing would have to be cancelled again, and leave rounding.
                x = space.where(before[1].residual < 1, before[0], zeros_like(b))
                info = before[1]
                tolerance = solver.tolerance(b, rtol)
                rest = subtract(b, matvec(x))
                correction, later = solver(
                    matvec,
                    rest,
                    None,
                    precond,
                    rtol=jnp.minimum(tolerance / jnp.minimum(info.residual, 1), 1),
                    **options,
                )
                x = add(x, correction)
                sizes = space.norms(working(subtract(b, matvec(x))), working(b))
                residual = relative(*sizes)
                return x, Info(
                    steps=info.steps + later.steps,
                    residual=residual,
                    status=recheck(later.status, residual, tolerance * 1.01),
                    evaluations=info.evaluations + later.evaluations + 2,
                )

            x, info = iterate.skip_if(info.converged, correct, (x, info))
        return x, info


def cascade(*solvers: SolverRecord) -> LinearCascade:
    """`cascade(richardson(max_steps=20), bicgstab())`: the second solves what the first did not.

    Under `vmap` an example that is solved takes no further step, and when all are, a later solver
    costs nothing.
    """
    if not solvers:
        raise ValueError("a cascade needs at least one solver")
    for solver in solvers:
        if not isinstance(solver, SolverRecord):
            raise TypeError(f"a cascade takes records of solvers.linear, got {solver!r}")
    return LinearCascade(tuple(solvers))
