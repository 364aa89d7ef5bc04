"""The simple recurrent unit (Lei et al., 2018): no product with the state, a highway around it."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from implicit_rnn.cells.base import Cell, Params, affine, dense, pieces, product
from implicit_rnn.cells.factory import cell_factory
from implicit_rnn.cells.lstm import LSTMState, zero_state
from implicit_rnn.cells.recurrence import last_of, linear_recurrence


@cell_factory
def sru(hidden_size: int, *, peephole: bool = True) -> Cell:
    """`c = f c_prev + (1 - f) W x`, `h = r c + (1 - r) x`, with gates

        f = sigmoid(W_f x + v_f c_prev + b_f),    r = sigmoid(W_r x + v_r c_prev + b_r).

    `v_f` and `v_r` are vectors, so that channels meet in products with `x` alone, all done in
    `project`. Where the input is not as wide as the state, the highway carries `W_s x` for `x`.

    Args:
      hidden_size: width of the state.
      peephole: whether the gates see the memory; without, a step is linear in the state.

    Parameters: `input` `[in, 3 d]` for f, r and the memory's input, `bias` `[2 d]`, `peephole`
    `[2 d]` if there is one, and `skip` `[in, d]` where `in` is not `d`.
    """
    d = hidden_size

    def init(key: jax.Array, input_size: int) -> Params:
        keys = jax.random.split(key, 3)
        params = {"input": dense(keys[0], (input_size, 3 * d)), "bias": jnp.zeros(2 * d)}
        if peephole:
            params["peephole"] = 0.5 * jax.random.normal(keys[1], (2 * d,))
        if input_size != d:
            params["skip"] = dense(keys[2], (input_size, d))
        return params

    def project(params: Params, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        scores = affine(x, params["input"], jnp.pad(params["bias"], (0, d)))
        return scores, product(x, params["skip"]) if "skip" in params else x

    def update(scores: jax.Array, xi: tuple, c: jax.Array) -> tuple[LSTMState, LSTMState]:
        given, skip = xi
        f, r = pieces(jax.nn.sigmoid(scores), 2)
        fresh = given[..., 2 * d :]
        c = fresh + f * (c - fresh)
        return LSTMState(skip + r * (c - skip), c), LSTMState(jnp.zeros_like(f), f)

    def split_step(params: Params, xi: tuple, state: LSTMState) -> tuple[LSTMState, LSTMState]:
        scores = xi[0][..., : 2 * d]
        if peephole:
            scores = scores + params["peephole"] * jnp.concatenate([state.c, state.c], axis=-1)
        return update(scores, xi, state.c)

    def at_rest(params: Params, xi: tuple) -> tuple[LSTMState, LSTMState]:
        return update(xi[0][..., : 2 * d], xi, jnp.zeros((), xi[0].dtype))

    def run(
        params: Params, xs: jax.Array, state: LSTMState, length: jax.Array, reverse: bool
    ) -> tuple[jax.Array, LSTMState]:
        given, skip = project(params, xs)
        gates, fresh = jnp.split(given, [2 * d], axis=-1)
        f, r = pieces(jax.nn.sigmoid(gates), 2)
        c, last = linear_recurrence(f, (1 - f) * fresh, state.c, length, reverse)
        h = skip + r * (c - skip)
        return h, LSTMState(last_of(h, state.h, length, reverse), last)

    def remember(params: Params, lengths: jax.Array) -> Params:
        return params | {"bias": params["bias"].at[:d].set(jnp.log(lengths))}

    return Cell(
        name="sru",
        hidden_size=d,
        init=init,
        project=project,
        step=lambda params, xi, state: split_step(params, xi, state)[0],
        output=lambda state: state.h,
        initial_state=zero_state(d),
        split_step=split_step,
        at_rest=at_rest,
        remember=remember,
        bounds={},
        run=None if peephole else run,
    )
