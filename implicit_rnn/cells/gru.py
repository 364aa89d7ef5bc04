"""The gated recurrent unit (Cho et al., 2014), as the 2017 paper writes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp

from implicit_rnn.cells.base import Cell, Params, affine, dense, orthogonal, pieces, product
from implicit_rnn.cells.factory import cell_factory


@jax.custom_jvp
def reset_by(r: jax.Array, value: jax.Array) -> jax.Array:
    """`sigmoid(r) value`."""
    return jax.nn.sigmoid(r) * value


@reset_by.defjvp
def _reset_rule(primals: tuple, tangents: tuple) -> tuple[jax.Array, jax.Array]:
    """One factor for each argument: a backward pass keeps two arrays a step, and no more."""
    r, value = jax.nn.sigmoid(primals[0]), primals[1]
    return r * value, r * (1 - r) * value * tangents[0] + r * tangents[1]


@jax.custom_jvp
def updated(z: jax.Array, candidate: jax.Array, h: jax.Array) -> jax.Array:
    """`(1 - z) h + z tanh(candidate)`, from the score of `z`."""
    z = jax.nn.sigmoid(z)
    return h + z * (jnp.tanh(candidate) - h)


@updated.defjvp
def _updated_rule(primals: tuple, tangents: tuple) -> tuple[jax.Array, jax.Array]:
    """One factor for each argument, as above."""
    z, candidate, h = jax.nn.sigmoid(primals[0]), jnp.tanh(primals[1]), primals[2]
    step = candidate - h
    z_dot, candidate_dot, h_dot = tangents
    found = z * (1 - z) * step * z_dot + z * (1 - candidate**2) * candidate_dot + (1 - z) * h_dot
    return h + z * step, found


@cell_factory
def gru(
    hidden_size: int, *, update_bias: float = 0.0, reset: Literal["before", "after"] = "before"
) -> Cell:
    """`h = (1 - z) h_prev + z tanh(W x + U (r h_prev) + b)`, with gates

        z = sigmoid(W_z x + U_z h_prev + b_z),    r = sigmoid(W_r x + U_r h_prev + b_r).

    With `reset="after"` the candidate is `tanh(W x + b + r (U h_prev + b_h))`, as in flax, torch
    and cuDNN: one product serves gates and candidate. Where those write `(1 - z) n + z h`, with a
    `z` that keeps, this `z` updates: `z` here is `1 - z` there, and weights of `z` change sign.

    Args:
      hidden_size: width of the state.
      update_bias: initial `b_z`; negative values make a long memory.
      reset: whether the reset gate acts on the state before, or on its product after it is
        multiplied by `U`.

    Parameters: `input` `[in, 3 d]` and `bias` `[3 d]` for z, r and the candidate; `gates`
    `[d, 2 d]` (`U_z` beside `U_r`: they share their operand) and `candidate` `[d, d]`; with the
    reset after, in place of these two, `recurrent` `[d, 3 d]` and `candidate_bias` `[d]`.
    """
    if reset not in ("before", "after"):
        raise ValueError(f'reset must be "before" or "after", got {reset!r}')
    d = hidden_size
    after = reset == "after"

    def init(key: jax.Array, input_size: int) -> Params:
        keys = jax.random.split(key, 3)
        params = {
            "input": dense(keys[0], (input_size, 3 * d)),
            "bias": jnp.concatenate([jnp.full(d, update_bias), jnp.zeros(2 * d)]),
        }
        if after:
            recurrent = orthogonal(keys[1], d, copies=3, gain=0.5)
            return params | {"recurrent": recurrent, "candidate_bias": jnp.zeros(d)}
        return params | {
            "gates": orthogonal(keys[1], d, copies=2, gain=0.5),
            "candidate": orthogonal(keys[2], d, gain=0.5),
        }

    def project(params: Params, x: jax.Array) -> jax.Array:
        return affine(x, params["input"], params["bias"])

    def split_step(
        params: Params, xi: jax.Array, h: jax.Array, multiply: Callable = product
    ) -> tuple[jax.Array, jax.Array]:
        given = pieces(xi, 3)
        products = pieces(multiply(h, params["recurrent" if after else "gates"]), 3 if after else 2)
        z, r = (a + b for a, b in zip(given[:2], products[:2], strict=True))
        if after:
            recurrent = reset_by(r, products[2] + params["candidate_bias"])
        else:
            recurrent = multiply(reset_by(r, h), params["candidate"])
        return updated(z, given[2] + recurrent, h), jax.nn.sigmoid(-z)

    def at_rest(params: Params, xi: jax.Array) -> tuple[jax.Array, jax.Array]:
        z, scores = jax.nn.sigmoid(xi[..., :d]), xi[..., 2 * d :]
        if after:
            scores = scores + jax.nn.sigmoid(xi[..., d : 2 * d]) * params["candidate_bias"]
        return z * jnp.tanh(scores), 1 - z

    def remember(params: Params, lengths: jax.Array) -> Params:
        return params | {"bias": params["bias"].at[:d].set(-jnp.log(lengths))}

    return Cell(
        name="gru",
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
        bounds={"recurrent": 4.0} if after else {"gates": 8.0, "candidate": 4.0},
    )
