"""The minimal gated unit (Zhou et al., 2016): a GRU with one gate for both purposes."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from implicit_rnn.cells.base import Cell, Params, affine, dense, orthogonal, pieces, product
from implicit_rnn.cells.factory import cell_factory


@cell_factory
def mgu(hidden_size: int, *, update_bias: float = 0.0) -> Cell:
    """`h = (1 - f) h_prev + f tanh(W x + U (f h_prev) + b)`, with the gate

        f = sigmoid(W_f x + U_f h_prev + b_f).

    Args:
      hidden_size: width of the state.
      update_bias: initial `b_f`; negative values make a long memory.

    Parameters: `input` `[in, 2 d]` and `bias` `[2 d]` for f and the candidate; `gate` and
    `candidate`, `[d, d]` each.
    """
    d = hidden_size

    def init(key: jax.Array, input_size: int) -> Params:
        keys = jax.random.split(key, 3)
        return {
            "input": dense(keys[0], (input_size, 2 * d)),
            "bias": jnp.concatenate([jnp.full(d, update_bias), jnp.zeros(d)]),
            "gate": orthogonal(keys[1], d, gain=0.5),
            "candidate": orthogonal(keys[2], d, gain=0.5),
        }

    def project(params: Params, x: jax.Array) -> jax.Array:
        return affine(x, params["input"], params["bias"])

    def split_step(
        params: Params, xi: jax.Array, h: jax.Array, multiply: Callable = product
    ) -> tuple[jax.Array, jax.Array]:
        gate, scores = pieces(xi, 2)
        f = jax.nn.sigmoid(gate + multiply(h, params["gate"]))
        candidate = jnp.tanh(scores + multiply(f * h, params["candidate"]))
        return h + f * (candidate - h), 1 - f

    def at_rest(params: Params, xi: jax.Array) -> tuple[jax.Array, jax.Array]:
        gate, scores = pieces(xi, 2)
        f = jax.nn.sigmoid(gate)
        return f * jnp.tanh(scores), 1 - f

    def remember(params: Params, lengths: jax.Array) -> Params:
        return params | {"bias": params["bias"].at[:d].set(-jnp.log(lengths))}

    return Cell(
        name="mgu",
        hidden_size=d,
        init=init,
        project=project,
        step=lambda params, xi, h: split_step(params, xi, h)[0],
        output=lambda h: h,
        initial_state=lambda params: jnp.zeros(d, params["bias"].dtype),
        split_step=split_step,
        step_with=lambda *at: split_step(*at)[0],
        at_rest=at_rest,
        remember=remember,
        bounds={"gate": 8.0, "candidate": 4.0},
    )
