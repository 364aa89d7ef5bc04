"""What a compiled program sends between devices: once, and in each pass of a loop."""

from __future__ import annotations

import math
import re

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
BYTES = {"f64": 8, "s64": 8, "f32": 4, "s32": 4, "u32": 4, "bf16": 2, "f16": 2, "pred": 1}
_CALLED = re.compile(r"(?:calls|to_apply|body|condition|branch_computations)=\{?([%\w., -]+)")


def sent(text: str) -> dict[str, int]:
    """Collective operations, and bytes of their results, of a compiled program.

    Args:
      text: what its `as_text` gives.

    Returns:
      `operations` and `bytes` outside of loops, and `loop_operations` and `loop_bytes`: those of
      one pass of every loop of the program.
    """
    parts = computations(text)
    inside = _reached(parts, re.findall(r"body=%?([\w.-]+)", text))
    found = {"operations": 0, "bytes": 0, "loop_operations": 0, "loop_bytes": 0}
    for name, body in parts.items():
        where = "loop_" if name in inside else ""
        for kind in KINDS:
            shapes = re.findall(rf"= (.*?) {kind}(?:-start)?\(", body)
            found[f"{where}operations"] += len(shapes)
            found[f"{where}bytes"] += sum(map(size, shapes))
    return found


def computations(text: str) -> dict[str, str]:
    """The computations of a program in HLO, by name."""
    found = re.findall(r"^(?:ENTRY )?%?([\w.-]+) \(.*?\{$(.*?)^\}", text, re.MULTILINE | re.DOTALL)
    return dict(found)


def size(shape: str) -> int:
    """Bytes of a shape, or a tuple of them, as HLO writes it."""
    parts = re.findall(r"(\w+)\[([\d,]*)\]", shape)
    return sum(
        BYTES.get(kind, 4) * math.prod(int(n) for n in sizes.split(",") if n)
        for kind, sizes in parts
    )


def _reached(parts: dict[str, str], names: list[str]) -> set[str]:
    """These computations and all that they call."""
    reached: set[str] = set()
    while names:
        name = names.pop()
        if name in reached or name not in parts:
            continue
        reached.add(name)
        for called in _CALLED.findall(parts[name]):
            names += [other.strip().lstrip("%") for other in called.split(",")]
    return reached
