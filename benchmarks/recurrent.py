"""Our LSTM and GRU against flax's over long sequences: training steps, side by side.

    python -m benchmarks.recurrent [--rounds 7]

A step is value and gradient of a loss over a batch, for as many parameters (biases apart). Third
come the matrix products of a step by themselves, one step after the other where they have to be:
what neither layer can do without.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

import implicit_rnn
from benchmarks import report, timing
from implicit_rnn import cells

INPUTS = 128
SHAPES = [(32, 784, 128), (20, 200, 200)]  # batch, time, width
PAIRS = {
    "lstm": (cells.lstm, nn.OptimizedLSTMCell),
    "gru": (cells.gru, nn.GRUCell),
    "gru, reset after": (lambda d: cells.gru(d, reset="after"), nn.GRUCell),
}


def steps_of(make: Callable, peer: Callable, shape: tuple) -> dict[str, tuple[Callable, tuple]]:
    """Training steps of both layers, and their arguments."""
    batch, time, width = shape
    xs = jax.random.normal(jax.random.key(1), (batch, time, INPUTS))
    cell, layer = make(width), nn.RNN(peer(width))

    def ours(params: Any, xs: jax.Array) -> jax.Array:
        return jnp.mean(jax.vmap(lambda x: implicit_rnn.unroll(cell, params, x)[0])(xs) ** 2)

    def flax(params: Any, xs: jax.Array) -> jax.Array:
        return jnp.mean(layer.apply(params, xs) ** 2)

    gates = 4 if peer is nn.OptimizedLSTMCell else 3
    return {
        "ours": (jax.jit(jax.value_and_grad(ours)), (cell.init(jax.random.key(0), INPUTS), xs)),
        "flax": (jax.jit(jax.value_and_grad(flax)), (layer.init(jax.random.key(0), xs), xs)),
        "products alone": (jax.jit(products), operands(batch, time, width, gates)),
    }


def operands(batch: int, time: int, width: int, gates: int) -> tuple[jax.Array, ...]:
    """Inputs, and the weights of a layer with so many gates."""
    keys = jax.random.split(jax.random.key(0), 3)
    shapes = (time, batch, INPUTS), (INPUTS, gates * width), (width, gates * width)
    return tuple(0.1 * jax.random.normal(k, shape) for k, shape in zip(keys, shapes, strict=True))


def products(xs: jax.Array, inner: jax.Array, outer: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Those of a step: forward, back through time, and the gradients of both matrices."""
    width = outer.shape[0]
    rows = xs.reshape(-1, INPUTS)
    projected = (rows @ inner).reshape(*xs.shape[:2], -1)

    def forward(h: jax.Array, z: jax.Array) -> tuple[jax.Array, jax.Array]:
        return (z + h @ outer)[:, :width], h

    def backward(g: jax.Array, z: jax.Array) -> tuple[jax.Array, jax.Array]:
        z = z.at[:, :width].add(g)
        return z @ outer.T, z

    start = jnp.zeros((xs.shape[1], width))
    states = lax.scan(forward, start, projected)[1].reshape(-1, width)
    cotangents = lax.scan(backward, start, projected, reverse=True)[1].reshape(len(rows), -1)
    return rows.T @ cotangents, states.T @ cotangents


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    command = f"python -m benchmarks.recurrent --rounds {arguments.rounds}"
    result = report.environment(command, ["jax", "jaxlib", "flax"]) | {"steps": {}}
    for shape in SHAPES:
        for name, (make, peer) in PAIRS.items():
            title = "{}, B={}, T={}, d={}".format(name, *shape)
            rows = timing.compare(steps_of(make, peer, shape), arguments.rounds)
            report.show(f"training step, {title}", rows)
            result["steps"][title] = rows
    report.write("recurrent", result)


if __name__ == "__main__":
    main()
