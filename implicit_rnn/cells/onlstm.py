"""The ordered-neurons LSTM (Shen et al., 2019): a memory whose channels are kept in order."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from implicit_rnn.cells.base import Cell, Params, affine, dense, orthogonal, pieces, product
from implicit_rnn.cells.factory import cell_factory
from implicit_rnn.cells.lstm import LSTMState, zero_state


@cell_factory
def onlstm(hidden_size: int, *, chunk: int = 1) -> Cell:
    """An LSTM under master gates that rise or fall along the channels (equations 9 to 14):

        F = cumax(W_F x + U_F h_prev + b_F),    I = 1 - cumax(W_I x + U_I h_prev + b_I),
        c = (f F I + F - F I) c_prev + (i F I + I - F I) g,    h = o tanh(c),

    where `cumax` is the running sum of a softmax, and i, f, g, o are those of an LSTM. What the
    master gates erase they erase from the first channels on: late channels remember longest.

    Args:
      hidden_size: width of the state.
      chunk: how many neighbouring channels share an entry of the master gates; divides the width.

    Parameters, with m for `d / chunk`: `input` `[in, 4 d + 2 m]` and `bias` `[4 d + 2 m]` for i, f,
    g, o, F, I; `recurrent` `[d, 4 d]` and `master` `[d, 2 m]`.
    """
    d = hidden_size
    if chunk < 1 or d % chunk:
        raise ValueError(f"chunk must divide the width {d}, got {chunk}")
    m = d // chunk

    def init(key: jax.Array, input_size: int) -> Params:
        keys = jax.random.split(key, 3)
        return {
            "input": dense(keys[0], (input_size, 4 * d + 2 * m)),
            "recurrent": orthogonal(keys[1], d, copies=4, gain=0.5),
            "master": dense(keys[2], (d, 2 * m), gain=0.5),
            "bias": jnp.zeros(4 * d + 2 * m),
        }

    def project(params: Params, x: jax.Array) -> jax.Array:
        return affine(x, params["input"], params["bias"])

    def cumax(scores: jax.Array) -> jax.Array:
        return jnp.repeat(jnp.cumsum(jax.nn.softmax(scores), axis=-1), chunk, axis=-1)

    def update(gates: jax.Array, masters: jax.Array, c: jax.Array) -> tuple[LSTMState, LSTMState]:
        i, f, g, o = pieces(gates, 4)
        first, second = pieces(masters, 2)
        forget, write = cumax(first), 1 - cumax(second)
        both = forget * write
        kept = forget - both * jax.nn.sigmoid(-f)
        c = kept * c + (write - both * jax.nn.sigmoid(-i)) * jnp.tanh(g)
        return LSTMState(jax.nn.sigmoid(o) * jnp.tanh(c), c), LSTMState(jnp.zeros_like(c), kept)

    def split_step(
        params: Params, xi: jax.Array, state: LSTMState, multiply: Callable = product
    ) -> tuple[LSTMState, LSTMState]:
        gates = xi[..., : 4 * d] + multiply(state.h, params["recurrent"])
        return update(gates, xi[..., 4 * d :] + multiply(state.h, params["master"]), state.c)

    def at_rest(params: Params, xi: jax.Array) -> tuple[LSTMState, LSTMState]:
        return update(xi[..., : 4 * d], xi[..., 4 * d :], jnp.zeros((), xi.dtype))

    return Cell(
        name="onlstm",
        hidden_size=d,
        init=init,
        project=project,
        step=lambda params, xi, state: split_step(params, xi, state)[0],
        output=lambda state: state.h,
        initial_state=zero_state(d),
        split_step=split_step,
        step_with=lambda *at: split_step(*at)[0],
        at_rest=at_rest,
        bounds={"recurrent": 4.0},
    )
