"""What an update and a solve send, and what several devices cost: weak and strong scaling.

    python -m benchmarks.scaling

Eight virtual devices share the cores of this machine: the times show what dividing the work costs
(programs, copies, collectives through memory), not what devices gain. Beside the time of one device
stand

    strong:  the same work over D devices;     ideal on shared cores: the same time
    weak:    D times the work over D devices;  ideal on shared cores: D times the time

and `overhead` is the time over that ideal. What is sent is counted in the compiled program, and the
paper model of `docs/scaling.md` says what it would take on accelerators.
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
import numpy as np  # noqa: E402
from jax.sharding import AxisType  # noqa: E402

import implicit_rnn  # noqa: E402
from benchmarks import report, timing  # noqa: E402
from implicit_rnn import models, training  # noqa: E402
from implicit_rnn.training import ParallelSettings, TrainingSettings  # noqa: E402

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
BYTES = {"f32": 4, "s32": 4, "u32": 4, "f64": 8, "bf16": 2, "f16": 2, "pred": 1}
# An accelerator, and what connects those of a host and those of several: named assumptions.
FLOPS = 20e12  # sustained on products as thin as these: a third of the float32 peak of an H100
NEAR, FAR = 300e9, 40e9  # bytes a second and device: inside a host of eight, and between hosts
NEAR_LATENCY, FAR_LATENCY = 5e-6, 15e-6  # seconds a round


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
    inputs = random.normal(size=(batch, time, 16)).astype(np.float32)
    examples = training.Examples(
        inputs, (inputs[..., 0] > 0).astype(np.int32), np.full(batch, time, np.int32)
    )

    class Task:
        metric = "loss"
        splits = {"train": training.labelled(examples)}  # noqa: RUF012

    parts = training.trainer(
        Task(), models.tagger(models.encoder("igru", hidden), 16, 2),
        settings=TrainingSettings(batch=batch, buckets=1),
        parallel=ParallelSettings(shape=(devices,)),
    )  # fmt: skip
    train = Task.splits["train"]
    loaded = parts.load(train, train.plan(batch, 1, random)[0])
    return parts.step, (parts.init, loaded)


def solve(devices: int, time: int, hidden: int) -> tuple[Callable, tuple]:
    """A solve of one sequence over so many devices, and its gradient."""
    cell = implicit_rnn.cells.igru(hidden)
    params = cell.init(jax.random.key(0), 16)
    xs = jax.random.normal(jax.random.key(1), (time, 16))
    mesh = jax.make_mesh((devices,), ("time",), (AxisType.Auto,), devices=jax.devices()[:devices])

    def loss(params: Any, xs: jax.Array) -> tuple[jax.Array, Any]:
        states, info = implicit_rnn.implicit_sharded(
            cell, params, xs, mesh=mesh, method="banded", rtol=1e-3
        )
        return jax.numpy.sum(states**2), info

    return jax.jit(jax.grad(loss, has_aux=True)), (params, xs)


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


def rounds(devices: int, payload: float, collective: bool = True) -> float:
    """Seconds to add up, or to hand on, `payload` bytes of each of so many devices.

    A ring sends `2 (D - 1) / D` of it; inside hosts first, then between them, one eighth each.
    """
    near = min(devices, 8)
    if not collective:
        return (FAR_LATENCY if devices > 8 else NEAR_LATENCY) + payload / (
            FAR if devices > 8 else NEAR
        )
    time = math.log2(near) * NEAR_LATENCY + 2 * (near - 1) / near * payload / NEAR
    hosts = devices / near
    if hosts > 1:
        time += math.log2(hosts) * FAR_LATENCY + 2 * (hosts - 1) / hosts * payload / near / FAR
    return time


def model(hidden: int, time: int, batch: int, sweeps: tuple[float, float]) -> list[dict[str, Any]]:
    """The paper model: efficiency of an update and of a sharded solve for 8, 64, 1,024 devices."""
    forward, backward = sweeps
    # Five products with a d x d matrix a step and evaluation; a VJP into states is one more each,
    # the last one, into parameters too, two. A split solve is three of O(d): not counted.
    work = 2 * 5 * hidden**2 * (forward + backward + 3)
    gradient = 4 * (5 * hidden**2 + 5 * hidden * (16 + 1))
    rows = []
    for devices in (8, 64, 1024):
        own = work * batch * 40 / FLOPS
        row = {"devices": devices, "update, weak": own / (own + rounds(devices, gradient))}
        strong = work * batch * 8 * 40 / devices / FLOPS
        row["update, strong"] = strong / (strong + rounds(devices, gradient))
        sweep = 2 * rounds(devices, 4 * hidden, False) + 4 * rounds(devices, 12)
        gathered = 2 * 4 * 4 * hidden * devices
        sweep += rounds(devices, 0) + gathered / (FAR if devices > 8 else NEAR)
        talk = (forward + backward) * sweep + rounds(devices, gradient)
        for name, steps in (("solve, weak", time), ("solve, strong", 8 * time / devices)):
            own = work * steps / FLOPS
            row[name] = own / (own + talk)
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--time", type=int, default=4096)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    print(measure(parser.parse_args()), report, model(200, 4096, 32, (8, 6)))


if __name__ == "__main__":
    main()
