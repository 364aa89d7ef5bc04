"""Reverse mode: a linear solve in the backward pass, to any order.

The value is tied to the operands by one evaluation of the map at the solution. The backward solve
hands its `w` to that evaluation, and what goes on to the parameters is ordinary differentiation:
under `vmap` the gradient of weights that the examples share is one product over the batch.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from solvers.adjoint.solution import Spec
from solvers.adjoint.system import as_gradient, no_gradient
from solvers.info import Info
from solvers.mesh import varying
from solvers.space import Vector, add, subtract


def reverse(
    spec: Spec, operands: tuple, x0: Vector, tolerances: tuple, probe: Info | None, extras: tuple
) -> tuple[Vector, Info]:
    """A solve with the derivative that its backward program defines."""
    x, info, memory = _solve(spec, operands, x0, tolerances, extras)
    return _tied(spec, operands, x, info, memory, probe, extras)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _solve(
    spec: Spec, operands: tuple, x0: Vector, tolerances: tuple, extras: tuple
) -> tuple[Vector, Info, Any]:
    return spec.forward(extras[0], operands, x0, tolerances)


# The rule calls the differentiable function itself, so that a second derivative meets the rule
# again and not the loop.
def _solve_forward(spec: Spec, operands: tuple, x0: Vector, tolerances: tuple, extras: tuple):
    x, info, memory = _solve(spec, operands, x0, tolerances, extras)
    return (x, info, memory), (operands, x, info, memory, x0, tolerances, extras)


def _solve_backward(spec: Spec, saved: tuple, cotangents: tuple):
    operands, x, info, memory, x0, tolerances, extras = saved

    def value(operands: tuple) -> Vector:
        return _tied(spec, operands, x, info, memory, None, extras)[0]

    (operands_bar,) = jax.vjp(value, operands)[1](cotangents[0])
    return operands_bar, *(no_gradient(tree) for tree in (x0, tolerances, extras))


_solve.defvjp(_solve_forward, _solve_backward)


def _tied(
    spec: Spec,
    operands: tuple,
    x: Vector,
    info: Info,
    memory: Any,
    probe: Info | None,
    extras: tuple,
) -> tuple[Vector, Info]:
    """A solution `x`, tied to the operands by one evaluation of the map."""
    quiet, memory = _silent((x, memory))
    info, value = lax.stop_gradient(info), quiet
    if spec.adjoint.on_failure != "zero":
        image = spec.f(operands, quiet)
    elif spec.clean is not None:
        operands, quiet = spec.clean(operands, quiet, info)
        image = spec.f(operands, quiet)
    else:
        image = _guarded(spec, operands, quiet)
    if spec.finish is not None:
        better, info = lax.stop_gradient(spec.finish(extras[2], operands, quiet, image, info))
        # A constant is added to it: the derivative stays that of the solution, to every order.
        value = add(value, lax.stop_gradient(subtract(better, quiet)))
    arguments = (_silent(operands), quiet, image, value, info.status, memory, extras[1], probe)
    return _hook(spec, *arguments), info


@jax.custom_jvp
def _silent(tree: Any) -> Any:
    """`tree`, constant in the first derivative; higher derivatives see the identity."""
    return tree


@partial(_silent.defjvp, symbolic_zeros=True)
def _silent_rule(primals: tuple, tangents: tuple) -> tuple[Any, Any]:
    return primals[0], jax.custom_derivatives.zero_from_primal(primals[0], symbolic_zeros=True)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _hook(
    spec: Spec,
    operands: tuple,
    x: Vector,
    image: Vector,
    value: Vector,
    status: jax.Array,
    memory: Any,
    extras: list,
    probe: Info | None,
) -> Vector:
    """`value`, whose cotangent reaches `image` as the solution of the backward system at `x`."""
    return value


def _hook_forward(spec, operands, x, image, value, status, memory, extras, probe):
    return value, (operands, x, status, memory, extras, probe)


def _hook_backward(spec: Spec, saved: tuple, cotangent: Vector):
    operands, x, status, memory, extras, probe = saved
    assert spec.backward is not None
    w, info = spec.backward(extras, operands, x, cotangent, status, memory)
    nothing = no_gradient((operands, x, x, status, memory, extras))
    return *nothing[:2], w, *nothing[2:], as_gradient(info, probe)


_hook.defvjp(_hook_forward, _hook_backward)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _guarded(spec: Spec, operands: tuple, x: Vector) -> Vector:
    """`f(operands, x)`, through which a cotangent of zero carries nothing, not even `0 * NaN`."""
    return spec.f(operands, x)


def _guarded_forward(spec: Spec, operands: tuple, x: Vector):
    return _guarded(spec, operands, x), (operands, x)


def _guarded_backward(spec: Spec, saved: tuple, w: Vector):
    nothing = jnp.bool_(True)
    for leaf in jax.tree.leaves(w):
        nothing &= jnp.all(leaf == 0)

    def clear(leaf: Any) -> Any:
        # What all devices of a mesh share has been added up already.
        if leaf.dtype == jax.dtypes.float0 or not varying(nothing) <= varying(leaf):
            return leaf
        return jnp.where(nothing, jnp.zeros_like(leaf), leaf)

    return jax.tree.map(clear, jax.vjp(spec.f, *saved)[1](w))


_guarded.defvjp(_guarded_forward, _guarded_backward)
