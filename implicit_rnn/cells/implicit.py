"""`implicit`: any causal cell, given a switched mix of its neighbours in time."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import lax

from implicit_rnn.cells.base import Cell, Params, State, dense, neighbour, orthogonal
from solvers import Bands

Boundary = Literal["zero", "learnt"]


def implicit(
    cell: Cell, *, stencil: tuple[int, ...] = (-1, 1), boundary: Boundary = "zero"
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

    Parameters: `cell` (those of the cell), and `switch` with `input` `[in, k d]`, `recurrent`
    `[d, k d]` and `bias` `[k d]` for the k neighbours.
    """
    if cell.stencil != (-1,):
        raise ValueError(f"implicit takes a causal cell; {cell.name} has stencil {cell.stencil}")
    if len(set(stencil)) != len(stencil) or len(stencil) < 2 or 0 in stencil:
        raise ValueError(f"a stencil holds two or more different offsets, none 0; got {stencil}")
    if boundary not in ("zero", "learnt"):
        raise ValueError(f'boundary must be "zero" or "learnt", got {boundary!r}')
    d, k = cell.hidden_size, len(stencil)
    reach = max(0, -min(stencil)), max(0, max(stencil))

    def init(key: jax.Array, input_size: int) -> Params:
        keys = jax.random.split(key, 3)
        params = {
            "cell": cell.init(keys[0], input_size),
            "switch": {
                "input": dense(keys[1], (input_size, k * d)),
                "recurrent": orthogonal(keys[2], d, copies=k, gain=0.5),
                "bias": jnp.zeros(k * d),
            },
        }
        if boundary == "learnt":
            params["start"] = cell.initial_state(params["cell"])
            params["end"] = cell.initial_state(params["cell"])
        return params

    def project(params: Params, x: jax.Array) -> tuple[Any, jax.Array]:
        switch = params["switch"]
        return cell.project(params["cell"], x), x @ switch["input"] + switch["bias"]

    def shares(scores: jax.Array) -> jax.Array:
        """Shares of the neighbours, `[..., k, d]`, from the scores `[..., k d]`."""
        scores = scores.reshape(*scores.shape[:-1], k, d)
        if k > 2:
            return jax.nn.softmax(jax.nn.log_sigmoid(scores), axis=-2)
        # s_p / (s_p + s_n) by three exponentials, none of a positive number.
        least = jnp.minimum(jnp.min(scores, axis=-2, keepdims=True), 0)
        least = lax.stop_gradient(least)
        inverse = jnp.exp(least) + jnp.exp(least - scores)
        return inverse[..., ::-1, :] / jnp.sum(inverse, axis=-2, keepdims=True)

    def mix(share: jax.Array, neighbours: list[State]) -> State:
        def combine(*leaves: jax.Array) -> jax.Array:
            weighted = [share[..., i, :] * leaf for i, leaf in enumerate(leaves)]
            return functools.reduce(jnp.add, weighted)

        return jax.tree.map(combine, *neighbours)

    def step(params: Params, xi: tuple, *neighbours: State) -> State:
        inner, scores = xi
        recurrent = params["switch"]["recurrent"]
        pieces = [
            cell.output(state) @ recurrent[:, i * d : (i + 1) * d]
            for i, state in enumerate(neighbours)
        ]
        share = shares(scores + jnp.concatenate(pieces, axis=-1))
        return cell.step(params["cell"], inner, mix(share, list(neighbours)))

    def switch(params: Params, xi: tuple, states: State) -> jax.Array:
        # One product for all neighbours, before the shift: they share their operand.
        products = cell.output(states) @ params["switch"]["recurrent"]
        pieces = [
            neighbour(products[:, i * d : (i + 1) * d], offset, reach)
            for i, offset in enumerate(stencil)
        ]
        return shares(xi[1] + jnp.concatenate(pieces, axis=-1))

    def mixed(params: Params, xi: tuple, states: State) -> tuple[jax.Array, State]:
        share = switch(params, xi, states)
        return share, mix(share, [neighbour(states, offset, reach) for offset in stencil])

    def sweep(params: Params, xi: tuple, states: State) -> State:
        return cell.step(params["cell"], xi[0], mixed(params, xi, states)[1])

    def bands(params: Params, xi: tuple, states: State) -> Bands:
        share, state = mixed(params, xi, states)
        assert cell.retention is not None
        kept = cell.retention(params["cell"], xi[0], state)

        def band(offset: int) -> State:
            if offset not in stencil:
                return jax.tree.map(jnp.zeros_like, kept)
            return jax.tree.map(lambda leaf: leaf * share[..., stencil.index(offset), :], kept)

        return Bands(lower=band(-1), upper=band(1))

    def edge(name: str) -> Callable[[Params], State]:
        if boundary == "zero":
            return lambda params: cell.initial_state(params["cell"])
        return lambda params: params[name]

    return Cell(
        name=f"implicit({cell.name})",
        hidden_size=d,
        init=init,
        project=project,
        step=step,
        output=cell.output,
        initial_state=edge("start"),
        final_state=edge("end"),
        stencil=tuple(stencil),
        sweep=sweep,
        bands=None if cell.retention is None else bands,
        causal_step=lambda params, xi, state: cell.step(params["cell"], xi[0], state),
        bounds={"cell": cell.bounds or {}, "switch": {"recurrent": 4.0}},
        switch=switch,
    )
