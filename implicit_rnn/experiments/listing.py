"""What there is to choose from: configurations, tasks, models, cells, runs."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from implicit_rnn.cells import CELLS
from implicit_rnn.experiments.configurations import described
from implicit_rnn.experiments.networks import ENCODERS
from implicit_rnn.experiments.registry import KINDS, MODELS, TASKS
from implicit_rnn.experiments.runs import MARK


def show(folder: Path = Path()) -> None:
    """Prints what configurations may name, configurations, and the runs below a folder."""
    console = Console(highlight=False)
    for title, entries in (
        ("tasks (task.name)", {name: _first_line(make) for name, make in TASKS.items()}),
        (
            "models (model.name)",
            {name: f"{_first_line(make)} For {KINDS[name]}." for name, make in MODELS.items()},
        ),
        (
            "cells and others (model.encoder)",
            {name: _first_line(make) for name, make in (CELLS | ENCODERS).items()},
        ),
        ("configurations", described()),
        ("runs", {str(path.parent): "" for path in sorted(folder.glob(f"runs/*/{MARK}"))}),
    ):
        if not entries:
            continue
        table = Table(title=title, title_justify="left", title_style="bold", show_header=False)
        table.add_column(no_wrap=True)
        table.add_column()
        for name, text in entries.items():
            table.add_row(name, escape(text))
        console.print(table)
    console.print('"bi" before a causal cell ("bilstm") makes an encoder of two directions')


def _first_line(function: object) -> str:
    return (function.__doc__ or "").strip().splitlines()[0]
