"""Deep recurrence (Goodfellow et al., figure 10.13): cells in layers, or networks in a cell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from implicit_rnn.cells.base import Cell, Params, State, affine, dense, orthogonal, product
from implicit_rnn.cells.factory import cell_factory, comparable_cell, typed


@comparable_cell
def stacked(cells: Sequence[Cell]) -> Cell:
    """Several causal cells as one, with a hierarchy of states (figure 10.13a):

        state^1_t = step^1(x_t, state^1_{t-1}),
        state^k_t = step^k(output(state^{k-1}_t), state^k_{t-1}).

    The values are those of `stack`, layer after layer; this one is a cell, so whatever takes a
    cell (decoding, `implicit`, `parallel`) takes it.

    Args:
      cells: causal, the lowest first.

    Parameters and state are tuples, one entry a cell. The output, and so `hidden_size`, are those
    of the last; where cells are to be mixed by `implicit` all need that width.
    """
    cells = tuple(cells)
    if not cells:
        raise ValueError("stacked needs at least one cell")
    for cell in cells:
        if not cell.causal:
            raise ValueError(f"stacked takes causal cells; {cell.name} looks ahead")

    def init(key: jax.Array, input_size: int) -> Params:
        widths = [input_size, *(cell.hidden_size for cell in cells[:-1])]
        keys = jax.random.split(key, len(cells))
        return tuple(cell.init(k, n) for cell, k, n in zip(cells, keys, widths, strict=True))

    def climb(turn: Callable, params: Params, xi: Any, states: State) -> tuple[tuple, tuple]:
        """`turn(cell, params, xi, state) -> (new state, what else it tells)`, lowest first."""
        new: list[State] = []
        told = []
        for number, (cell, own, state) in enumerate(zip(cells, params, states, strict=True)):
            if number:
                xi = cell.project(own, cells[number - 1].output(new[-1]))
            found, tells = turn(cell, own, xi, state)
            new.append(found)
            told.append(tells)
        return tuple(new), tuple(told)

    def step(params: Params, xi: Any, states: State) -> State:
        return climb(lambda cell, *at: (cell.step(*at), None), params, xi, states)[0]

    def split_step(params: Params, xi: Any, states: State) -> tuple[State, State]:
        return climb(lambda cell, *at: cell.split_step(*at), params, xi, states)

    def remember(params: Params, lengths: jax.Array) -> Params:
        return tuple(
            own if cell.remember is None else cell.remember(own, lengths)
            for cell, own in zip(cells, params, strict=True)
        )

    together = Cell(
        name=f"stacked({', '.join(cell.name for cell in cells)})",
        hidden_size=cells[-1].hidden_size,
        init=init,
        project=lambda params, x: cells[0].project(params[0], x),
        step=step,
        output=lambda states: cells[-1].output(states[-1]),
        initial_state=lambda params: tuple(
            cell.initial_state(own) for cell, own in zip(cells, params, strict=True)
        ),
        split_step=None if any(cell.split_step is None for cell in cells) else split_step,
        remember=remember if all(c.hidden_size == cells[-1].hidden_size for c in cells) else None,
        bounds=tuple(cell.bounds or {} for cell in cells),
    )
    dtypes = {cell.dtype for cell in cells}
    return typed(together, dtypes.pop() if len(dtypes) == 1 else None)


class DeepState(NamedTuple):
    h: jax.Array
    y: jax.Array


@cell_factory
def deep_rnn(
    hidden_size: int,
    *,
    inputs: int = 1,
    transition: int = 1,
    outputs: int = 1,
    skip: bool = False,
) -> Cell:
    """A tanh RNN with a network in each of its three blocks (figure 10.13b, c):

        h_t = tanh(W A(x_t) + U B(h_{t-1}) + b),    y_t = C(h_t),

    where A, B and C are perceptrons of `inputs`, `transition` and `outputs` layers
    `v -> tanh(M v + m)`; one of no layers is the identity. A deep transition makes the shortest
    path from a step to the next longer; with `skip` there is one around it,

        h_t = tanh(W A(x_t) + U B(h_{t-1}) + S h_{t-1} + b).

    Args:
      hidden_size: width of the state and of every layer.
      inputs, transition, outputs: how many layers between input and state, between a state and
        the next, and between state and output.
      skip: a direct path past the transition's layers.

    Parameters: `input` `[d or in, d]`, `recurrent` `[d, d]`, `bias` `[d]`, with skip also `skip`
    `[d, d]`, and `inputs`, `transition`, `outputs`, lists of layers of `weights` and `bias`. The
    output is part of the state, because it has parameters of its own.
    """
    d = hidden_size
    for name, layers in (("inputs", inputs), ("transition", transition), ("outputs", outputs)):
        if not isinstance(layers, int) or layers < 0:
            raise ValueError(f"{name} must be a number of layers, at least 0; got {layers!r}")
    if skip and not transition:
        raise ValueError("skip leads past the layers of the transition: it needs transition >= 1")

    def init(key: jax.Array, input_size: int) -> Params:
        keys = jax.random.split(key, 6)

        def perceptron(key: jax.Array, layers: int, size: int) -> list[Params]:
            sizes = [size, *[d] * layers]
            return [
                {"weights": dense(k, (n, d)), "bias": jnp.zeros(d)}
                for k, n in zip(jax.random.split(key, layers), sizes[:-1], strict=True)
            ]

        params = {
            "inputs": perceptron(keys[0], inputs, input_size),
            "transition": perceptron(keys[1], transition, d),
            "outputs": perceptron(keys[2], outputs, d),
            "input": dense(keys[3], (d if inputs else input_size, d)),
            "recurrent": orthogonal(keys[4], d, gain=0.5),
            "bias": jnp.zeros(d),
        }
        if skip:
            params["skip"] = orthogonal(keys[5], d, gain=0.5)
        return params

    def apply(layers: list[Params], v: jax.Array) -> jax.Array:
        for layer in layers:
            v = jnp.tanh(affine(v, layer["weights"], layer["bias"]))
        return v

    def project(params: Params, x: jax.Array) -> jax.Array:
        return affine(apply(params["inputs"], x), params["input"], params["bias"])

    def step(params: Params, xi: jax.Array, state: DeepState) -> DeepState:
        scores = xi + product(apply(params["transition"], state.h), params["recurrent"])
        if skip:
            scores = scores + product(state.h, params["skip"])
        h = jnp.tanh(scores)
        return DeepState(h, apply(params["outputs"], h))

    def initial_state(params: Params) -> DeepState:
        zero = jnp.zeros(d, params["bias"].dtype)
        return DeepState(zero, apply(params["outputs"], zero))

    return Cell(
        name="deep_rnn",
        hidden_size=d,
        init=init,
        project=project,
        step=step,
        output=lambda state: state.y,
        initial_state=initial_state,
        bounds={"recurrent": 0.9, "transition": [{"weights": 1.0}] * transition}
        | ({"skip": 0.9} if skip else {}),
    )
