"""An implicit cell whose equation provably has one solution, and whose solve provably converges."""

from __future__ import annotations

import dataclasses

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

    parts = _Contractive(d, boundary, rate)
    return Cell(
        name="contractive",
        hidden_size=d,
        init=parts.init,
        project=parts.project,
        step=parts.step,
        output=lambda h: h,
        initial_state=initial_state,
        final_state=final_state,
        stencil=(-1, 1),
        sweep=parts.sweep,
        bands=parts.bands,
        at_rest=parts.at_rest,
        causal_step=parts.update,
        bounds={},
        switch=parts.switch,
    )


@dataclasses.dataclass(frozen=True, eq=False)
class _Contractive:
    """The functions of the cell."""

    d: int
    boundary: Boundary
    rate: float

    def init(self, key: jax.Array, input_size: int) -> Params:
        keys = jax.random.split(key, 2)
        params = {
            "input": dense(keys[0], (input_size, 4 * self.d)),
            "bias": jnp.zeros(4 * self.d),
            "candidate": orthogonal(keys[1], self.d, gain=0.5),
        }
        if self.boundary == "learnt":
            params |= {"start": jnp.zeros(self.d), "end": jnp.zeros(self.d)}
        return params

    def project(self, params: Params, x: jax.Array) -> jax.Array:
        return affine(x, params["input"], params["bias"])

    def gates(self, xi: jax.Array) -> tuple[jax.Array, ...]:
        *scores, candidate = pieces(xi, 4)
        s, z, r = map(jax.nn.sigmoid, scores)
        return s, 1 - MOST_KEPT * (1 - z), r, candidate

    def matrix(self, params: Params) -> jax.Array:
        weights = params["candidate"]
        sums = jnp.sum(jnp.abs(weights), axis=0)
        return weights * (self.rate / jnp.maximum(sums, self.rate))

    def update(self, params: Params, xi: jax.Array, mix: jax.Array) -> jax.Array:
        _, z, r, given = self.gates(xi)
        return mix + z * (jnp.tanh(given + product(r * mix, self.matrix(params))) - mix)

    def step(self, params: Params, xi: jax.Array, before: jax.Array, after: jax.Array) -> jax.Array:
        s = self.gates(xi)[0]
        return self.update(params, xi, after + s * (before - after))

    def bands(self, params: Params, xi: jax.Array, states: jax.Array) -> Bands:
        s, z, _, _ = self.gates(xi)
        return Bands(lower=(1 - z) * s, upper=(1 - z) * (1 - s))

    def sweep(self, params: Params, xi: jax.Array, states: jax.Array) -> tuple[jax.Array, Bands]:
        before, after = (neighbour(states, offset, (1, 1)) for offset in (-1, 1))
        return self.step(params, xi, before, after), self.bands(params, xi, states)

    def at_rest(self, params: Params, xi: jax.Array) -> tuple[jax.Array, Bands]:
        _, z, _, given = self.gates(xi)
        return z * jnp.tanh(given), self.bands(params, xi, given)

    def switch(self, params: Params, xi: jax.Array, states: jax.Array) -> jax.Array:
        s = self.gates(xi)[0]
        return jnp.stack([s, 1 - s], axis=-2)
