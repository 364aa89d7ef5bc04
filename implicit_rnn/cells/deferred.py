"""A scan whose gradient by recurrent matrices is one product for all steps, made after the loop.

Differentiated as it stands, a scan adds `h_{t-1}^T delta_t` to the gradient of a matrix at every
step: thin products, and a pass over the whole gradient each time. Here the tangent of a product
`x_t W` is split,

    d(x_t W) = dx_t W + e_t,    e_t = x_t dW,

and the `e_t` of all steps are one product outside of the loop, whose transpose is one as well.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from implicit_rnn.cells.base import Params, State, product
from solvers.mesh import vary_like

StepWith = Callable[[Params, Any, State, Callable], State]  # as `Cell.step_with`


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def deferred_scan(
    step_with: StepWith,
    reverse: bool,
    params: Params,
    xi: Any,
    inside: jax.Array | None,
    start: State,
) -> tuple[State, State]:
    """All states and the last one; steps that are not inside leave the state as it is.

    Args:
      step_with: as `Cell.step_with`; equal ones share compiled programs.
      reverse: from the last step to the first.
      params, xi, start: parameters, what inputs are to the steps, and the state before them.
      inside: which steps count, `[time]`; None: all.
    """

    def body(state: State, row: tuple) -> tuple[State, State]:
        new = _step(step_with, params, row[0], row[1], state, product)
        return new, new

    last, states = lax.scan(body, start, (xi, inside), reverse=reverse)
    return states, last


@deferred_scan.defjvp
def _deferred_rule(
    step_with: StepWith, reverse: bool, primals: tuple, tangents: tuple
) -> tuple[tuple, tuple]:
    params, xi, inside, start = primals
    params_dot, xi_dot, _, start_dot = tangents
    first = jax.tree.map(lambda leaf: leaf[0], xi)

    def matrices(params: Params) -> list[jax.Array]:
        found: list[jax.Array] = []

        def multiply(x: jax.Array, weights: jax.Array) -> jax.Array:
            found.append(weights)
            return product(x, weights)

        step_with(params, first, start, multiply)
        return found

    weights, weights_dot = jax.jvp(matrices, (params,), (params_dot,))

    def run(params: Params, xi: Any, start: State, extras: list) -> tuple[tuple, list]:
        def body(state: State, row: tuple) -> tuple[State, tuple]:
            xi, inside, extras = row
            operands: list[jax.Array] = []

            def multiply(x: jax.Array, _: jax.Array) -> jax.Array:
                number = len(operands)
                operands.append(x)
                return _leaning(product(x, weights[number]), extras[number])

            new = _step(step_with, params, xi, inside, state, multiply)
            return new, (new, operands)

        last, (states, operands) = lax.scan(body, start, (xi, inside, extras), reverse=reverse)
        return (states, last), operands

    time = jax.tree.leaves(xi)[0].shape[0]
    extras = [jnp.zeros((time, w.shape[-1]), w.dtype) for w in weights]
    extras = vary_like(extras, (params, xi, start))
    found, push, operands = jax.linearize(run, params, xi, start, extras, has_aux=True)
    extras_dot = list(map(product, operands, weights_dot))
    return found, push(params_dot, xi_dot, start_dot, extras_dot)


def _step(
    step_with: StepWith,
    params: Params,
    xi: Any,
    inside: jax.Array | None,
    state: State,
    multiply: Callable,
) -> State:
    new = step_with(params, xi, state, multiply)
    if inside is None:
        return new
    # Spread here, and kept: under vmap a tangent would spread it anew, in a loop of its own.
    return jax.tree.map(lambda a, b: jnp.where(jnp.broadcast_to(inside, a.shape), a, b), new, state)


@jax.custom_jvp
def _leaning(value: jax.Array, extra: jax.Array) -> jax.Array:
    """`value`, to whose tangent that of `extra` is added: `extra` itself is never read."""
    return value


@_leaning.defjvp
def _leaning_rule(primals: tuple, tangents: tuple) -> tuple[jax.Array, jax.Array]:
    return primals[0], tangents[0] + tangents[1]
