"""What an update and a solve send, and what several devices cost: weak and strong scaling.

    python -m benchmarks.scaling            # goes on where it was stopped; --anew begins again

Every row is measured in a process of its own, with so many virtual devices. They share the cores of
this machine: the times show what dividing the work costs (programs, copies, collectives through
memory), not what devices gain. Beside the time of one device stand

    strong:  the same work over D devices;     ideal on shared cores: the same time
    weak:    D times the work over D devices;  ideal on shared cores: D times the time

and the overheads are times over that ideal: of the clock (the least of all rounds), and of the
processor (all threads, mean of all rounds), which other programs of the machine hardly change. What
is sent is counted in the compiled program. The paper model (`benchmarks/roofline.py`) takes sweeps
and operations as counted here, and speeds as assumed or, for processors, as measured.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType

import implicit_rnn
import solvers
from benchmarks import report, roofline
from benchmarks.sent import sent
from implicit_rnn import models, training
from implicit_rnn.training import ParallelSettings, TrainingSettings

DEVICES = (1, 2, 4, 8)
WORKS = ("update, strong", "update, weak", "solve, strong", "solve, weak")
INPUTS, RTOL = 16, 1e-3


def update(devices: int, batch: int, steps: int, hidden: int) -> tuple[Callable, tuple]:
    """One update of a tagger on a batch over so many devices."""
    random = np.random.default_rng(0)
    inputs = random.normal(size=(batch, steps, INPUTS)).astype(np.float32)
    examples = training.Examples(
        inputs, (inputs[..., 0] > 0).astype(np.int32), np.full(batch, steps, np.int32)
    )

    class Task:
        metric = "loss"
        splits = {"train": training.labelled(examples)}  # noqa: RUF012

    parts = training.trainer(
        Task(), models.tagger(models.encoder("igru", hidden), INPUTS, 2),
        settings=TrainingSettings(batch=batch, buckets=1),
        parallel=ParallelSettings(shape=(devices,)),
    )  # fmt: skip
    train = Task.splits["train"]
    loaded = parts.load(train, train.plan(batch, 1, random)[0])
    return parts.step, (parts.init, loaded)


def solve(devices: int, steps: int, hidden: int) -> tuple[Callable, tuple]:
    """A solve of one sequence over so many devices, its gradient, and what both solves took."""
    cell = implicit_rnn.cells.igru(hidden)
    params = cell.init(jax.random.key(0), INPUTS)
    xs = jax.random.normal(jax.random.key(1), (steps, INPUTS))
    mesh = jax.make_mesh((devices,), ("time",), (AxisType.Auto,), devices=jax.devices()[:devices])

    def loss(params: Any, xs: jax.Array, probe: Any) -> tuple[jax.Array, Any]:
        states, info = implicit_rnn.implicit_sharded(
            cell, params, xs, mesh=mesh, method="banded", rtol=RTOL, probe=probe
        )
        return jnp.sum(states**2), info

    return jax.jit(jax.grad(loss, (0, 2), has_aux=True)), (params, xs, solvers.adjoint_probe())


def counted(hidden: int, steps: int = 512) -> dict[str, float]:
    """Sweeps both ways, operations a step of an evaluation, and a core's seconds for a solve."""
    run, given = solve(1, steps, hidden)
    (_, seen), info = run(*given)
    cell = implicit_rnn.cells.igru(hidden)
    xi, states = cell.project(given[0], given[1]), jnp.zeros((steps + 2, hidden))
    analysis = jax.jit(cell.sweep).lower(given[0], xi, states).compile().cost_analysis()
    return {
        "forward": float(info.steps), "backward": float(seen.steps),
        "operations": analysis["flops"] / steps, "steps": steps,
        "seconds": 1e-3 * timed(lambda: run(*given), 7)["processor_ms"],
    }  # fmt: skip


def timed(call: Callable[[], Any], rounds: int) -> dict[str, float]:
    """Milliseconds of a call that is compiled and warm: of the clock, and of all threads."""
    jax.block_until_ready(call())
    clock, processor = [], time.process_time()
    for _ in range(rounds):
        begin = time.perf_counter()
        jax.block_until_ready(call())
        clock.append(1e3 * (time.perf_counter() - begin))
    busy = 1e3 * (time.process_time() - processor) / rounds
    return {"ms": statistics.median(clock), "least_ms": min(clock), "processor_ms": busy}


def row(work: str, devices: int, settings: dict[str, int]) -> dict[str, Any]:
    """What one kind of work takes and sends over the devices of this process."""
    size = settings["batch" if work.startswith("update") else "time"]
    if work.endswith("weak"):
        size = size // max(DEVICES) * devices
    found: dict[str, Any] = {"work": work, "devices": devices}
    if work.startswith("update"):
        step, (init, batch) = update(devices, size, 40, settings["hidden"])
        state = init()
        program = jax.jit(step, donate_argnums=0).lower(state, batch).compile()

        def call() -> Any:
            nonlocal state  # each update uses the state before it up
            state = program(state, batch)
            return state.loss

        took = timed(call, settings["rounds"])
        solves = float(state.totals["solves"])
        for name in ("forward", "backward"):
            found[f"{name}_sweeps"] = float(state.totals[f"{name}_steps"]) / solves
    else:
        run, given = solve(devices, size, settings["hidden"])
        program = run.lower(*given).compile()
        took = timed(lambda: program(*given), settings["rounds"])
        (_, seen), info = program(*given)
        found |= {"forward_sweeps": float(info.steps), "backward_sweeps": float(seen.steps)}
    # A program for a mesh of one device has collectives too, which send nothing.
    return found | took | sent(program.as_text() if devices > 1 else "")


def measured(work: str, devices: int, settings: dict[str, int]) -> dict[str, Any]:
    """`row`, in a process of its own that has so many virtual devices."""
    flags = os.environ.get("XLA_FLAGS", "")
    flags = f"{flags} --xla_force_host_platform_device_count={devices}".strip()
    options = [f"--{key}={value}" for key, value in settings.items()]
    done = subprocess.run(
        [
            sys.executable, "-m", "benchmarks.scaling", "--row", work, "--devices", str(devices),
            *options,
        ],
        env=os.environ | {"XLA_FLAGS": flags}, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1])


def overheads(rows: list[dict[str, Any]]) -> None:
    """Writes into each row its times over the ideal ones, by the row of one device."""
    alone = {row["work"]: row for row in rows if row["devices"] == 1}
    for found in rows:
        times = found["devices"] if found["work"].endswith("weak") else 1
        for name, key in (("overhead", "least_ms"), ("processor_overhead", "processor_ms")):
            found[name] = found[key] / (alone[found["work"]][key] * times)


def campaign(settings: dict[str, int], anew: bool) -> list[dict[str, Any]]:
    """All rows: those that the results hold already, and the others one after the other."""
    path = report.RESULTS / "scaling.json"
    before = {} if anew or not path.exists() else json.loads(path.read_text())
    same = all(before.get(key) == value for key, value in settings.items())
    rows = before.get("rows", []) if same else []
    command = " ".join(f"--{key} {value}" for key, value in settings.items())
    content = report.environment(f"python -m benchmarks.scaling {command}", ["jax", "jaxlib"])
    for work in WORKS:
        for devices in DEVICES:
            if any((found["work"], found["devices"]) == (work, devices) for found in rows):
                continue
            rows.append(measured(work, devices, settings))
            overheads(rows)
            print(json.dumps(rows[-1]), flush=True)
            report.write("scaling", content | settings | {"rows": rows})
    counts = counted(200)
    speed = roofline.work(counts) * counts["steps"] / counts["seconds"]
    machines = {
        "accelerators": roofline.ACCELERATORS,
        f"cores of {speed / 1e9:.3g} Gflop/s": roofline.processors(speed),
    }
    tables = {name: roofline.table(one, counts, 200, INPUTS) for name, one in machines.items()}
    assumed = {name: one._asdict() for name, one in machines.items()}
    report.write("scaling", content | settings | {
        "rows": rows, "counted": counts, "assumed": assumed, "model": tables,
    })  # fmt: skip
    columns = [
        "work", "devices", "processor_ms", "processor_overhead", "least_ms", "overhead",
        "operations", "bytes", "loop_operations", "loop_bytes",
    ]  # fmt: skip
    report.table(
        f"virtual devices on {os.cpu_count()} cores", columns,
        [[found[column] for column in columns] for found in rows],
    )  # fmt: skip
    for name, lines in tables.items():
        report.table(
            f"efficiency by the paper model, hidden 200, {name}", list(lines[0]),
            [list(line.values()) for line in lines],
        )  # fmt: skip
    return rows


def main() -> None:
    """Prints and writes what was measured and counted, and the paper model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=64, help="examples of an update, strong")
    parser.add_argument("--time", type=int, default=2048, help="steps of a solve, strong")
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--anew", action="store_true", help="measure what is there again")
    parser.add_argument("--row", choices=WORKS, help=argparse.SUPPRESS)
    parser.add_argument("--devices", type=int, default=1, help=argparse.SUPPRESS)
    given = vars(parser.parse_args())
    settings = {key: given[key] for key in ("batch", "time", "hidden", "rounds")}
    if given["row"]:
        print(json.dumps(row(given["row"], given["devices"], settings)))
    else:
        campaign(settings, given["anew"])


if __name__ == "__main__":
    main()
