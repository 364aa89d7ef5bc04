"""The implicit GRU layer against its peers: forward solves, training steps, growth with length.

    python -m benchmarks.implicit_layer [--full]

Forward: to a relative residual of 1e-4, against jaxopt and optimistix on the same equation. Step:
value and gradient of a loss, against the 2017 paper's Newton-BiCGSTAB in both directions, at the
same tolerances, and against flax's bidirectional LSTM with as many parameters. All in one run,
interleaved. Weights are fresh ones, and those of a real training run
(`python -m benchmarks.trainability --only default --save ...`).
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optimistix as optx

import implicit_rnn
from benchmarks import report, timing
from implicit_rnn import cells
from implicit_rnn.experiments.walk.task import biased_walk
from implicit_rnn.sequence.equation import equation_map, equation_of
from implicit_rnn.training import Recipe
from solvers import Sweeps, adjoint, linear

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import jaxopt

INPUTS = 16
TOLERANCE = 1e-4
MOST = 500  # steps that a peer may take; what it has reached by then is in the table
SHAPES = [
    (20, 40, 64), (64, 40, 64), (20, 200, 64), (20, 1000, 64),
    (20, 40, 200), (64, 40, 200), (20, 200, 200),
]  # fmt: skip
MORE_SHAPES = [
    (64, 200, 64), (64, 1000, 64), (64, 200, 200), (20, 1000, 200), (64, 1000, 200),
]  # fmt: skip
WEIGHTS = ["fresh, update bias 0", "fresh, update bias -3", "trained"]
# What both sides are asked for where the step is compared with the paper's algorithm. The recipe
# of the library asks for less: `implicit_rnn.training.Recipe`.
FORWARD_RTOL, BACKWARD_RTOL = 1e-3, 1e-2


def paper_recipe() -> Recipe:
    """Ours, at the tolerances that the paper's algorithm is given."""
    return Recipe(rtol=FORWARD_RTOL, backward=Sweeps(rtol=BACKWARD_RTOL))


def problem(batch: int, length: int, width: int, weights: str) -> tuple:
    """Cell, parameters and inputs; trained weights come with the walks they were trained for."""
    if weights == "trained":
        cell = cells.igru(width)
        stored = np.load(report.RESULTS / f"trained_{width}.npz")
        paths, structure = jax.tree_util.tree_flatten_with_path(
            cell.init(jax.random.key(0), INPUTS)
        )
        leaves = [jnp.asarray(stored[jax.tree_util.keystr(path)]) for path, _ in paths]
        walks = biased_walk(1, batch, min_length=length, max_length=length).inputs
        return cell, jax.tree.unflatten(structure, leaves), jnp.asarray(walks)
    cell = cells.igru(width, update_bias=float(weights.rsplit(" ", 1)[1]))
    params = cell.init(jax.random.key(0), INPUTS)
    return cell, params, jax.random.normal(jax.random.key(1), (batch, length, INPUTS))


def reached(cell: Any, params: Any, xs: jax.Array, states: jax.Array) -> float:
    """The largest relative residual of the batch."""
    f = equation_map(cell)

    def one(xs: jax.Array, states: jax.Array) -> jax.Array:
        image = f(equation_of(cell, params, xs), states)
        return jnp.linalg.norm(image - states) / jnp.linalg.norm(image)

    return float(jnp.max(jax.vmap(one)(xs, states)))


def solvers_of(cell: Any, params: Any, xs: jax.Array) -> dict[str, Callable]:
    """Forward solves of the batch, ours and the peers', each to about the tolerance."""
    f = equation_map(cell)
    zero = jnp.zeros((*xs.shape[:2], cell.hidden_size))
    # Peers stop on absolute norms: give them the norm of a typical solution.
    scale = float(
        jnp.min(
            jax.vmap(
                lambda x: jnp.linalg.norm(
                    implicit_rnn.implicit(cell, params, x, method="banded", rtol=1e-3)[0]
                )
            )(xs)
        )
    )

    def each(solve: Callable) -> Callable:
        return jax.jit(
            lambda params, xs: jax.vmap(
                lambda x, h: solve(lambda h, e: f(e, h), h, equation_of(cell, params, x))
            )(xs, zero)
        )

    tol = TOLERANCE * scale
    fixed = lambda g: jaxopt.FixedPointIteration(g, maxiter=MOST, tol=tol)  # noqa: E731
    accelerated = lambda g: jaxopt.AndersonAcceleration(g, maxiter=MOST, tol=tol)  # noqa: E731

    def optimistix(g: Callable, h: jax.Array, e: Any) -> jax.Array:
        solver = optx.FixedPointIteration(rtol=TOLERANCE, atol=TOLERANCE)
        return optx.fixed_point(g, solver, h, e, max_steps=MOST, throw=False).value

    def ours(method: str) -> Callable:
        return jax.jit(
            lambda params, xs: implicit_rnn.implicit_batch(
                cell, params, xs, method=method, rtol=TOLERANCE
            )[0]
        )

    def by_vmap(params: Any, xs: jax.Array) -> jax.Array:
        return jax.vmap(
            lambda x: implicit_rnn.implicit(cell, params, x, method="banded", rtol=TOLERANCE)[0]
        )(xs)

    return {
        "ours, sweeps": ours("banded"),
        "ours, auto": ours("auto"),
        "ours, sweeps by vmap": jax.jit(by_vmap),
        "jaxopt fixed point": each(lambda g, h, e: fixed(g).run(h, e).params),
        "jaxopt anderson": each(lambda g, h, e: accelerated(g).run(h, e).params),
        "optimistix fixed point": each(optimistix),
    }


def steps_of(cell: Any, params: Any, xs: jax.Array) -> dict[str, tuple[Callable, tuple]]:
    """Training steps: value and gradient of a loss over the batch."""

    def batch_step(recipe: Recipe) -> Callable:
        def loss(params: Any, xs: jax.Array) -> jax.Array:
            return jnp.mean(recipe.solve(cell, params, xs)[0] ** 2)

        return jax.jit(jax.value_and_grad(loss))

    def paper(params: Any, xs: jax.Array) -> jax.Array:
        how = adjoint.implicit(linear.bicgstab(rtol=BACKWARD_RTOL))
        states, _ = jax.vmap(
            lambda x: implicit_rnn.implicit(
                cell, params, x, method="newton_bicgstab", adjoint=how, rtol=FORWARD_RTOL
            )
        )(xs)
        return jnp.mean(states**2)

    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    width = int((np.sqrt((INPUTS + 1) ** 2 + count / 2) - INPUTS - 1) / 2)
    layers = [nn.RNN(nn.OptimizedLSTMCell(width)) for _ in range(2)]
    peer = nn.Bidirectional(*layers)
    weights = peer.init(jax.random.key(0), xs)
    bidirectional = jax.jit(
        jax.value_and_grad(lambda weights, xs: jnp.mean(peer.apply(weights, xs) ** 2))
    )
    return {
        "ours, recipe": (batch_step(Recipe()), (params, xs)),
        "ours, the paper's tolerances": (batch_step(paper_recipe()), (params, xs)),
        "paper, newton-bicgstab": (jax.jit(jax.value_and_grad(paper)), (params, xs)),
        "flax bidirectional lstm": (bidirectional, (weights, xs)),
    }


def growth(rounds: int) -> list[dict]:
    """Time per token of a forward solve as sequences get longer, the number of tokens fixed."""
    rows = []
    for length in (40, 400, 4000, 10_000):
        batch = max(1, 10_000 // length)
        cell, params, xs = problem(batch, length, 64, WEIGHTS[0])

        def solve(params: Any, xs: jax.Array, cell: Any = cell) -> tuple:
            return implicit_rnn.implicit_batch(cell, params, xs, method="banded", rtol=TOLERANCE)

        program = jax.jit(solve)
        _, info = program(params, xs)
        sample = timing.interleaved({"ours": timing.stopwatch(program, params, xs)}, rounds)
        rows.append(
            {
                "name": f"B={batch}, T={length}",
                "microseconds_per_token": 1e6 * sample["ours"].median / (batch * length),
                "most_steps": int(info.steps.max()),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--full", action="store_true", help="more and larger shapes")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shape", nargs="*", help="only these: B,T,d ...; the rest is kept")
    parser.add_argument("--weights", nargs="*", choices=WEIGHTS, default=WEIGHTS)
    arguments = parser.parse_args()
    shapes = SHAPES + (MORE_SHAPES if arguments.full else [])
    if arguments.shape:
        shapes = [tuple(map(int, shape.split(","))) for shape in arguments.shape]
    command = f"python -m benchmarks.implicit_layer --rounds {arguments.rounds}"
    command += " --full" if arguments.full else ""
    packages = ["jax", "jaxlib", "flax", "jaxopt", "optimistix"]
    result: dict[str, Any] = report.environment(command, packages)
    path = report.RESULTS / "implicit_layer.json"
    if arguments.shape and path.exists():
        result = json.loads(path.read_text()) | result
    else:
        result["growth"] = growth(arguments.rounds)
        report.show("growth with length, d=64, 10,000 tokens", result["growth"])
        result |= {"forward": {}, "step": {}}
    for shape in shapes:
        for weights in arguments.weights:
            cell, params, xs = problem(*shape, weights)
            title = "B={}, T={}, d={}, {}".format(*shape, weights)
            forward = solvers_of(cell, params, xs)
            rows = timing.compare(
                {n: (p, (params, xs)) for n, p in forward.items()}, arguments.rounds
            )
            for row in rows:
                row["reached"] = reached(cell, params, xs, forward[row["name"]](params, xs))
            report.show(f"forward solve, {title}", rows)
            result["forward"][title] = rows
            rows = timing.compare(steps_of(cell, params, xs), arguments.rounds)
            report.show(f"training step, {title}", rows)
            result["step"][title] = rows
            report.write("implicit_layer", result)


if __name__ == "__main__":
    main()
