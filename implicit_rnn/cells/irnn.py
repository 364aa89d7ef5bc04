"""The plainest implicit cell: tanh of input, past and future."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from implicit_rnn.cells.base import (
    Boundary,
    Cell,
    Params,
    affine,
    boundary_states,
    dense,
    neighbour,
    orthogonal,
    pieces,
    product,
)
from implicit_rnn.cells.factory import cell_factory
from solvers import Bands


@cell_factory
def irnn(
    hidden_size: int, *, stencil: tuple[int, ...] = (-1, 1), boundary: Boundary = "zero"
) -> Cell:
    """`h_t = tanh(W x_t + sum_k U_k h_{t+k} + b)` over the offsets `k` of the stencil.

    Args:
      hidden_size: width of the state.
      stencil, boundary: as for `implicit`.

    Parameters: `input` `[in, d]`, `bias` `[d]`, `recurrent` `[d, k d]`, and `start` and `end` if
    the boundary states are learnt.
    """
    d = hidden_size
    initial_state, final_state = boundary_states(
        boundary, lambda params: jnp.zeros(d, params["bias"].dtype)
    )
    reach = max(0, -min(stencil)), max(0, max(stencil))

    def init(key: jax.Array, input_size: int) -> Params:
        keys = jax.random.split(key, 2)
        params = {
            "input": dense(keys[0], (input_size, d)),
            "bias": jnp.zeros(d),
            "recurrent": orthogonal(keys[1], d, copies=len(stencil), gain=0.8 / len(stencil)),
        }
        if boundary == "learnt":
            params |= {"start": jnp.zeros(d), "end": jnp.zeros(d)}
        return params

    def project(params: Params, x: jax.Array) -> jax.Array:
        return affine(x, params["input"], params["bias"])

    def step(params: Params, xi: jax.Array, *neighbours: jax.Array) -> jax.Array:
        return jnp.tanh(xi + jnp.concatenate(neighbours, axis=-1) @ _stacked(params))

    def _stacked(params: Params) -> jax.Array:
        return jnp.concatenate(jnp.split(params["recurrent"], len(stencil), axis=1), axis=0)

    def sweep(params: Params, xi: jax.Array, states: jax.Array) -> tuple[jax.Array, Bands]:
        products = product(states, params["recurrent"])
        for part, offset in zip(pieces(products, len(stencil)), stencil, strict=True):
            xi = xi + neighbour(part, offset, reach)
        return at_rest(params, xi)

    def at_rest(params: Params, xi: jax.Array) -> tuple[jax.Array, Bands]:
        new = jnp.tanh(xi)

        def band(offset: int) -> jax.Array:
            if offset not in stencil:
                return jnp.zeros_like(new)
            i = stencil.index(offset)
            return (1 - new**2) * jnp.diagonal(params["recurrent"][:, i * d : (i + 1) * d])

        return new, Bands(lower=band(-1), upper=band(1))

    def causal_step(params: Params, xi: jax.Array, previous: jax.Array) -> jax.Array:
        return jnp.tanh(xi + previous @ params["recurrent"][:, :d])

    return Cell(
        name="irnn",
        hidden_size=d,
        init=init,
        project=project,
        step=step,
        output=lambda h: h,
        initial_state=initial_state,
        final_state=final_state,
        stencil=tuple(stencil),
        sweep=sweep,
        bands=lambda *at: sweep(*at)[1],
        at_rest=at_rest,
        causal_step=causal_step,
        bounds={"recurrent": 0.9 / len(stencil)},
    )
