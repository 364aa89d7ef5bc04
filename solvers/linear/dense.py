"""Direct solves of small systems: the matrix is formed by `n` products and factorised."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from solvers.info import Info
from solvers.linear.base import Operator, SolverRecord, on_working
from solvers.mesh import vary_with
from solvers.settings import require_number
from solvers.space import Space, Tree, cast_like, require_like, require_real, working
from solvers.verdict import relative, verdict


@dataclasses.dataclass(frozen=True, eq=False)
class Dense(SolverRecord):
    """Called as every linear solver is; start and preconditioner are not needed."""

    algorithm: str = "lu"
    rtol: float | None = None

    def __call__(
        self,
        matvec: Operator,
        b: Tree,
        x0: Tree | None = None,
        precond: Operator | None = None,
        *,
        rtol: float | jax.Array | None = None,
        unscaled: bool = False,
    ) -> tuple[Tree, Info]:
        b = require_real(b, "b")
        require_like(jax.eval_shape(matvec, b), b, "matvec(b)", "b")
        rtol = self.tolerance(b, rtol)
        rhs, unravel = ravel_pytree(working(b))
        a = on_working(matvec, b)
        basis = jax.tree.map(lambda leaf: vary_with(leaf, rhs), jnp.eye(rhs.size, dtype=rhs.dtype))
        columns = jax.vmap(lambda e: ravel_pytree(a(unravel(e)))[0])(basis)
        space = Space()
        order, unit = space.unit(columns), space.unit(rhs)
        matrix, target = columns.T / order, rhs / unit
        x: Any
        if self.algorithm == "lu":
            x = jnp.linalg.solve(matrix, target)
        else:
            q, r = jnp.linalg.qr(matrix)
            x = jax.scipy.linalg.solve_triangular(r, jnp.matmul(q.T, target, precision="highest"))
        healthy = jnp.all(jnp.isfinite(matrix)) & jnp.all(jnp.isfinite(target))
        solved = jnp.all(jnp.isfinite(x))  # not so where the matrix is singular
        x = jnp.where(solved, x, 0)
        left_over = space.norm(target - jnp.matmul(matrix, x, precision="highest"))
        residual = relative(left_over, space.norm(target))
        status = verdict(finite=healthy, met=residual <= rtol, broken=True)
        one = jnp.ones_like(status)
        value = cast_like(unravel(x * (unit / order)), b)
        return value, Info(one, residual, status, rhs.size * one)


def dense(algorithm: str = "lu", rtol: float | None = None) -> Dense:
    """LU (`"lu"`) or QR (`"qr"`) factorisation: `n` products and O(n^3) work, for small `n`.

    Ends as BREAKDOWN where the matrix is so nearly singular that `rtol` is not met.
    """
    if algorithm not in ("lu", "qr"):
        raise ValueError(f'algorithm must be "lu" or "qr", got {algorithm!r}')
    require_number("rtol", rtol)
    return Dense(algorithm, rtol)
