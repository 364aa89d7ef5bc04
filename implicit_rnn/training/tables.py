"""Nested tables as TOML: what a run folder keeps of its configuration."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import tomli_w


def dump(table: Mapping[str, Any]) -> str:
    """Nested tables as TOML; None is left out, and what TOML has no word for is text."""
    return tomli_w.dumps(_writable(table))


def settings_tables(**records: Any) -> dict[str, Any]:
    """A table for each that is a record of settings, by name."""
    return {
        name: dataclasses.asdict(record)
        for name, record in records.items()
        if dataclasses.is_dataclass(record) and not isinstance(record, type)
    }


def _writable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _writable(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_writable(item) for item in value]
    return value if isinstance(value, bool | int | float | str) else repr(value)
