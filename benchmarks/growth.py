"""How time, steps and memory of the implicit GRU grow with length, width and batch.

    python -m benchmarks.growth [--rounds 3]     # and draws docs/images/growth.png

A forward solve to 1e-4 by sweeps, and a training step by the recipe (value and gradient, eight
backward sweeps), fresh weights. Memory is what the compiled step needs beside its arguments.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks import report, timing
from benchmarks.implicit_layer import INPUTS, TOLERANCE
from implicit_rnn import cells, implicit_batch
from implicit_rnn.experiments.plots.style import dress, look_of, new_figure, save
from implicit_rnn.training import Recipe

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "growth.png"
# Batch, time and width: one of them grows.
SHAPES = {
    "length": [(1, 40, 64), (1, 400, 64), (1, 4_000, 64), (1, 20_000, 64), (1, 100_000, 64)],
    "width": [(20, 40, d) for d in (32, 64, 128, 256, 512)],
    "batch": [(b, 40, 64) for b in (1, 4, 16, 64, 256)],
}

LINES = {"solve": "forward solve to 1e-4", "step": "training step"}


def measured(shape: tuple[int, int, int], rounds: int) -> dict[str, Any]:
    """One row: microseconds a token, the most steps, megabytes."""
    batch, time, width = shape
    cell = cells.igru(width)
    params = cell.init(jax.random.key(0), INPUTS)
    xs = jax.random.normal(jax.random.key(1), (batch, time, INPUTS))

    def solve(params: Any, xs: jax.Array) -> tuple:
        return implicit_batch(cell, params, xs, method="banded", rtol=TOLERANCE)

    def loss(params: Any, xs: jax.Array) -> jax.Array:
        return jnp.mean(Recipe().solve(cell, params, xs)[0] ** 2)

    forward, step = jax.jit(solve), jax.jit(jax.value_and_grad(loss))
    samplers = {
        "solve": timing.stopwatch(forward, params, xs),
        "step": timing.stopwatch(step, params, xs),
    }
    samples = timing.interleaved(samplers, rounds)
    memory = step.lower(params, xs).compile().memory_analysis().temp_size_in_bytes
    return {
        "name": f"B={batch}, T={time}, d={width}",
        "solve_microseconds_per_token": 1e6 * samples["solve"].median / (batch * time),
        "step_microseconds_per_token": 1e6 * samples["step"].median / (batch * time),
        "most_steps": int(forward(params, xs)[1].steps.max()),
        "step_megabytes": memory / 2**20,
        "shape": shape,
    }


def draw(found: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """Time per token and memory, against what grows."""
    from matplotlib.ticker import StrMethodFormatter

    figure, _ = new_figure((10.5, 5.6))
    grid = figure.subplots(2, 3, sharey="row")
    across = {
        "length": "steps (one sequence, 64 channels)",
        "width": "channels (20 sequences of 40 steps)",
        "batch": "sequences (40 steps, 64 channels)",
    }
    for column, (what, rows) in enumerate(found.items()):
        at = [row["shape"][("batch", "length", "width").index(what)] for row in rows]
        upper, lower = grid[0][column], grid[1][column]
        for number, (kind, name) in enumerate(LINES.items()):
            times = [row[f"{kind}_microseconds_per_token"] for row in rows]
            look = look_of(number)
            upper.plot(at, times, color=look.colour, marker=look.marker, linewidth=2, label=name)
        megabytes = [row["step_megabytes"] for row in rows]
        lower.plot(at, megabytes, color=look_of(1).colour, marker=look_of(1).marker, linewidth=2)
        for axes, up in ((upper, "microseconds a token"), (lower, "MB of a training step")):
            dress(axes, "", "" if axes is upper else across[what], "" if column else up)
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.set_xticks(at, [f"{number:,}" for number in at])
            axes.set_xticks([], minor=True)
            axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    grid[0][0].legend(frameon=False, fontsize=9)
    print(f"wrote {save(figure, path).relative_to(PICTURE.parents[2])}")


def rows_of(shapes: Sequence[tuple[int, int, int]], rounds: int) -> list[dict[str, Any]]:
    return [measured(shape, rounds) for shape in shapes]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    command = f"python -m benchmarks.growth --rounds {arguments.rounds}"
    found = {what: rows_of(shapes, arguments.rounds) for what, shapes in SHAPES.items()}
    for what, rows in found.items():
        shown = [{k: v for k, v in row.items() if k != "shape"} for row in rows]
        report.show(f"growth with {what}", shown)
    report.write("growth", report.environment(command, ["jax", "jaxlib"]) | found)
    draw(found, PICTURE)


if __name__ == "__main__":
    main()
