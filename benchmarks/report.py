"""How a benchmark says what it found: a table on the terminal and a JSON file, the same numbers."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

RESULTS = Path(__file__).parent / "results"


def environment(command: str, packages: Iterable[str]) -> dict[str, Any]:
    """What must be known to repeat a run: command, versions, processor, time."""
    versions = {}
    for package in packages:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    return {
        "command": command,
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processors": os.cpu_count(),
        "versions": versions,
    }


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Prints a table; numbers are right-aligned and rounded to three digits."""
    shown = Table(title=title, title_justify="left", title_style="bold")
    rows = [[_cell(value) for value in row] for row in rows]
    for index, column in enumerate(columns):
        words = all(isinstance(row[index], str) for row in rows)
        shown.add_column(column, justify="left" if words else "right", no_wrap=True)
    for row in rows:
        shown.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    console().print(shown)


def show(title: str, rows: Sequence[dict[str, Any]]) -> None:
    """Prints rows that have a `name` and the same numbers each."""
    columns = [column for column in rows[0] if column != "name"]
    table(
        title,
        ["", *[column.replace("_", " ") for column in columns]],
        [[row["name"], *[row[column] for column in columns]] for row in rows],
    )


def ratio(value: float | None, why_not: str = "") -> Text:
    """A ratio of ours over a peer's: above one is slower, and says so without colours too."""
    if value is None:
        return Text(why_not, style="dim")
    if value > 1.0:
        return Text(f"{value:.2f} SLOWER", style="bold red")
    return Text(f"{value:.2f}       ", style="green")


def write(name: str, content: dict[str, Any]) -> Path:
    """Writes `benchmarks/results/NAME.json` and prints where."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(content, indent=1) + "\n")
    console().print(f"all numbers: {path.relative_to(RESULTS.parents[1])}")
    return path


def console() -> Console:
    """A terminal that does not fold tables where the output is a file."""
    found = Console()
    return found if found.is_terminal else Console(width=160)


def _cell(value: Any) -> str | Text:
    if isinstance(value, str | Text):
        return value
    if value is None:
        return Text("-", style="dim")
    if isinstance(value, int):
        return Text(str(value))
    return Text(f"{value:.1e}" if 0 < abs(value) < 1e-3 else f"{value:.3g}")
