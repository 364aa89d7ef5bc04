"""Images pixel by pixel: how many updates a second, and what of an update is not a product.

    python -m benchmarks.pixels [--rounds 5] [--batch 32] [--time 784] [--hidden 128] [--layers 3]

An update is value and gradient of a classifier's loss over a batch of sequences, and Adam's step,
by three layers of X-RNN (depth 2, linear base, evaluated as `unroll` chooses), of our LSTM and of
flax's, the two LSTMs as wide as it takes for as many parameters. Beside each stands the time of the
same matrix products alone: those of its layers, forwards and backwards, as they are in the model
(for all steps at once where they do not depend on a state, step by step in a loop where they do).
What is left is the share of an update outside matrix products; what X-RNN recomputes counts there.
All in one run, interleaved.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax import lax

from benchmarks import report
from benchmarks.timing import interleaved, stopwatch
from implicit_rnn import models
from implicit_rnn.models import LabelledBatch
from implicit_rnn.models.base import label_sums

LABELS, DEPTH = 10, 2

Program = tuple[Callable, tuple]


class Shape(NamedTuple):
    batch: int
    time: int
    hidden: int
    layers: int


def sequences(shape: Shape) -> LabelledBatch:
    """Sequences of one feature, as pixels of MNIST are."""
    keys = jax.random.split(jax.random.key(1))
    return LabelledBatch(
        jax.random.normal(keys[0], (shape.batch, shape.time, 1)),
        jax.random.randint(keys[1], (shape.batch,), 0, LABELS),
        jnp.full(shape.batch, shape.time),
    )


def update_of(init: Callable, loss: Callable, batch: LabelledBatch) -> Program:
    """A compiled update, and its arguments."""
    optimiser = optax.adam(1e-3)
    params = jax.jit(init)(jax.random.key(0))

    def update(params: Any, state: Any, batch: LabelledBatch) -> tuple[Any, Any, jax.Array]:
        value, gradient = jax.value_and_grad(loss)(params, batch)
        changes, state = optimiser.update(gradient, state, params)
        return optax.apply_updates(params, changes), state, value

    return jax.jit(update), (params, jax.jit(optimiser.init)(params), batch)


def ours(encoder: str, shape: Shape, batch: LabelledBatch, **options: Any) -> Program:
    """An update of the library's classifier."""
    made = models.encoder(encoder, shape.hidden, layers=shape.layers, **options)
    model = models.classifier(made, 1, LABELS, pooling="mean")
    return update_of(model.init, lambda params, batch: model.loss(params, batch)[0], batch)


def flax_lstm(shape: Shape, batch: LabelledBatch) -> Program:
    """The same network made of flax's modules."""
    layers = [nn.RNN(nn.OptimizedLSTMCell(shape.hidden)) for _ in range(shape.layers)]
    read = nn.Dense(LABELS)

    def init(key: jax.Array) -> Any:
        keys, params, xs = jax.random.split(key, shape.layers + 1), [], batch.inputs[:1, :1]
        for layer, k in zip(layers, keys[1:], strict=True):
            params.append(layer.init(k, xs))
            xs = jnp.zeros((1, 1, shape.hidden))
        return [*params, read.init(keys[0], xs[:, 0])]

    def loss(params: Any, batch: LabelledBatch) -> jax.Array:
        xs = batch.inputs
        for layer, own in zip(layers, params, strict=False):
            xs = layer.apply(own, xs)
        scores = read.apply(params[-1], jnp.mean(xs, axis=1))
        return label_sums(scores, batch.labels, batch.labels >= 0)[0]

    return update_of(init, loss, batch)


def products(shape: Shape, wide: int, recurrent: bool) -> Program:
    """The matrix products of all layers above the first, whose inputs are one wide, and no more.

    Of each layer `[batch time, d] @ [d, wide]`, and for its gradient the products with either
    transposed; with a recurrent matrix the same once more, step by step in every layer.
    """
    d, rows = shape.hidden, shape.batch * shape.time
    keys = jax.random.split(jax.random.key(2), 3)
    x = jax.random.normal(keys[0], (rows, d))
    w, g = jax.random.normal(keys[1], (d, wide)), jax.random.normal(keys[2], (rows, wide))

    def by_steps(x: jax.Array, w: jax.Array, g: jax.Array) -> tuple[jax.Array, ...]:
        x, g = (leaf.reshape(shape.time, shape.batch, -1) for leaf in (x, g))
        forwards = lax.map(lambda row: row @ w, x)
        backwards = lax.map(lambda row: row @ w.T, g)
        # What a scan's gradient adds up step by step.
        summed = lax.scan(
            lambda total, row: (total + row[0].T @ row[1], None), jnp.zeros_like(w), (x, g)
        )[0]
        return forwards, backwards, summed

    def run(x: jax.Array, w: jax.Array, g: jax.Array) -> list[tuple[jax.Array, ...]]:
        found: list[tuple[jax.Array, ...]] = []
        for number in range(shape.layers):
            # Different operands: equal ones would be multiplied once.
            own = x + number, w + number, g + number
            if number:
                found.append((own[0] @ own[1], own[2] @ own[1].T, own[0].T @ own[2]))
            if recurrent:
                found.append(by_steps(*own))
        return found

    return jax.jit(run), (x, w, g)


def size(program: Program) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(program[1][0]))


def lstm_width(count: int, layers: int) -> int:
    """How wide LSTM layers with about so many parameters are."""
    # 4 d (1 + d + 1) in the first layer, 4 d (2 d + 1) in the others, 10 (d + 1) to read.
    square, single = 4 + 8 * (layers - 1), 8 + 4 * (layers - 1) + LABELS
    return round((math.sqrt(single**2 + 4 * square * count) - single) / (2 * square))


def measure(shape: Shape, rounds: int) -> list[dict[str, Any]]:
    """Every network beside every other and beside its products alone."""
    batch = sequences(shape)
    xrnn = ours("xrnn", shape, batch, depth=DEPTH)
    narrow = shape._replace(hidden=lstm_width(size(xrnn), shape.layers))
    updates = {
        "x-rnn": xrnn,
        "our lstm": ours("lstm", narrow, batch),
        "flax's lstm": flax_lstm(narrow, batch),
    }
    alone = {
        "x-rnn": products(shape, 3 * shape.hidden * (2**DEPTH - 1), recurrent=False),
        "lstm": products(narrow, 4 * narrow.hidden, recurrent=True),
    }
    programs = updates | {f"{name}, products": program for name, program in alone.items()}
    times = interleaved({name: stopwatch(p, *a) for name, (p, a) in programs.items()}, rounds)
    rows = []
    for name, program in updates.items():
        own = times["x-rnn, products" if name == "x-rnn" else "lstm, products"]
        memory = program[0].lower(*program[1]).compile().memory_analysis().temp_size_in_bytes
        rows.append(
            {
                "name": name,
                "hidden": shape.hidden if name == "x-rnn" else narrow.hidden,
                "parameters": size(program),
                "updates_a_second": 1 / times[name].median,
                "over_x-rnn": times[name].over(times["x-rnn"]),
                "share_outside_products": 1 - own.over(times[name]),
                "temporary_megabytes": memory / 2**20,
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    for name, default in Shape(32, 784, 128, 3)._asdict().items():
        parser.add_argument(f"--{name}", type=int, default=default)
    arguments = parser.parse_args()
    shape = Shape(*(getattr(arguments, name) for name in Shape._fields))
    options = "".join(f" --{name} {value}" for name, value in shape._asdict().items())
    command = f"python -m benchmarks.pixels --rounds {arguments.rounds}{options}"
    result: dict[str, Any] = report.environment(command, ["jax", "jaxlib", "flax", "optax"])
    result |= {"shape": shape._asdict(), "rows": measure(shape, arguments.rounds)}
    words = ", ".join(f"{name} {value}" for name, value in shape._asdict().items())
    report.show(f"an update, {words}", result["rows"])
    report.write("pixels", result)


if __name__ == "__main__":
    main()
