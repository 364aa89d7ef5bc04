"""What there is to choose from: configurations, tasks, models, cells, runs."""

from __future__ import annotations

import inspect
import re
import sys
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
        ("tasks (task.name)", {name: first_sentence(make) for name, make in TASKS.items()}),
        (
            "models (model.name)",
            {
                name: f"{first_sentence(make)} Takes tasks of kind {KINDS[name]!r}."
                for name, make in MODELS.items()
            },
        ),
        (
            "cells and others (model.encoder)",
            # Their own docstrings begin with the equation, those of their files with words.
            {
                name: first_sentence(sys.modules[make.__module__])
                for name, make in (CELLS | ENCODERS).items()
            },
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
            table.add_row(escape(name), escape(text))
        console.print(table)
    console.print('"bi" before a causal cell ("bilstm") makes an encoder of two directions')
    console.print("implicit-rnn train CONFIGURATION --profile quick: a small run of any of them")


def first_sentence(thing: object) -> str:
    """The first sentence of a docstring, whole, on one line."""
    paragraph = " ".join(inspect.cleandoc(thing.__doc__ or "").partition("\n\n")[0].split())
    return re.split(r"(?<=[a-z)][.])\s(?=[A-Z`])", paragraph, maxsplit=1)[0]
