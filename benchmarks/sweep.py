"""What a backward sweep, the plain function and the compilation of a run cost.

    python -m benchmarks.sweep [--rounds 7]

A sweep over the matrix products that it is made of, at the rate at which this machine does them;
`vmap(implicit)` as it comes, to 1e-4 and with the exact adjoint, over a training step of flax's
bidirectional LSTM of equal size; what the ratios of the layer could come to if it were products
alone; and what `make run` spends on tracing and compiling the implicit GRU, with no compiled
programs kept.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

import implicit_rnn
import solvers
from benchmarks import implicit_layer, report, timing
from implicit_rnn import cells
from implicit_rnn.sequence.equation import batch_equation, equation_sweep
from implicit_rnn.training import Recipe

SHAPE = (32, 40, 200)  # batch, time, width
FEW, MANY = 2, 6  # backward sweeps, whose difference is timed: six is what the recipe takes

_RUN = """
import json, sys
import jax
spent = {}
def note(event, seconds, **_):
    spent[event] = spent.get(event, 0) + seconds
    spent[event + " programs"] = spent.get(event + " programs", 0) + (seconds > 0.25)
jax.monitoring.register_event_duration_secs_listener(note)
from implicit_rnn.cli import main
code = main(["train", "biased_walk", "--profile", "quick", "--only", "igru", "--no-figures",
             "--output", sys.argv[1]])
print(json.dumps(spent))
sys.exit(code)
"""


def sweeps(rounds: int) -> dict[str, float]:
    """Milliseconds of a backward sweep of the recipe, of a plain one, and of its products."""
    batch, time, width = SHAPE
    cell = cells.igru(width)
    params = cell.init(jax.random.key(0), implicit_layer.INPUTS)
    xs = jax.random.normal(jax.random.key(1), (batch, time, implicit_layer.INPUTS))

    def step(backward: int, extrapolated: bool) -> Any:
        recipe = Recipe(backward=backward, extrapolated=extrapolated)
        return jax.jit(jax.grad(lambda params: jnp.mean(recipe.solve(cell, params, xs)[0] ** 2)))

    # Those of the switch, of the gates and of the candidate, transposed.
    matrices = [
        jax.random.normal(jax.random.key(i), (k * width, width))
        for i, k in ((2, 2), (3, 2), (4, 1))
    ]

    def products(count: int) -> Any:
        def body(_: Any, rows: jax.Array) -> jax.Array:
            parts = [jnp.tile(rows, (1, m.shape[0] // width)) @ m for m in matrices]
            return sum(parts) * 1e-3

        start = jnp.ones((batch * time, width))
        return jax.jit(lambda matrix: lax.fori_loop(0, count, body, start * matrix[0, 0]))

    programs = {f"sweeps {n}": (step(n, True), params) for n in (FEW, MANY)}
    programs |= {f"plain {n}": (step(n, False), params) for n in (FEW, MANY)}
    programs |= {f"products {n}": (products(n), matrices[0]) for n in (FEW, MANY)}
    samples = timing.interleaved(
        {
            name: timing.stopwatch(program, argument)
            for name, (program, argument) in programs.items()
        },
        rounds,
    )

    def each(what: str) -> float:
        gap = samples[f"{what} {MANY}"].median - samples[f"{what} {FEW}"].median
        return 1e3 * gap / (MANY - FEW)

    return {
        "sweep_milliseconds": each("sweeps"),
        "plain_sweep_milliseconds": each("plain"),
        "products_milliseconds": each("products"),
    }


def plain(rounds: int) -> list[dict[str, Any]]:
    """`vmap(implicit)` beside the bidirectional LSTM, at (20, 40, 200)."""
    cell, params, xs = implicit_layer.problem(20, 40, 200, implicit_layer.WEIGHTS[0])
    peer = implicit_layer.steps_of(cell, params, xs)["flax bidirectional lstm"]

    def loss(params: Any, xs: jax.Array) -> jax.Array:
        states = jax.vmap(lambda x: implicit_rnn.implicit(cell, params, x, rtol=1e-4)[0])(xs)
        return jnp.mean(states**2)

    ours = jax.jit(jax.value_and_grad(loss)), (params, xs)
    return timing.compare({"vmap(implicit)": ours, "flax bidirectional lstm": peer}, rounds)


def limits(rounds: int) -> dict[str, dict[str, float]]:
    """What the layer's ratios would be if its matrix products were all that it did.

    At (20, 40, 200). Each evaluation of the map and each backward sweep is five products with
    `[d, d]`; the gradient by parameters five more. A ratio below the limit is out of reach.
    """
    found = {}
    for name, weights in (("fresh", implicit_layer.WEIGHTS[0]), ("trained", "trained")):
        cell, params, xs = implicit_layer.problem(20, 40, 200, weights)
        steps = implicit_layer.steps_of(cell, params, xs)
        peers = {
            name: steps[name] for name in ("flax bidirectional lstm", "paper, newton-bicgstab")
        }
        forward = implicit_layer.solvers_of(cell, params, xs)
        peers |= {
            name: (program, (params, xs))
            for name, program in forward.items()
            if not name.startswith("ours")
        }
        rows, width = xs.shape[0] * xs.shape[1], cell.hidden_size
        left = jax.random.normal(jax.random.key(0), (rows, width))
        right = jax.random.normal(jax.random.key(1), (width, 5 * width))
        peers["five products"] = jax.jit(jnp.matmul), (left, right)
        samples = timing.interleaved(
            {name: timing.stopwatch(f, *arguments) for name, (f, arguments) in peers.items()},
            rounds,
        )
        each = {name: 1e3 * sample.median for name, sample in samples.items()}
        counts = _evaluations(cell, params, xs)
        fastest = min(each[name] for name in forward if name in each)
        for row, ours, peer in (
            ("step", "recipe", each["flax bidirectional lstm"]),
            ("plain function", "plain function", each["flax bidirectional lstm"]),
            ("forward", "forward", fastest),
            ("paper's tolerances", "paper's tolerances", each["paper, newton-bicgstab"]),
        ):
            least = counts[ours] * each["five products"]
            found[f"{row}, {name}"] = {
                "products": 5 * counts[ours],
                "products_milliseconds": least,
                "peer_milliseconds": peer,
                "limit": least / peer,
            }
    return found


def _evaluations(cell: Any, params: Any, xs: jax.Array) -> dict[str, int]:
    """How often five products are done: by the slowest example, which all of a batch wait for."""
    probe = solvers.adjoint_probe((xs.shape[0],))

    def spent(solve: Any) -> tuple[int, int]:
        forward = solve(params, None)[1]
        back = jax.grad(lambda probe: jnp.mean(solve(params, probe)[0] ** 2))(probe)
        return int(forward.evaluations.max()), int(back.evaluations.max())

    def by(recipe: Recipe) -> Any:
        return lambda params, probe: recipe.solve(cell, params, xs, probe=probe)

    def plain_function(params: Any, probe: Any) -> Any:
        return implicit_rnn.implicit_batch(
            cell, params, xs, rtol=implicit_layer.TOLERANCE, probe=probe
        )

    recipe, plain_one = spent(by(Recipe())), spent(plain_function)
    paper = spent(by(implicit_layer.paper_recipe()))
    return {
        # And the gradient by parameters.
        "recipe": sum(recipe) + 1,
        # And the evaluation through which gradients pass.
        "plain function": sum(plain_one) + 2,
        "paper's tolerances": sum(paper) + 2,
        "forward": plain_one[0],
    }


def bfloat16(rounds: int) -> dict[str, float]:
    """Five products in float32, and in bfloat16 with sums in float32."""
    left = jax.random.normal(jax.random.key(0), (20 * 40, 200))
    right = jax.random.normal(jax.random.key(1), (200, 1000))

    def half(left: jax.Array, right: jax.Array) -> jax.Array:
        return jnp.matmul(left.astype(right.dtype), right, preferred_element_type=jnp.float32)

    samples = timing.interleaved(
        {
            "float32": timing.stopwatch(jax.jit(jnp.matmul), left, right),
            "bfloat16": timing.stopwatch(jax.jit(half), left, right.astype(jnp.bfloat16)),
        },
        rounds,
    )
    return {f"{name}_milliseconds": 1e3 * sample.median for name, sample in samples.items()}


def kernels() -> dict[str, int]:
    """Of how many kernels and loops the compiled steps consist: compilation takes as long as these.

    At (20, 40, 200), fresh weights. Aside: the kernels of a band solve and of an evaluation with
    one, of which the step has several copies.
    """
    cell, params, xs = implicit_layer.problem(20, 40, 200, implicit_layer.WEIGHTS[0])
    steps = implicit_layer.steps_of(cell, params, xs)
    equation = batch_equation(cell, params, jnp.swapaxes(xs, 0, 1), jnp.full(xs.shape[0], 40))
    states = jnp.zeros((*xs.shape[1::-1], cell.hidden_size))
    evaluate = equation_sweep(cell)
    bands = evaluate(equation, states)[1]

    def swept(equation: Any, states: jax.Array) -> jax.Array:
        image, bands = evaluate(equation, states)
        return solvers.bands.splitting_inverse(bands)(image - states)

    programs = {
        "step": steps["ours, recipe"],
        "peer": steps["flax bidirectional lstm"],
        "evaluation_and_band_solve": (jax.jit(swept), (equation, states)),
        "band_solve": (
            jax.jit(lambda bands, v: solvers.bands.splitting_inverse(bands)(v)), (bands, states)
        ),
    }  # fmt: skip
    found = {}
    for name, (program, arguments) in programs.items():
        text = program.lower(*arguments).compile().as_text()
        found[f"kernels, {name}"] = text.count(" fusion(") + text.count(" dot(")
        found[f"loops, {name}"] = text.count(" while(")
    return found


def compilation() -> dict[str, float]:
    """Seconds that the implicit GRU of `make run` is traced, lowered and compiled for."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", _RUN, f"{folder}/run"], text=True, capture_output=True,
            env=os.environ | {"JAX_ENABLE_COMPILATION_CACHE": "false"}, check=True,
        )  # fmt: skip
    spent = json.loads(done.stdout.splitlines()[-1])
    of = "/jax/core/compile/"
    return {
        "seconds": sum(
            spent[of + part]
            for part in (
                "jaxpr_trace_duration", "jaxpr_to_mlir_module_duration", "backend_compile_duration"
            )
        ),
        "programs_over_a_quarter_second": spent[of + "backend_compile_duration programs"],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    command = f"python -m benchmarks.sweep --rounds {arguments.rounds}"
    result = report.environment(command, ["jax", "jaxlib", "flax"])
    result |= {"sweep": sweeps(arguments.rounds), "plain": plain(arguments.rounds)}
    result |= {"limits": limits(arguments.rounds), "bfloat16": bfloat16(arguments.rounds)}
    result |= {"compilation": compilation(), "kernels": kernels()}
    report.show("vmap(implicit), B=20, T=40, d=200", result["plain"])
    report.show(
        "if the layer were its matrix products",
        [{"name": name} | row for name, row in result["limits"].items()],
    )
    report.show("a backward sweep, and the compilation of a run", [
        {"name": what, "value": value}
        for part in ("sweep", "bfloat16", "compilation", "kernels")
        for what, value in result[part].items()
    ])  # fmt: skip
    report.write("sweep", result)


if __name__ == "__main__":
    main()
