"""Run time and memory of one meta-gradient: BPTT over Neumann-RBP, Table 3 of the 2018 paper.

    python -m benchmarks.hyper

The paper's problem (784-50-50-50-10 tanh neurons, 10,000 examples, mini-batches of 200, 1,000
training steps): BPTT, TBPTT and Neumann-RBP by the library's own model, interleaved in one run.
Examples are noise: the cost does not depend on them. Memory is what the compiled program needs
beside its arguments (`memory_analysis().temp_size_in_bytes`); "all" adds the arguments, of which
the examples are nearly everything. Columns with an x are BPTT's cost over that of the program.

What sets the ratios. BPTT runs every step, keeps what its derivative needs, and goes back through
all of them: memory is `steps` times about 1.9 MB (the mini-batch, two states, activations), and
time three to four times that of the training alone. Neumann-RBP runs the same steps and keeps
nothing. Then it linearises one step on `averaged` mini-batches and applies that `truncation` times:
memory are a few states, that linearisation and the meta-loss, whatever `steps` is; time that of the
training, and `truncation x averaged` products that cost about a step each. So the ratio of memory
grows with `steps` without bound, and that of time tends to BPTT's over that of the training alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from benchmarks import report, timing
from implicit_rnn.experiments.hyper.model import hyper_optimiser
from implicit_rnn.experiments.hyper.task import Trainings, orders
from implicit_rnn.experiments.task import Task

EXAMPLES, PIXELS, DIGITS, MINIBATCH = 10_000, 784, 10, 200
TRUNCATIONS = (10, 50, 100)
PAPER = {"time": {10: 3.02, 50: 2.87, 100: 2.68}, "memory": {10: 4.35, 50: 4.25, 100: 4.11}}


def problem(steps: int) -> tuple[Task, Trainings]:
    """The task as far as a model needs it, and one training."""
    rng = np.random.default_rng(0)
    inputs = rng.normal(0, 0.3, (EXAMPLES, PIXELS)).astype(np.float32)
    labels = rng.integers(0, DIGITS, EXAMPLES).astype(np.int32)
    order = orders(rng, EXAMPLES, steps, MINIBATCH)[None]
    task = Task("trainings", {"input_size": PIXELS, "labels": DIGITS}, {}, "loss", {})
    return task, Trainings(order, inputs, labels, inputs, labels)


def programs() -> dict[str, dict[str, Any]]:
    """Settings by name; the first is what the others are compared with."""
    found: dict[str, dict[str, Any]] = {
        "bptt": {"rule": "bptt"},
        "bptt, segments of 32": {"rule": "bptt", "segment": 32},
        "training alone": {},
    }
    for truncation in TRUNCATIONS:
        found[f"tbptt {truncation}"] = {"rule": "tbptt", "truncation": truncation}
    for averaged in (1, 5):
        for truncation in TRUNCATIONS:
            found[f"neumann {truncation}, averaged {averaged}"] = {
                "rule": "neumann", "truncation": truncation, "averaged": averaged
            }  # fmt: skip
    return found


def compiled(task: Task, batch: Any, settings: dict[str, Any]) -> tuple[Callable, Any]:
    """A program `(params, batch) -> gradient` (without settings the loss alone), and parameters."""
    model = hyper_optimiser(task, **settings)
    params = model.init(jax.random.key(0))

    def loss(params: Any, batch: Any) -> jax.Array:
        return model.loss(params, batch)[0]

    program = jax.jit(jax.grad(loss) if settings else loss)
    return program.lower(params, batch).compile(), params


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=1000)
    arguments = parser.parse_args()
    task, batch = problem(arguments.steps)
    batch = jax.tree.map(jax.numpy.asarray, batch)
    memory, samplers = {}, {}
    for name, settings in programs().items():
        program, params = compiled(task, batch, settings)
        memory[name] = program.memory_analysis()
        samplers[name] = timing.stopwatch(program, params, batch)
    times = timing.interleaved(samplers, arguments.rounds)
    reference, rows = memory["bptt"], []
    for name, settings in programs().items():
        needed = memory[name].temp_size_in_bytes
        given = memory[name].argument_size_in_bytes
        row = {
            "program": name,
            "seconds": times[name].median,
            "MB": needed / 1e6,
            "MB, all": (needed + given) / 1e6,
            "time x": times["bptt"].over(times[name]),
            "memory x": reference.temp_size_in_bytes / needed,
            "all x": (reference.temp_size_in_bytes + given) / (needed + given),
        }
        if settings.get("rule") == "neumann":
            row |= {f"paper's {kind}": PAPER[kind][settings["truncation"]] for kind in PAPER}
        rows.append(row)
    columns = list(rows[-1])
    report.table(
        f"one meta-gradient, {arguments.steps:,} training steps",
        columns,
        [[row.get(column) for column in columns] for row in rows],
    )
    command = f"python -m benchmarks.hyper --steps {arguments.steps} --rounds {arguments.rounds}"
    content = report.environment(command, ["jax", "jaxlib", "numpy"])
    report.write(
        "hyper", content | {"steps": arguments.steps, "rounds": arguments.rounds, "rows": rows}
    )


if __name__ == "__main__":
    main()
