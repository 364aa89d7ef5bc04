"""The race of several starts: the first to converge wins and ends the rest."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from solvers import adjoint as adjoints
from solvers import iterate
from solvers.adjoint.solution import solution
from solvers.batch.compaction import staged
from solvers.batch.rows import Rows
from solvers.fixed_point.base import Cascade, Map
from solvers.fixed_point.forward import Forward, Limits
from solvers.fixed_point.solve import require_fitting, resolve
from solvers.info import Info, Status
from solvers.settings import Settings
from solvers.space import Tree, Vector, require_real


@dataclasses.dataclass(frozen=True, eq=False)
class Race(Settings):
    """`(operands, starts, tolerances) -> (x, Info, None)`."""

    one: Forward

    def __call__(self, operands: tuple, starts: Vector, tolerances: tuple) -> tuple:
        count = jax.tree.leaves(starts)[0].shape[0]
        shared = Rows((None,) * len(operands[0]))
        x, info = staged(
            self.one, shared, operands, starts, tolerances, (count,),
            decided=lambda status: jnp.any(status == Status.CONVERGED),
        )  # fmt: skip
        candidates = info.converged | ~jnp.any(info.converged)
        winner = jnp.argmin(jnp.where(candidates, info.residual, jnp.inf)).astype(jnp.int32)
        x, info = jax.tree.map(lambda leaf: leaf[winner], (x, info))
        return x, info._replace(winner=winner), None

    def judged(self, operands: tuple, _: Vector, x: Vector, tolerances: tuple) -> tuple:
        """As `Forward.judged`, for the winner."""
        return self.one.judged(operands, x, x, tolerances)


def race(
    f: Map,
    theta: Any,
    starts: Tree,
    *,
    method: iterate.Method | Cascade | str = "auto",
    adjoint: adjoints.Adjoint | str = "implicit",
    rtol: float | jax.Array | None = None,
    atol: float | jax.Array | None = None,
    max_steps: int = 200,
    probe: Info | None = None,
    throw: bool = False,
) -> tuple[Tree, Info]:
    """Solves `x = f(theta, x)` from several starts; the first to converge wins and ends the rest.

    The 2017 paper's two-start solve (section 2.6). The starts advance in lockstep, as a batch.

    Args:
      starts: like a state, with one more leading axis: one entry per start.
      f, theta, method, adjoint, rtol, atol, max_steps, probe, throw: as for `fixed_point`; the
        `bptt` adjoint is refused.

    Returns:
      The winner's value and `Info`, whose `winner` is its index. If none converged, that with the
      smallest residual.
    """
    starts = require_real(starts, "starts")
    counts = {leaf.shape[0] if leaf.ndim else 0 for leaf in jax.tree.leaves(starts)}
    if len(counts) != 1 or 0 in counts:
        raise ValueError(
            "starts needs a common leading axis with at least one start, got leaf shapes "
            f"{[leaf.shape for leaf in jax.tree.leaves(starts)]}"
        )
    first = jax.tree.map(lambda leaf: leaf[0], starts)
    chosen = adjoints.resolve(adjoint)
    if chosen.name == "bptt" or chosen.precond == "forward":
        raise ValueError(
            f"a race has no single row of iterations for {chosen.name}: "
            "use tbptt(steps) or implicit()"
        )
    stages = resolve(method)
    require_fitting(chosen, stages, max_steps)
    limits, tolerances = Limits.of(first, rtol, atol, max_steps)
    return solution(
        f,
        theta,
        starts,
        adjoint=chosen,
        forward=lambda f: Race(Forward.of(f, stages, limits, first, chosen)),
        tolerances=tolerances,
        probe=probe,
        example=(theta, first),
        names=("f(theta, starts[0])", "starts[0]"),
        throw=throw,
        what="races",
    )
