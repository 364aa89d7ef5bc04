"""The paper model of `docs/scaling.md`: efficiency from work, bytes and assumed latencies."""

from __future__ import annotations

import math
from typing import Any

# An accelerator (operations a second, sustained on thin products: a third of the float32 peak of an
# H100), and what connects the eight of a host, and hosts: bytes a second and device, and seconds a
# message.
ASSUMED = {
    "operations": 20e12, "near": 300e9, "far": 40e9, "near_latency": 5e-6, "far_latency": 15e-6,
}  # fmt: skip
HOST = 8
SUMS = 4  # all-reduces of a sweep: magnitude and products, of the residual and of the secant step


def added(devices: int, payload: float) -> float:
    """Seconds of an all-reduce: inside hosts, then an eighth each between them.

    `2 log2(D)` messages deep, `2 (D - 1) / D` of the payload through every link.
    """
    near = min(devices, HOST)
    hosts = devices // near
    inside = 2 * math.log2(near) * ASSUMED["near_latency"]
    inside += 2 * (near - 1) / near * payload / ASSUMED["near"]
    between = 2 * math.log2(hosts) * ASSUMED["far_latency"]
    between += 2 * (hosts - 1) / hosts * payload / near / ASSUMED["far"]
    return inside + between


def gathered(devices: int, own: float) -> float:
    """Seconds of an all-gather of `own` bytes a device: `log2(D)` messages deep."""
    near = min(devices, HOST)
    latency = math.log2(near) * ASSUMED["near_latency"]
    latency += math.log2(devices // near) * ASSUMED["far_latency"]
    return latency + (devices - 1) * own / ASSUMED["near" if devices <= HOST else "far"]


def handed_on(devices: int, payload: float) -> float:
    """Seconds until a neighbour has it."""
    link = "far" if devices > HOST else "near"
    return ASSUMED[f"{link}_latency"] + payload / ASSUMED[link]


def table(counts: dict[str, float], hidden: int, inputs: int) -> list[dict[str, Any]]:
    """Efficiency: time of the work alone over that with what is sent.

    Args:
      counts: sweeps `forward` and `backward`, and `operations` a step of an evaluation.
      hidden, inputs: widths of an implicit GRU.
    """
    sweeps = counts["forward"] + counts["backward"]
    # The last evaluation, through which gradients pass, costs three: it, and two transposes.
    work = (sweeps + 3) * counts["operations"] / ASSUMED["operations"]  # seconds a step
    gradient = 4 * (5 * hidden**2 + 5 * hidden * (inputs + 1))
    rows = []
    for devices in (8, 64, 1024):
        update = added(devices, gradient)
        halos = 2 * counts["forward"] + 4 * counts["backward"]  # of the states, and of the bands
        solved = (
            halos * handed_on(devices, 4 * hidden)
            + sweeps * (gathered(devices, 2 * 4 * 4 * hidden) + SUMS * added(devices, 12))
            + update
        )
        found: dict[str, Any] = {"devices": devices}
        for name, steps, sending in (
            ("update, 32 x 40 a device", 32 * 40, update),
            ("update, 256 x 40 a device", 256 * 40, update),
            ("update, 8,192 x 40 in all", 8192 * 40 / devices, update),
            ("solve, 65,536 a device", 2**16, solved),
            ("solve, 1,048,576 in all", 2**20 / devices, solved),
        ):
            found[name] = steps * work / (steps * work + sending)
        rows.append(found)
    return rows
