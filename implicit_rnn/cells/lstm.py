"""Long short-term memory (Hochreiter and Schmidhuber, 1997; forget gate of Gers et al., 2000)."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from implicit_rnn.cells.base import Cell, Params, dense, orthogonal


class LSTMState(NamedTuple):
    h: jax.Array
    c: jax.Array


def lstm(hidden_size: int, *, forget_bias: float = 1.0) -> Cell:
    """`c = f c_prev + i g`, `h = o tanh(c)`, with gates i, f, g, o from `W x + U h_prev + b`.

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
        return x @ params["input"] + params["bias"]

    def gates(params: Params, xi: jax.Array, h: jax.Array) -> tuple[jax.Array, ...]:
        i, f, g, o = jnp.split(xi + h @ params["recurrent"], 4, axis=-1)
        return jax.nn.sigmoid(i), jax.nn.sigmoid(f), jnp.tanh(g), jax.nn.sigmoid(o)

    def step(params: Params, xi: jax.Array, state: LSTMState) -> LSTMState:
        i, f, g, o = gates(params, xi, state.h)
        c = f * state.c + i * g
        return LSTMState(o * jnp.tanh(c), c)

    def retention(params: Params, xi: jax.Array, state: LSTMState) -> LSTMState:
        f = gates(params, xi, state.h)[1]
        return LSTMState(jnp.zeros_like(f), f)

    def initial_state(params: Params) -> LSTMState:
        zero = jnp.zeros(d, params["bias"].dtype)
        return LSTMState(zero, zero)

    return Cell(
        name="lstm",
        hidden_size=d,
        init=init,
        project=project,
        step=step,
        output=lambda state: state.h,
        initial_state=initial_state,
        retention=retention,
        bounds={"recurrent": 1.0},
    )
