"""The gated recurrent unit (Cho et al., 2014), as the 2017 paper writes it."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from implicit_rnn.cells.base import Cell, Params, affine, dense, orthogonal, product


def gru(hidden_size: int, *, update_bias: float = 0.0) -> Cell:
    """`h = (1 - z) h_prev + z tanh(W x + U (r h_prev) + b)`, with gates

        z = sigmoid(W_z x + U_z h_prev + b_z),    r = sigmoid(W_r x + U_r h_prev + b_r).

    Args:
      hidden_size: width of the state.
      update_bias: initial `b_z`; negative values make a long memory.

    Parameters: `input` `[in, 3 d]` and `bias` `[3 d]` for z, r and the candidate; `gates`
    `[d, 2 d]` (`U_z` beside `U_r`: they share their operand); `candidate` `[d, d]`.
    """
    d = hidden_size

    def init(key: jax.Array, input_size: int) -> Params:
        keys = jax.random.split(key, 3)
        return {
            "input": dense(keys[0], (input_size, 3 * d)),
            "bias": jnp.concatenate([jnp.full(d, update_bias), jnp.zeros(2 * d)]),
            "gates": orthogonal(keys[1], d, copies=2, gain=0.5),
            "candidate": orthogonal(keys[2], d, gain=0.5),
        }

    def project(params: Params, x: jax.Array) -> jax.Array:
        return affine(x, params["input"], params["bias"])

    def split_step(params: Params, xi: jax.Array, h: jax.Array) -> tuple[jax.Array, jax.Array]:
        gates = jax.nn.sigmoid(xi[..., : 2 * d] + product(h, params["gates"]))
        z, r = gates[..., :d], gates[..., d:]
        candidate = jnp.tanh(xi[..., 2 * d :] + product(r * h, params["candidate"]))
        return h + z * (candidate - h), 1 - z

    def at_rest(params: Params, xi: jax.Array) -> tuple[jax.Array, jax.Array]:
        z = jax.nn.sigmoid(xi[..., :d])
        return z * jnp.tanh(xi[..., 2 * d :]), 1 - z

    return Cell(
        name="gru",
        hidden_size=d,
        init=init,
        project=project,
        step=lambda params, xi, h: split_step(params, xi, h)[0],
        output=lambda h: h,
        initial_state=lambda params: jnp.zeros(d, params["bias"].dtype),
        split_step=split_step,
        at_rest=at_rest,
        bounds={"gates": 4.0, "candidate": 2.0},
    )
