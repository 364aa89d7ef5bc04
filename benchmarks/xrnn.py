"""The recursive unit over long sequences: all steps at once, against a scan and an LSTM.

    python -m benchmarks.xrnn [--rounds 5]

A step is value and gradient of a loss over a batch, by X-RNN with a base linear in the input: all
steps at once, one step after the other, and flax's LSTM with as many parameters. Then what a
gradient keeps (`keep`), and how memory grows with the depth. All in one run, interleaved.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

import implicit_rnn
from benchmarks import report
from benchmarks.report import show
from benchmarks.timing import compare
from implicit_rnn import cells
from implicit_rnn.cells import Cell

TIME, WIDTH = 784, 128  # pixels of an image; inputs are as wide as the state, as between layers
BATCH = 32
KEEPS = ("everything", "outputs", "inputs", "chunks")

Program = tuple[Callable, tuple]


def inputs(time: int = TIME) -> jax.Array:
    return jax.random.normal(jax.random.key(1), (BATCH, time, WIDTH))


def step_of(cell: Cell, xs: jax.Array) -> Program:
    """A compiled training step of the cell, and its arguments."""

    def loss(params: Any, xs: jax.Array) -> jax.Array:
        return jnp.mean(jax.vmap(lambda x: implicit_rnn.unroll(cell, params, x)[0])(xs) ** 2)

    return jax.jit(jax.value_and_grad(loss)), (cell.init(jax.random.key(0), WIDTH), xs)


def lstm_of(count: int, xs: jax.Array) -> Program:
    """The same of flax's LSTM, as wide as it takes for about so many parameters."""
    # 4 d (WIDTH + d + 1) parameters.
    width = round((math.sqrt((WIDTH + 1) ** 2 + count) - WIDTH - 1) / 2)
    layer = nn.RNN(nn.OptimizedLSTMCell(width))
    params = layer.init(jax.random.key(0), xs)

    def loss(params: Any, xs: jax.Array) -> jax.Array:
        return jnp.mean(layer.apply(params, xs) ** 2)

    return jax.jit(jax.value_and_grad(loss)), (params, xs)


def size(program: Program) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(program[1][0]))


def against_others(depth: int, rounds: int) -> list[dict]:
    """The unit of a depth beside its scan and an LSTM of its size."""
    cell, xs = cells.xrnn(WIDTH, depth=depth), inputs()
    programs = {"all steps at once": step_of(cell, xs)}
    programs["scan"] = step_of(cell._replace(run=None), xs)
    programs["flax lstm, as many parameters"] = lstm_of(size(programs["all steps at once"]), xs)
    rows = compare(programs, rounds)
    for row in rows:
        row["parameters"] = size(programs[row["name"]])
    return rows


def keeping(depth: int, rounds: int) -> list[dict]:
    """What a gradient keeps, in time and memory."""
    xs = inputs()
    programs = {keep: step_of(cells.xrnn(WIDTH, depth=depth, keep=keep), xs) for keep in KEEPS}
    programs["auto"] = step_of(cells.xrnn(WIDTH, depth=depth), xs)
    return compare(dict(sorted(programs.items())), rounds)


def memory(most: int) -> list[dict]:
    """Temporary memory of a step by depth, in megabytes; nothing is run."""
    rows = []
    for depth in range(1, most + 1):
        row: dict[str, Any] = {"name": f"depth {depth}, {2**depth - 1} units"}
        for keep in KEEPS:
            program, arguments = step_of(cells.xrnn(WIDTH, depth=depth, keep=keep), inputs())
            compiled = program.lower(*arguments).compile()
            row[keep] = compiled.memory_analysis().temp_size_in_bytes / 2**20
        scan, arguments = step_of(cells.xrnn(WIDTH, depth=depth)._replace(run=None), inputs())
        row["scan"] = scan.lower(*arguments).compile().memory_analysis().temp_size_in_bytes / 2**20
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    command = f"python -m benchmarks.xrnn --rounds {arguments.rounds}"
    result: dict[str, Any] = report.environment(command, ["jax", "jaxlib", "flax"])
    result["shape"] = {"batch": BATCH, "time": TIME, "width": WIDTH}
    for depth in (2, 3):
        result[f"depth {depth}"] = against_others(depth, arguments.rounds)
        show(
            f"training step, depth {depth}, B={BATCH}, T={TIME}, d={WIDTH}",
            result[f"depth {depth}"],
        )
        result[f"keep, depth {depth}"] = keeping(depth, arguments.rounds)
        show(f"what a gradient keeps, depth {depth}", result[f"keep, depth {depth}"])
    result["memory"] = memory(5)
    show("temporary megabytes of a step", result["memory"])
    report.write("xrnn", result)


if __name__ == "__main__":
    main()
