"""The linear systems behind a derivative, and what to do where they cannot be solved.

`(I - J^T) w = c` carries cotangents, `(I - J) v = r` tangents. Every solve, single or in a batch,
forwards or backwards, passes here, and its failures meet one policy.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from solvers.adjoint import Adjoint
from solvers.adjoint.closure import Equation, Map
from solvers.info import Info, Status, require_converged
from solvers.linear.solve import apply_policy, failed, judged, pass_on, solve_system
from solvers.settings import Settings
from solvers.space import Space, Tree, Vector, cast_like


@dataclasses.dataclass(frozen=True, eq=False)
class Backward(Settings):
    """`(operands, x, cotangent, status, memory) -> (w, Info)` for one problem."""

    f: Map
    adjoint: Adjoint
    throw: bool = False
    mesh_axis: str | None = None

    def __call__(
        self, operands: tuple, x: Vector, cotangent: Vector, status: jax.Array, memory: Any
    ) -> tuple[Vector, Info]:
        system = System.of(self.f, operands, x, self.adjoint, memory)
        space = Space(mesh_axis=self.mesh_axis)
        return transposed_solve(
            system, cotangent, self.adjoint, status, space=space, throw=self.throw
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Tangent(Settings):
    """`(operands, x, rhs, memory) -> v` with `(I - J) v = rhs`."""

    f: Map
    adjoint: Adjoint
    throw: bool = False

    def __call__(self, operands: tuple, x: Vector, rhs: Vector, memory: Any) -> Vector:
        _, push = jax.linearize(lambda x: self.f.defect(operands, x), x)
        inverse = _inverse(self.f, operands, x, self.adjoint, memory)
        v, _ = solve_system(
            lambda v: jax.tree.map(jnp.negative, push(v)),
            rhs,
            solver=self.adjoint.linear,
            precond=inverse,
            on_failure=self.adjoint.on_failure,
            unscaled=not self.f.root,
            raising="everywhere" if self.throw else "nowhere",
        )
        return v


@dataclasses.dataclass(frozen=True)
class System:
    """`w -> (I - J^T) w` at a solution, and an approximate inverse of it."""

    matvec: Callable[[Vector], Vector]
    inverse: Callable[[Vector], Vector] | None
    unscaled: bool = True  # I - J is of order one; the derivative of a root need not be

    @classmethod
    def of(
        cls, f: Equation, operands: tuple, x: Vector, adjoint: Adjoint, memory: Any = None
    ) -> System:
        _, pull = jax.vjp(lambda x: f.defect(operands, x), x)
        inverse = _inverse(f, operands, x, adjoint, memory)
        transposed = None if inverse is None else jax.linear_transpose(inverse, x)
        return cls(
            lambda w: jax.tree.map(jnp.negative, pull(w)[0]),
            None if transposed is None else (lambda w: transposed(w)[0]),
            not f.root,
        )


def _inverse(
    f: Equation, operands: tuple, x: Vector, adjoint: Adjoint, memory: Any
) -> Callable[[Vector], Vector] | None:
    """`v -> M v`, as the adjoint has it."""
    if adjoint.precond is None:
        return None
    if isinstance(adjoint.precond, str):
        return memory
    product = adjoint.precond(f.theta(operands), x)
    return lambda v: cast_like(product(v), v)


def transposed_solve(
    system: System,
    cotangent: Vector,
    adjoint: Adjoint,
    status: jax.Array,
    *,
    runner: Callable[..., tuple[Vector, Info]] = solve_system,
    space: Space = Space(),  # noqa: B008
    throw: bool = False,
) -> tuple[Vector, Info]:
    """`w` of `(I - J^T) w = cotangent`, subject to the policy for failures.

    Args:
      system: products with the matrix and with the inverse of what is known of it.
      cotangent: the right-hand side.
      adjoint: linear solver, start and policy.
      status: how the forward solve ended: a gradient at a point that is no solution has failed.
      runner: solves the system; as `solve_system`.
      space: one problem, or a batch with one number for each.
      throw: raise an error where the backward solve fails.
    """
    start = None if adjoint.key is None else _uniform(adjoint.key, cotangent)
    w, info = runner(
        system.matvec,
        cotangent,
        solver=adjoint.linear,
        x0=start,
        precond=system.inverse,
        unscaled=system.unscaled,
        space=space,
    )
    bad = failed(adjoint.linear, info) | (status != Status.CONVERGED)
    w = apply_policy(w, bad, adjoint.on_failure, space.spread)
    if adjoint.on_failure == "best":
        w = pass_on(w, cotangent)
    if throw:
        w = require_converged(judged(adjoint.linear, info), w, "backward solves")
    return w, info


def _uniform(key: jax.Array, like: Tree) -> Tree:
    leaves, structure = jax.tree.flatten(like)
    keys = jax.random.split(key, max(len(leaves), 1))
    draws = [
        jax.random.uniform(k, leaf.shape, leaf.dtype) for k, leaf in zip(keys, leaves, strict=False)
    ]
    return jax.tree.unflatten(structure, draws)


def as_gradient(info: Info, probe: Info | None) -> Info | None:
    """What a backward solve did, as the cotangent of the probe."""
    if probe is None:
        return None
    values = Info(info.steps, info.residual, info.status, info.evaluations)
    return jax.tree.map(
        lambda value, like: jnp.broadcast_to(value, like.shape).astype(like.dtype), values, probe
    )


def no_gradient(tree: Any) -> Any:
    """Zero cotangents: float0 for integers and keys."""

    def zero(leaf: Any) -> Any:
        if jnp.issubdtype(jnp.result_type(leaf), jnp.inexact):
            return jnp.zeros_like(leaf)
        return np.zeros(jnp.shape(leaf), jax.dtypes.float0)

    return jax.tree.map(zero, tree)
