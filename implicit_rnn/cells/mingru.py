"""minGRU (Feng et al., 2024): a GRU whose gate and candidate see the input alone."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from implicit_rnn.cells.base import Cell, Params, affine, dense, pieces
from implicit_rnn.cells.factory import cell_factory
from implicit_rnn.cells.recurrence import linear_recurrence


@cell_factory
def mingru(hidden_size: int, *, update_bias: float = 0.0) -> Cell:
    """`h = (1 - z) h_prev + z (W x + b)`, `z = sigmoid(W_z x + b_z)`: linear in the state.

    Args:
      hidden_size: width of the state.
      update_bias: initial `b_z`; negative values make a long memory.

    Parameters: `input` `[in, 2 d]` and `bias` `[2 d]` for z and the candidate.
    """
    d = hidden_size

    def init(key: jax.Array, input_size: int) -> Params:
        return {
            "input": dense(key, (input_size, 2 * d)),
            "bias": jnp.concatenate([jnp.full(d, update_bias), jnp.zeros(d)]),
        }

    def project(params: Params, x: jax.Array) -> jax.Array:
        return affine(x, params["input"], params["bias"])

    def split_step(params: Params, xi: jax.Array, h: jax.Array) -> tuple[jax.Array, jax.Array]:
        gate, candidate = pieces(xi, 2)
        z = jax.nn.sigmoid(gate)
        return h + z * (candidate - h), 1 - z

    def at_rest(params: Params, xi: jax.Array) -> tuple[jax.Array, jax.Array]:
        gate, candidate = pieces(xi, 2)
        z = jax.nn.sigmoid(gate)
        return z * candidate, 1 - z

    def run(
        params: Params, xs: jax.Array, h: jax.Array, length: jax.Array, reverse: bool
    ) -> tuple[jax.Array, jax.Array]:
        fresh, keep = at_rest(params, project(params, xs))
        return linear_recurrence(keep, fresh, h, length, reverse)

    def remember(params: Params, lengths: jax.Array) -> Params:
        return params | {"bias": params["bias"].at[:d].set(-jnp.log(lengths))}

    return Cell(
        name="mingru",
        hidden_size=d,
        init=init,
        project=project,
        step=lambda params, xi, h: split_step(params, xi, h)[0],
        output=lambda h: h,
        initial_state=lambda params: jnp.zeros(d, params["bias"].dtype),
        split_step=split_step,
        at_rest=at_rest,
        remember=remember,
        bounds={},
        run=run,
    )
