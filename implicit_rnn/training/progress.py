"""What a person sees while a run goes on: a bar on a terminal, lines in a file."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

_SILENCE = 10.0  # seconds, after which a file gets another line


class Display:
    """A progress bar with the latest numbers; without a terminal, a line every ten seconds."""

    def __init__(self, name: str, updates: int, console: Console) -> None:
        self.console, self.updates = console, updates
        self._said = time.monotonic()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.completed}/{task.total}"),
            TextColumn("{task.fields[numbers]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )
        self._task = self._bar.add_task(name or "training", total=updates, numbers="compiling")

    def __enter__(self) -> Display:
        self._bar.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._bar.stop()

    def advance(self, update: int, row: Mapping[str, Any] | None = None) -> None:
        """Moves the bar; with a row, shows its numbers."""
        self._bar.update(self._task, completed=update)
        if row is not None:
            self._bar.update(self._task, numbers=summary(row))
            silent = time.monotonic() - self._said
            if "loss" in row and not self.console.is_terminal and silent > _SILENCE:
                self.say(f"{update:6d}/{self.updates}  {summary(row)}")

    def say(self, text: str) -> None:
        """A line that stays."""
        self._said = time.monotonic()
        self.console.print(text, highlight=False, soft_wrap=True, markup=False)


def summary(row: Mapping[str, Any]) -> str:
    """The numbers of a row of `metrics.jsonl` in a line."""
    formats = {
        "loss": "loss {:.4f}",
        "error": "error {:.4f}",
        "exact": "exact {:.4f}",
        "bits": "bits {:.3f}",
        "forward_steps": "steps {:.1f}",
        "backward_steps": "+ {:.1f}",
        "converged": "converged {:.2%}",
        "skipped": "skipped {:.0f}",
        "tokens_per_second": "{:,.0f} tokens/s",
    }
    shown = {key: form for key, form in formats.items() if row.get(key) is not None}
    if not row.get("skipped"):
        shown.pop("skipped", None)
    return "  ".join(form.format(row[key]) for key, form in shown.items())
