"""`implicit_diff`: the derivative of a solution that was found elsewhere."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import lax

from solvers import adjoint as adjoints
from solvers.adjoint.closure import Map
from solvers.adjoint.solution import solution
from solvers.info import Info
from solvers.mesh import opaque
from solvers.settings import Settings, require_number
from solvers.space import Space, Tree, Vector, add, epsilon, require_real, subtract
from solvers.verdict import relative, verdict

Kind = Literal["fixed_point", "root"]


@dataclasses.dataclass(frozen=True, eq=False)
class Given(Settings):
    """A forward program that returns its start and says how good a solution it is."""

    f: Map

    def __call__(self, operands: tuple, x: Vector, tolerances: tuple) -> tuple[Vector, Info, None]:
        space, x = Space(), opaque(x)
        gap = self.f.defect(operands, x)
        size, largest, scale = space.norms(gap, x, add(x, gap))
        scale = jnp.maximum(scale, largest)
        if self.f.root:
            scale = slope(lambda x: self.f.defect(operands, x), x, gap, space.norm)
        residual = relative(size, scale)
        met = residual <= tolerances[0]
        status = verdict(finite=jnp.isfinite(size), met=met)
        zero = jnp.zeros_like(status)
        return x, Info(zero, residual, status, zero + 1), None


def implicit_diff(
    f: Callable[[Any, Tree], Tree],
    theta: Any,
    x: Tree,
    *,
    kind: Kind = "fixed_point",
    adjoint: adjoints.Adjoint | str = "implicit",
    rtol: float | jax.Array | None = None,
    probe: Info | None = None,
    throw: bool = False,
) -> tuple[Tree, Info]:
    """`x`, with the derivative of the solution that it is.

    For a solution from elsewhere (scipy, an inner optax loop, a table), which is taken as it is:

        fixed_point:  x = f(theta, x),    (I - df/dx) dx = (df/dtheta) dtheta
        root:         f(theta, x) = 0,    (df/dx) dx = -(df/dtheta) dtheta

    Args:
      f: the map; `f(theta, x)` has the structure and shapes of `x`. It may close over arrays that
        are being differentiated.
      theta: parameters, any pytree.
      x: the solution, a pytree of real floating-point arrays; not differentiated.
      kind: which equation it solves.
      adjoint: any but the unrolled ones; truncated series (`neumann`, `rbp`) are about `I - df/dx`.
      rtol: what counts as a solution in the returned `Info`; by default the square root of the
        rounding unit.
      probe: `solvers.adjoint_probe()`, whose gradient reports the backward solve.
      throw: raise an error if `x` is no solution, or the backward solve fails.

    Returns:
      `x`, and an `Info` of no steps. Its residual is that at `x`, relative to the size of `x`; of a
      root, to how much `f` varies over such a distance.

    >>> root = jnp.sqrt(2.0)
    >>> square = lambda a: implicit_diff(lambda a, x: x**2 - a, a, root, kind="root")[0]
    >>> print(f"{jax.grad(square)(2.0):.4f}")
    0.3536
    """
    if kind not in ("fixed_point", "root"):
        raise ValueError(f'kind must be "fixed_point" or "root", got {kind!r}')
    require_number("rtol", rtol)
    chosen = adjoints.resolve(adjoint)
    if chosen.mode == "unroll" or chosen.precond == "forward":
        raise ValueError(f"{chosen.name} needs the iterations of a solve: use implicit()")
    x = lax.stop_gradient(require_real(x, "x"))
    tolerance = epsilon(x) ** 0.5 if rtol is None else rtol
    return solution(
        f,
        theta,
        x,
        adjoint=chosen,
        forward=Given,
        tolerances=(tolerance, None),
        probe=probe,
        root=kind == "root",
        names=("f(theta, x)", "x"),
        throw=throw,
        what="given solutions",
    )


def slope(
    g: Callable[[Vector], Vector], x: Vector, here: Vector, norm: Callable[[Vector], jax.Array]
) -> jax.Array:
    """`||(dg/dx) x||`: by how much `g` changes over a distance as large as `x`.

    From a move of `x` by half of its digits; `here` is `g(x)`.
    """
    step = float(jnp.finfo(jax.tree.leaves(x)[0].dtype).eps) ** 0.5
    there = g(jax.tree.map(lambda leaf: leaf * (1 + step), x))
    change = norm(subtract(there, here)) / step
    return jnp.where(jnp.isfinite(change), change, 0)
