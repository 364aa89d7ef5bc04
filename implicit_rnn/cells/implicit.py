"""`implicit`: any causal cell, given a switched mix of its neighbours in time."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from implicit_rnn.cells.base import (
    MOST_KEPT,
    Boundary,
    Cell,
    Params,
    State,
    affine,
    boundary_states,
    dense,
    neighbour,
    orthogonal,
    pieces,
    product,
)
from implicit_rnn.cells.factory import comparable_cell, typed
from implicit_rnn.cells.memory import SPREAD, Memory, remembering, split_bias
from solvers import Bands


@jax.custom_jvp
def share_of_two(past: jax.Array, future: jax.Array) -> jax.Array:
    """`sigmoid(past) / (sigmoid(past) + sigmoid(future))`, also where both underflow."""
    # By three exponentials, none of a positive number.
    least = jnp.minimum(jnp.minimum(past, future), 0)
    both = jnp.exp(least)
    inverse_past, inverse_future = both + jnp.exp(least - past), both + jnp.exp(least - future)
    return inverse_future / (inverse_past + inverse_future)


@share_of_two.defjvp
def _share_rule(primals: tuple, tangents: tuple) -> tuple[jax.Array, jax.Array]:
    """`s (1 - s) (sigmoid(-past) dpast - sigmoid(-future) dfuture)`: two arrays to keep."""
    share = share_of_two(*primals)
    spread = share * (1 - share)
    slopes = [spread * jax.nn.sigmoid(-score) for score in primals]
    return share, slopes[0] * tangents[0] - slopes[1] * tangents[1]


@comparable_cell
def implicit(
    cell: Cell,
    *,
    stencil: tuple[int, ...] = (-1, 1),
    boundary: Boundary = "zero",
    split: float = 4.0,
    memory: Memory | None = SPREAD,
) -> Cell:
    """The cell with its previous state replaced by a mix of neighbours (equation 2).

    For the stencil (-1, 1), with `h` the output of a state,

        s_p = sigmoid(W_p x_t + U_p h_{t-1} + b_p),    s_n = sigmoid(W_n x_t + U_n h_{t+1} + b_n),
        s = s_p / (s_p + s_n),    mix = s state_{t-1} + (1 - s) state_{t+1},

    and every component of the state is mixed by the same `s`. A wider stencil has one sigmoid for
    each neighbour. The shares are computed from log-sigmoids, because the sigmoids can underflow.

    Args:
      cell: a causal cell.
      stencil: offsets of the neighbours.
      boundary: states beyond the ends: zero, or learnt (`start` and `end` among the parameters).
      split: where the biases of the switch begin. Channels take turns at listening to one
        neighbour, with `split` for that one and `-split` for the others: 4 is a share of .98. With
        0, all channels begin as the mean of their neighbours, a diffusion, which forgets within
        `sqrt(l / 2)` steps where a channel that listens one way remembers `l`.
      memory: shortest and longest memory of a channel at first, as for `remembering`, in place of
        the gate biases that the cell would begin with; None leaves those. Cells without such a
        gate begin as they are.

    Parameters: `cell` (those of the cell), and `switch` with `input` `[in, k d]`, `recurrent`
    `[d, k d]` and `bias` `[k d]` for the k neighbours.
    """
    if cell.stencil != (-1,):
        raise ValueError(f"implicit takes a causal cell; {cell.name} has stencil {cell.stencil}")
    if len(set(stencil)) != len(stencil) or len(stencil) < 2 or 0 in stencil:
        raise ValueError(f"a stencil holds two or more different offsets, none 0; got {stencil}")
    initial_state, final_state = boundary_states(
        boundary, lambda params: cell.initial_state(params["cell"])
    )
    d, k = cell.hidden_size, len(stencil)
    start = cell if memory is None or cell.remember is None else remembering(cell, memory)
    reach = max(0, -min(stencil)), max(0, max(stencil))

    def init(key: jax.Array, input_size: int) -> Params:
        keys = jax.random.split(key, 3)
        params = {
            "cell": start.init(keys[0], input_size),
            "switch": {
                "input": dense(keys[1], (input_size, k * d)),
                "recurrent": orthogonal(keys[2], d, copies=k, gain=0.5),
                "bias": split_bias(d, k, split),
            },
        }
        if boundary == "learnt":
            params["start"] = cell.initial_state(params["cell"])
            params["end"] = cell.initial_state(params["cell"])
        return params

    def project(params: Params, x: jax.Array) -> tuple[Any, jax.Array]:
        switch = params["switch"]
        return cell.project(params["cell"], x), affine(x, switch["input"], switch["bias"])

    def shares(scores: Sequence[jax.Array]) -> list[jax.Array]:
        """Shares of the neighbours from their scores."""
        if k == 2:
            share = share_of_two(*scores)
            return [share, 1 - share]
        stacked = jax.nn.softmax(jax.nn.log_sigmoid(jnp.stack(scores)), axis=0)
        return [stacked[i] for i in range(k)]

    def mix(share: list[jax.Array], neighbours: list[State]) -> State:
        def combine(*leaves: jax.Array) -> jax.Array:
            if k == 2:  # as s h_{t-1} + (1 - s) h_{t+1}, with less to keep for a derivative
                return leaves[1] + share[0] * (leaves[0] - leaves[1])
            return functools.reduce(jnp.add, map(jnp.multiply, share, leaves))

        return jax.tree.map(combine, *neighbours)

    def step(params: Params, xi: tuple, *neighbours: State) -> State:
        scores = [
            given + cell.output(state) @ matrix
            for given, state, matrix in zip(
                pieces(xi[1], k), neighbours, pieces(params["switch"]["recurrent"], k), strict=True
            )
        ]
        return cell.step(params["cell"], xi[0], mix(shares(scores), list(neighbours)))

    def listen(params: Params, xi: tuple, states: State) -> list[jax.Array]:
        # One product for all neighbours, before the shift: they share their operand.
        products = pieces(product(cell.output(states), params["switch"]["recurrent"]), k)
        shifted = [neighbour(p, offset, reach) for p, offset in zip(products, stencil, strict=True)]
        return shares(list(map(jnp.add, pieces(xi[1], k), shifted)))

    def switch(params: Params, xi: tuple, states: State) -> jax.Array:
        return jnp.stack(listen(params, xi, states), axis=-2)

    def sweep(params: Params, xi: tuple, states: State) -> tuple[State, Bands]:
        assert cell.split_step is not None
        share = listen(params, xi, states)
        mixed = mix(share, [neighbour(states, offset, reach) for offset in stencil])
        new, kept = cell.split_step(params["cell"], xi[0], mixed)
        return new, spread(kept, share)

    def spread(kept: State, share: list[jax.Array]) -> Bands:
        """What a step keeps of its mix, as bands: by the shares."""
        # Two neighbours that keep all of each other have no equation left: where gates saturate,
        # the bands would be singular.
        kept = jax.tree.map(lambda leaf: jnp.minimum(leaf, MOST_KEPT), kept)

        def band(offset: int) -> State:
            if offset not in stencil:
                return jax.tree.map(jnp.zeros_like, kept)
            return jax.tree.map(lambda leaf: leaf * share[stencil.index(offset)], kept)

        return Bands(lower=band(-1), upper=band(1))

    def at_rest(params: Params, xi: tuple) -> tuple[State, Bands]:
        assert cell.at_rest is not None
        state, kept = cell.at_rest(params["cell"], xi[0])
        return state, spread(kept, shares(pieces(xi[1], k)))

    mixing = Cell(
        name=f"implicit({cell.name})",
        hidden_size=d,
        init=init,
        project=project,
        step=step,
        output=cell.output,
        initial_state=initial_state,
        final_state=final_state,
        stencil=tuple(stencil),
        sweep=None if cell.split_step is None else sweep,
        bands=None if cell.split_step is None else lambda *at: sweep(*at)[1],
        at_rest=None if cell.at_rest is None else at_rest,
        causal_step=lambda params, xi, state: cell.step(params["cell"], xi[0], state),
        bounds={"cell": cell.bounds or {}, "switch": {"recurrent": 16.0}},
        switch=switch,
    )
    return typed(mixing, cell.dtype, cell.param_dtype)
