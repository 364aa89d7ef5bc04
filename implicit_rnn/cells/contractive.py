"""An implicit cell whose equation provably has one solution, and whose solve provably converges."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from implicit_rnn.cells.base import (
    MOST_KEPT,
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
def contractive(hidden_size: int, *, rate: float = 0.9, boundary: Boundary = "zero") -> Cell:
    """An implicit GRU whose gates see the input alone and whose matrix is bounded.

        s, z, r = sigmoid of W_s x, W_z x, W_r x,    mix = s h_{t-1} + (1 - s) h_{t+1},
        z <- 0.001 + 0.999 z,
        h_t = (1 - z) mix + z tanh(W x + V (r mix) + b),

    where `V` is the parameter `U` with every column scaled so that the absolute values sum to at
    most `rate` < 1: in the maximum norm, `|V a| <= rate |a|`.

    **One solution.** For two sequences of states at distance `e` in the maximum norm (over times
    and channels) the mixes differ by at most `e`, and the images by at most
    `(1 - z) e + z rate e = (1 - z (1 - rate)) e`. As `z >= 0.001`, also where its sigmoid is
    rounded to zero, the map contracts, and Banach's theorem gives existence and uniqueness.

    **Splitting converges, at a speed that does not depend on the gates.** The bands are
    `B = (1 - z) (s, 1 - s)`, so a sweep solves `(I - B) h_new = z tanh(...)` and its Jacobian is
    `(I - B)^-1 diag(z) T` with `|T| <= rate`. `B` has no negative entries and row sums of at most
    `1 - z`, hence `(I - B) 1 >= z` and, as `(I - B)^-1` has no negative entries either,
    `1 >= (I - B)^-1 z`: the maximum norm of `(I - B)^-1 diag(z)` is at most 1. A sweep contracts by
    `rate`, however slow the gates make Picard's iteration. The same holds for the transposed
    system behind the gradient, in the sum norm.

    Args:
      hidden_size: width of the state.
      rate: bound on the contraction factor of a sweep.
      boundary: states beyond the ends: zero, or learnt.

    Parameters: `input` `[in, 4 d]` and `bias` `[4 d]` for s, z, r and the candidate; `candidate`
    `[d, d]`; `start` and `end` if the boundary states are learnt.
    """
    if not 0 < rate < 1:
        raise ValueError(f"rate must lie between 0 and 1, got {rate}")
    d = hidden_size
    initial_state, final_state = boundary_states(
        boundary, lambda params: jnp.zeros(d, params["bias"].dtype)
    )

    def init(key: jax.Array, input_size: int) -> Params:
        keys = jax.random.split(key, 2)
        params = {
            "input": dense(keys[0], (input_size, 4 * d)),
            "bias": jnp.zeros(4 * d),
            "candidate": orthogonal(keys[1], d, gain=0.5),
        }
        if boundary == "learnt":
            params |= {"start": jnp.zeros(d), "end": jnp.zeros(d)}
        return params

    def project(params: Params, x: jax.Array) -> jax.Array:
        return affine(x, params["input"], params["bias"])

    def gates(xi: jax.Array) -> tuple[jax.Array, ...]:
        *scores, candidate = pieces(xi, 4)
        s, z, r = map(jax.nn.sigmoid, scores)
        return s, 1 - MOST_KEPT * (1 - z), r, candidate

    def matrix(params: Params) -> jax.Array:
        weights = params["candidate"]
        sums = jnp.sum(jnp.abs(weights), axis=0)
        return weights * (rate / jnp.maximum(sums, rate))

    def update(params: Params, xi: jax.Array, mix: jax.Array) -> jax.Array:
        _, z, r, given = gates(xi)
        return mix + z * (jnp.tanh(given + product(r * mix, matrix(params))) - mix)

    def step(params: Params, xi: jax.Array, before: jax.Array, after: jax.Array) -> jax.Array:
        s = gates(xi)[0]
        return update(params, xi, after + s * (before - after))

    def bands(params: Params, xi: jax.Array, states: jax.Array) -> Bands:
        s, z, _, _ = gates(xi)
        return Bands(lower=(1 - z) * s, upper=(1 - z) * (1 - s))

    def sweep(params: Params, xi: jax.Array, states: jax.Array) -> tuple[jax.Array, Bands]:
        before, after = (neighbour(states, offset, (1, 1)) for offset in (-1, 1))
        return step(params, xi, before, after), bands(params, xi, states)

    def at_rest(params: Params, xi: jax.Array) -> tuple[jax.Array, Bands]:
        _, z, _, given = gates(xi)
        return z * jnp.tanh(given), bands(params, xi, given)

    def switch(params: Params, xi: jax.Array, states: jax.Array) -> jax.Array:
        s = gates(xi)[0]
        return jnp.stack([s, 1 - s], axis=-2)

    return Cell(
        name="contractive",
        hidden_size=d,
        init=init,
        project=project,
        step=step,
        output=lambda h: h,
        initial_state=initial_state,
        final_state=final_state,
        stencil=(-1, 1),
        sweep=sweep,
        bands=bands,
        at_rest=at_rest,
        causal_step=update,
        bounds={},
        switch=switch,
    )
