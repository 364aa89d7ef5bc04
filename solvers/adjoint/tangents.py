"""Both modes, to any order: tangents solve `(I - J) x_dot = (df/dtheta) theta_dot`.

Reverse mode transposes that solve, whose status is then not visible to a probe.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero

from solvers.adjoint.solution import Spec
from solvers.info import Info, Status
from solvers.space import Vector


def tangent(
    spec: Spec, operands: tuple, x0: Vector, tolerances: tuple, probe: Info | None, extras: tuple
) -> tuple[Vector, Info]:
    """A solve whose tangents are solved for."""
    if probe is not None:
        raise ValueError("the tangent adjoint cannot report to a probe; use implicit()")
    x, info, _ = _solve(spec, operands, x0, tolerances, extras)
    return x, info


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _solve(spec: Spec, operands: tuple, x0: Vector, tolerances: tuple, extras: tuple) -> tuple:
    return spec.forward(extras[0], operands, x0, tolerances)


@partial(_solve.defjvp, symbolic_zeros=True)
def _solve_rule(spec: Spec, primals: tuple, tangents: tuple):
    operands, extras = primals[0], primals[3]
    x, info, memory = _solve(spec, *primals)
    bad, policy = info.status != Status.CONVERGED, spec.adjoint.on_failure
    # What is not differentiated stays out: its derivative need not be finite.
    leaves, structure = jax.tree.flatten(operands)
    dots = jax.tree.leaves(tangents[0], is_leaf=_is_zero)
    moving = [not _is_zero(dot) for dot in dots]

    def image(chosen: list) -> Vector:
        given = iter(chosen)
        mixed = [next(given) if moves else leaf for leaf, moves in zip(leaves, moving, strict=True)]
        return spec.f(jax.tree.unflatten(structure, mixed), x)

    chosen, chosen_dot = (
        [leaf for leaf, moves in zip(tree, moving, strict=True) if moves] for tree in (leaves, dots)
    )
    if policy == "zero":
        chosen_dot = [_cleared(dot, bad) for dot in chosen_dot]
    f_dot = jax.jvp(image, (chosen,), (chosen_dot,))[1]
    assert spec.backward is not None
    x_dot = spec.backward(extras[1], operands, x, f_dot, memory)
    if policy == "zero":
        x_dot = jax.tree.map(lambda dot: _cleared(dot, bad), x_dot)
    elif policy == "nan":
        x_dot = jax.tree.map(lambda dot: dot * jnp.where(bad, jnp.nan, 1).astype(dot.dtype), x_dot)
    zero = jax.custom_derivatives.zero_from_primal((info, memory), symbolic_zeros=True)
    return (x, info, memory), (x_dot, *zero)


def _is_zero(tangent: Any) -> bool:
    return isinstance(tangent, SymbolicZero)


def _cleared(tangent: jax.Array, bad: jax.Array) -> jax.Array:
    """Zero where the solve failed: a selection, which its transpose is too."""
    return jnp.where(bad, jnp.zeros_like(tangent), tangent)
