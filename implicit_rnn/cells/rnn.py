"""The plain recurrent network (Elman, 1990), and the one that recurs through its output alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from implicit_rnn.cells.base import MOST_KEPT, Cell, Params, affine, dense, orthogonal, product
from implicit_rnn.cells.factory import cell_factory


class OutputState(NamedTuple):
    """The state `h` and the output `o` that the next step is given as well."""

    h: jax.Array
    o: jax.Array


@cell_factory
def rnn(
    hidden_size: int,
    *,
    activation: Literal["tanh", "relu"] = "tanh",
    output_recurrence: bool = False,
) -> Cell:
    """`h = tanh(W x + U h_prev + b)`; with output recurrence only the output is fed back:

        h = tanh(W x + U o_prev + b),    o = V h + c

    (figures 10.3 and 10.4 of Goodfellow, Bengio and Courville, 2016). The second is weaker, because
    `o` has to hold all of the past that counts, but with the true outputs in the place of `o_prev`
    its steps can be trained apart.

    Args:
      hidden_size: width of the state, and of `o`.
      activation: `"tanh"` or `"relu"`.
      output_recurrence: the second form; its state is `OutputState(h, o)` and its output is `o`.

    Parameters: `input` `[in, d]`, `recurrent` `[d, d]`, `bias` `[d]`; with output recurrence also
    `output` `[d, d]` and `output_bias` `[d]`.
    """
    if activation not in ("tanh", "relu"):
        raise ValueError(f'activation must be "tanh" or "relu", got {activation!r}')
    d = hidden_size
    bend = jnp.tanh if activation == "tanh" else jax.nn.relu

    def init(key: jax.Array, input_size: int) -> Params:
        keys = jax.random.split(key, 3)
        params = {
            "input": dense(keys[0], (input_size, d)),
            "recurrent": orthogonal(keys[1], d),
            "bias": jnp.zeros(d),
        }
        if output_recurrence:
            params |= {"output": orthogonal(keys[2], d), "output_bias": jnp.zeros(d)}
        return params

    def project(params: Params, x: jax.Array) -> jax.Array:
        return affine(x, params["input"], params["bias"])

    def kept(params: Params, h: jax.Array) -> jax.Array:
        """The diagonal of the Jacobian, as far as bands made of it can be inverted."""
        slope = 1 - h**2 if activation == "tanh" else (h > 0).astype(h.dtype)
        return jnp.clip(slope * jnp.diagonal(params["recurrent"]), -MOST_KEPT, MOST_KEPT)

    def update(params: Params, scores: jax.Array) -> tuple:
        h = bend(scores)
        if not output_recurrence:
            return h, kept(params, h)
        o = affine(h, params["output"], params["output_bias"])
        return OutputState(h, o), OutputState(jnp.zeros_like(h), jnp.zeros_like(o))

    def split_step(
        params: Params, xi: jax.Array, state: jax.Array | OutputState, multiply: Callable = product
    ) -> tuple:
        return update(params, xi + multiply(output(state), params["recurrent"]))

    def output(state: jax.Array | OutputState) -> jax.Array:
        return state.o if isinstance(state, OutputState) else state

    def initial_state(params: Params) -> jax.Array | OutputState:
        zero = jnp.zeros(d, params["bias"].dtype)
        return OutputState(zero, zero) if output_recurrence else zero

    return Cell(
        name="rnn",
        hidden_size=d,
        init=init,
        project=project,
        step=lambda params, xi, state: split_step(params, xi, state)[0],
        output=output,
        initial_state=initial_state,
        split_step=split_step,
        step_with=lambda *at: split_step(*at)[0],
        at_rest=update,
        bounds={"recurrent": 0.9} | ({"output": 1.0} if output_recurrence else {}),
    )
