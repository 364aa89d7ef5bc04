"""Both modes, to any order: tangents solve `(I - J) x_dot = (df/dtheta) theta_dot`.

Reverse mode transposes that solve, whose status is then not visible to a probe.
"""

from __future__ import annotations

from functools import partial

import jax

from solvers.adjoint.solution import Spec
from solvers.info import Info
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


@_solve.defjvp
def _solve_rule(spec: Spec, primals: tuple, tangents: tuple):
    operands, extras = primals[0], primals[3]
    x, info, memory = _solve(spec, *primals)
    f_dot = jax.jvp(lambda operands: spec.f(operands, x), (operands,), (tangents[0],))[1]
    assert spec.backward is not None
    x_dot = spec.backward(extras[1], operands, x, f_dot, memory)
    zero = jax.custom_derivatives.zero_from_primal((info, memory), symbolic_zeros=False)
    return (x, info, memory), (x_dot, *zero)
