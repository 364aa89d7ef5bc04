"""The paper model of `docs/scaling.md`: efficiency from work, bytes and assumed latencies."""

from __future__ import annotations

import math
from typing import Any, NamedTuple


class Machine(NamedTuple):
    """Devices, and what connects those of a host, and hosts.

    Attributes:
      operations: a second, sustained.
      near, far: bytes a second and device, within a host and between hosts.
      near_latency, far_latency: seconds a message.
      host: devices of a host.
    """

    operations: float
    near: float = 300e9
    far: float = 40e9
    near_latency: float = 5e-6
    far_latency: float = 15e-6
    host: int = 8


# Operations of thin products: a third of the float32 peak of an H100. All assumed.
ACCELERATORS = Machine(20e12)


def processors(operations: float) -> Machine:
    """Hosts of one core each, of a measured speed, on an assumed network of 10 Gbit/s."""
    return Machine(operations, 1.25e9, 1.25e9, 50e-6, 50e-6, host=1)


SUMS = 4  # all-reduces of a sweep: magnitude and products, of the residual and of the secant step


def added(machine: Machine, devices: int, payload: float) -> float:
    """Seconds of an all-reduce: inside hosts, then an eighth each between them.

    `2 log2(D)` messages deep, `2 (D - 1) / D` of the payload through every link.
    """
    near = min(devices, machine.host)
    hosts = devices // near
    inside = 2 * math.log2(near) * machine.near_latency
    inside += 2 * (near - 1) / near * payload / machine.near
    between = 2 * math.log2(hosts) * machine.far_latency
    between += 2 * (hosts - 1) / hosts * payload / near / machine.far
    return inside + between


def gathered(machine: Machine, devices: int, own: float) -> float:
    """Seconds of an all-gather of `own` bytes a device: `log2(D)` messages deep."""
    near = min(devices, machine.host)
    latency = math.log2(near) * machine.near_latency
    latency += math.log2(devices // near) * machine.far_latency
    return latency + (devices - 1) * own / (machine.near if devices == near else machine.far)


def handed_on(machine: Machine, devices: int, payload: float) -> float:
    """Seconds until a neighbour has it."""
    if devices > machine.host:
        return machine.far_latency + payload / machine.far
    return machine.near_latency + payload / machine.near


def work(counts: dict[str, float]) -> float:
    """Operations a step: the last evaluation, through which gradients pass, counts three."""
    return (counts["forward"] + counts["backward"] + 3) * counts["operations"]


def table(
    machine: Machine, counts: dict[str, float], hidden: int, inputs: int
) -> list[dict[str, Any]]:
    """Efficiency: time of the work alone over that with what is sent.

    Args:
      machine: the devices.
      counts: sweeps `forward` and `backward`, and `operations` a step of an evaluation.
      hidden, inputs: widths of an implicit GRU.
    """
    sweeps = counts["forward"] + counts["backward"]
    seconds = work(counts) / machine.operations  # a step
    gradient = 4 * (5 * hidden**2 + 5 * hidden * (inputs + 1))
    rows = []
    for devices in (8, 64, 1024):
        update = added(machine, devices, gradient)
        halos = 2 * counts["forward"] + 4 * counts["backward"]  # of the states, and of the bands
        solved = (
            halos * handed_on(machine, devices, 4 * hidden)
            + sweeps * gathered(machine, devices, 2 * 4 * 4 * hidden)
            + sweeps * SUMS * added(machine, devices, 12)
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
            found[name] = steps * seconds / (steps * seconds + sending)
        rows.append(found)
    return rows
