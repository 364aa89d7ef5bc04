"""Our LSTM and GRU against flax's over long sequences: training steps, side by side.

    python -m benchmarks.recurrent [--rounds 7]

A step is value and gradient of a loss over a batch, for as many parameters (biases apart).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

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

    return {
        "ours": (jax.jit(jax.value_and_grad(ours)), (cell.init(jax.random.key(0), INPUTS), xs)),
        "flax": (jax.jit(jax.value_and_grad(flax)), (layer.init(jax.random.key(0), xs), xs)),
    }


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
