"""Long short-term memory (Hochreiter and Schmidhuber, 1997; forget gate of Gers et al., 2000)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from implicit_rnn.cells.base import Cell, Params, affine, dense, orthogonal, pieces, product
from implicit_rnn.cells.factory import cell_factory


class LSTMState(NamedTuple):
    """The output `h` and the memory `c`, each `[hidden]`."""

    h: jax.Array
    c: jax.Array


def zero_state(hidden_size: int) -> Callable[[Params], LSTMState]:
    """`initial_state` of cells with an output and a memory: zero, of the type of their bias."""

    def initial_state(params: Params) -> LSTMState:
        zero = jnp.zeros(hidden_size, params["bias"].dtype)
        return LSTMState(zero, zero)

    return initial_state


@jax.custom_jvp
def gated(
    i: jax.Array, f: jax.Array, g: jax.Array, o: jax.Array, memory: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """`h` and `c` from the scores of the gates and the memory."""
    c = jax.nn.sigmoid(f) * memory + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


@gated.defjvp
def _gated_rule(primals: tuple, tangents: tuple) -> tuple[tuple, tuple]:
    """One factor for each score: a backward pass keeps six arrays a step, and no more."""
    i, f, g, o, memory = primals
    i, f, g, o = jax.nn.sigmoid(i), jax.nn.sigmoid(f), jnp.tanh(g), jax.nn.sigmoid(o)
    c = f * memory + i * g
    t = jnp.tanh(c)
    factors = (g * i * (1 - i), memory * f * (1 - f), i * (1 - g**2))
    c_dot = f * tangents[4]
    for factor, tangent in zip(factors, tangents[:3], strict=True):
        c_dot = c_dot + factor * tangent
    h_dot = t * o * (1 - o) * tangents[3] + o * (1 - t**2) * c_dot
    return (o * t, c), (h_dot, c_dot)


@cell_factory
def lstm(hidden_size: int, *, forget_bias: float = 1.0) -> Cell:
    """`c = f c_prev + i g`, `h = o tanh(c)`, with gates i, f, g, o from `W x + U h_prev + b`.

    Args:
      hidden_size: width of output and memory.
      forget_bias: where the bias of f begins; above zero, memories last at first.

    Parameters: `input` `[in, 4 d]`, `recurrent` `[d, 4 d]`, `bias` `[4 d]`; order i, f, g, o.
    """
    d = hidden_size

    def init(key: jax.Array, input_size: int) -> Params:
        keys = jax.random.split(key, 2)
        zero = jnp.zeros(d)
        return {
            "input": dense(keys[0], (input_size, 4 * d)),
            "recurrent": orthogonal(keys[1], d, copies=4, gain=0.5),
            "bias": jnp.concatenate([zero, zero + forget_bias, zero, zero]),
        }

    def project(params: Params, x: jax.Array) -> jax.Array:
        return affine(x, params["input"], params["bias"])

    def split_step(
        params: Params, xi: jax.Array, state: LSTMState, multiply: Callable = product
    ) -> tuple[LSTMState, LSTMState]:
        return update(xi + multiply(state.h, params["recurrent"]), state.c)

    def at_rest(params: Params, xi: jax.Array) -> tuple[LSTMState, LSTMState]:
        return update(xi, jnp.zeros((), xi.dtype))

    def update(scores: jax.Array, memory: jax.Array) -> tuple[LSTMState, LSTMState]:
        i, f, g, o = pieces(scores, 4)
        kept = jax.nn.sigmoid(f)
        return LSTMState(*gated(i, f, g, o, memory)), LSTMState(jnp.zeros_like(kept), kept)

    def remember(params: Params, lengths: jax.Array) -> Params:
        start = jnp.concatenate([-jnp.log(lengths), jnp.log(lengths)])
        return params | {"bias": params["bias"].at[: 2 * d].set(start)}

    return Cell(
        name="lstm",
        hidden_size=d,
        init=init,
        project=project,
        step=lambda params, xi, state: split_step(params, xi, state)[0],
        output=lambda state: state.h,
        initial_state=zero_state(d),
        split_step=split_step,
        step_with=lambda *at: split_step(*at)[0],
        at_rest=at_rest,
        remember=remember,
        bounds={"recurrent": 4.0},
    )
