"""What an update and a solve send, and what several devices cost: weak and strong scaling.

    python -m benchmarks.scaling

Eight virtual devices share the cores of this machine: the times show what dividing the work costs
(programs, copies, collectives through memory), not what devices gain. Beside the time of one device
stand

    strong:  the same work over D devices;     ideal on shared cores: the same time
    weak:    D times the work over D devices;  ideal on shared cores: D times the time

and `overhead` is the time over that ideal. What is sent is counted in the compiled program. The
paper model (`docs/scaling.md` derives it) takes sweeps and operations as counted here, and the
accelerators and networks that are named below.
"""

from __future__ import annotations

import argparse
import math
import os
import re
from collections.abc import Callable
from typing import Any

DEVICES = (1, 2, 4, 8)
_FLAG = "--xla_force_host_platform_device_count=8"
if _FLAG not in os.environ.get("XLA_FLAGS", ""):  # read when jax starts
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_FLAG}".strip()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import AxisType  # noqa: E402

import implicit_rnn  # noqa: E402
import solvers  # noqa: E402
from benchmarks import report, timing  # noqa: E402
from implicit_rnn import models, training  # noqa: E402
from implicit_rnn.training import ParallelSettings, TrainingSettings  # noqa: E402

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
BYTES = {"f32": 4, "s32": 4, "u32": 4, "f64": 8, "bf16": 2, "f16": 2, "pred": 1}
# Assumptions of the paper model: an accelerator, and what connects those of a host, and hosts.
FLOPS = 20e12  # a second, sustained on thin products: a third of the float32 peak of an H100
NEAR, FAR = 300e9, 40e9  # bytes a second and device: among the eight of a host, between hosts
NEAR_LATENCY, FAR_LATENCY = 5e-6, 15e-6  # seconds a message
SUMS = 4  # all-reduces of a sweep: magnitude and products, of the residual and of the secant step
INPUTS, RTOL = 16, 1e-3


def sent(function: Callable, *arguments: Any) -> dict[str, tuple[int, int]]:
    """Operations and bytes of results, by kind of collective, in the compiled program.

    What stands in a loop counts once: once a sweep.
    """
    text = jax.jit(function).lower(*arguments).compile().as_text()
    found = {}
    for kind in KINDS:
        shapes = re.findall(rf"= (.*?) {kind}(?:-start)?\(", text)
        if shapes:
            found[kind] = (len(shapes), sum(map(_size, shapes)))
    return found


def _size(shape: str) -> int:
    parts = re.findall(r"(\w+)\[([\d,]*)\]", shape)
    return sum(
        BYTES.get(kind, 4) * math.prod(int(n) for n in sizes.split(",") if n)
        for kind, sizes in parts
    )


def update(devices: int, batch: int, time: int, hidden: int) -> tuple[Callable, tuple]:
    """One update of a tagger on a batch over so many devices."""
    random = np.random.default_rng(0)
    inputs = random.normal(size=(batch, time, INPUTS)).astype(np.float32)
    examples = training.Examples(
        inputs, (inputs[..., 0] > 0).astype(np.int32), np.full(batch, time, np.int32)
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


def solve(devices: int, time: int, hidden: int) -> tuple[Callable, tuple]:
    """A solve of one sequence over so many devices, its gradient, and what both solves took."""
    cell = implicit_rnn.cells.igru(hidden)
    params = cell.init(jax.random.key(0), INPUTS)
    xs = jax.random.normal(jax.random.key(1), (time, INPUTS))
    mesh = jax.make_mesh((devices,), ("time",), (AxisType.Auto,), devices=jax.devices()[:devices])

    def loss(params: Any, xs: jax.Array, probe: Any) -> tuple[jax.Array, Any]:
        states, info = implicit_rnn.implicit_sharded(
            cell, params, xs, mesh=mesh, method="banded", rtol=RTOL, probe=probe
        )
        return jnp.sum(states**2), info

    return jax.jit(jax.grad(loss, (0, 2), has_aux=True)), (params, xs, solvers.adjoint_probe())


def counted(hidden: int, time: int = 512) -> dict[str, float]:
    """Sweeps of a solve, forwards and backwards, and operations a step of an evaluation."""
    run, given = solve(1, time, hidden)
    (_, seen), info = run(*given)
    cell = implicit_rnn.cells.igru(hidden)
    xi, states = cell.project(given[0], given[1]), jnp.zeros((time + 2, hidden))
    analysis = jax.jit(cell.sweep).lower(given[0], xi, states).compile().cost_analysis()
    return {
        "forward": float(info.steps), "backward": float(seen.steps),
        "operations": analysis["flops"] / time,
    }  # fmt: skip


def updates(step: Callable, init: Callable, batch: Any) -> timing.Sampler:
    """Samples updates, each of which uses the state before it up."""
    state = step(init(), batch)

    def call() -> jax.Array:
        nonlocal state
        state = step(state, batch)
        return state.loss

    return timing.stopwatch(call)


def measure(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for every kind of work and number of devices."""
    rows = []
    for what, base, grows in (
        ("update, strong", arguments.batch, False),
        ("update, weak", arguments.batch // 8, True),
        ("solve, strong", arguments.time, False),
        ("solve, weak", arguments.time // 8, True),
    ):
        samplers, found = {}, {}
        for devices in DEVICES:
            size = base * (devices if grows else 1)
            if what.startswith("update"):
                step, (init, batch) = update(devices, size, 40, arguments.hidden)
                samplers[str(devices)] = updates(step, init, batch)
                counts = sent(step, init(), batch)
            else:
                run, given = solve(devices, size, arguments.hidden)
                samplers[str(devices)] = timing.stopwatch(run, *given)
                counts = sent(run, *given)
            found[devices] = counts
        timed = timing.interleaved(samplers, arguments.rounds)
        for devices in DEVICES:
            ratio = timed[str(devices)].over(timed["1"])
            rows.append({
                "work": what, "devices": devices, "ms": 1e3 * timed[str(devices)].median,
                "overhead": ratio / (devices if grows else 1),
                **{kind: f"{n} / {size:,} B" for kind, (n, size) in found[devices].items()},
            })  # fmt: skip
    return rows


def added(devices: int, payload: float) -> float:
    """Seconds of an all-reduce: inside hosts, then an eighth each between them.

    `2 log2(D)` messages deep, `2 (D - 1) / D` of the payload through every link.
    """
    near = min(devices, 8)
    hosts = devices // near
    inside = 2 * math.log2(near) * NEAR_LATENCY + 2 * (near - 1) / near * payload / NEAR
    between = 2 * math.log2(hosts) * FAR_LATENCY + 2 * (hosts - 1) / hosts * payload / near / FAR
    return inside + between


def gathered(devices: int, own: float) -> float:
    """Seconds of an all-gather of `own` bytes a device: `log2(D)` messages deep."""
    near = min(devices, 8)
    latency = math.log2(near) * NEAR_LATENCY + math.log2(devices // near) * FAR_LATENCY
    return latency + (devices - 1) * own / (NEAR if devices <= 8 else FAR)


def handed_on(devices: int, payload: float) -> float:
    """Seconds until a neighbour has it."""
    return FAR_LATENCY + payload / FAR if devices > 8 else NEAR_LATENCY + payload / NEAR


def model(counts: dict[str, float], hidden: int) -> list[dict[str, Any]]:
    """Efficiency by the paper model: time of the work alone over that with what is sent."""
    sweeps = counts["forward"] + counts["backward"]
    # The last evaluation, through which gradients pass, costs three: it, and two transposes.
    work = (sweeps + 3) * counts["operations"] / FLOPS  # seconds a step of a sequence
    gradient = 4 * (5 * hidden**2 + 5 * hidden * (INPUTS + 1))
    rows = []
    for devices in (8, 64, 1024):
        update = added(devices, gradient)
        halos = 2 * counts["forward"] + 4 * counts["backward"]  # of the states, and of the bands
        solved = (
            halos * handed_on(devices, 4 * hidden)
            + sweeps * (gathered(devices, 2 * 4 * 4 * hidden) + SUMS * added(devices, 12))
            + update
        )
        row = {"devices": devices}
        for name, steps, sending in (
            ("update, 32 x 40 a device", 32 * 40, update),
            ("update, 256 x 40 a device", 256 * 40, update),
            ("update, 8,192 x 40 in all", 8192 * 40 / devices, update),
            ("solve, 65,536 a device", 2**16, solved),
            ("solve, 1,048,576 in all", 2**20 / devices, solved),
        ):
            row[name] = steps * work / (steps * work + sending)
        rows.append(row)
    return rows


def main() -> None:
    """Prints and writes what was measured and counted, and the paper model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=64, help="examples of an update, strong")
    parser.add_argument("--time", type=int, default=4096, help="steps of a solve, strong")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    rows = measure(arguments)
    columns = ("work", "devices", "ms", "overhead", *KINDS)
    report.table(
        f"virtual devices on {os.cpu_count()} cores: operations / bytes in the program",
        columns, [[row.get(column, "") for column in columns] for row in rows],
    )  # fmt: skip
    counts = counted(200)
    efficiency = model(counts, 200)
    report.table(
        "efficiency by the paper model, hidden 200", list(efficiency[0]),
        [list(row.values()) for row in efficiency],
    )  # fmt: skip
    settings = vars(arguments)
    command = " ".join(f"--{key} {value}" for key, value in settings.items())
    content = report.environment(f"python -m benchmarks.scaling {command}", ["jax", "jaxlib"])
    report.write("scaling", content | settings | {
        "rows": rows, "counted": counts, "model": efficiency,
    })  # fmt: skip


if __name__ == "__main__":
    main()
