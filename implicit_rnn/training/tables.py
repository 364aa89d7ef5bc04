"""Nested tables as TOML: what a run folder keeps of its configuration."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def dump(table: Mapping[str, Any]) -> str:
    """Nested tables as TOML; None is left out, and what TOML has no word for is text."""
    lines: list[str] = []

    def write(part: Mapping[str, Any], path: tuple[str, ...]) -> None:
        plain = {k: v for k, v in part.items() if not isinstance(v, Mapping) and v is not None}
        if path and (plain or not part):
            lines.append(f"[{'.'.join(path)}]")
        lines.extend(f"{_key(key)} = {_value(value)}" for key, value in plain.items())
        if plain:
            lines.append("")
        for key, value in part.items():
            if isinstance(value, Mapping):
                write(value, (*path, _key(key)))

    write(table, ())
    return "\n".join(lines)


def _key(key: str) -> str:
    return key if key.replace("_", "").replace("-", "").isalnum() else json.dumps(key)


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    return repr(value) if isinstance(value, float) else json.dumps(value, default=repr)
