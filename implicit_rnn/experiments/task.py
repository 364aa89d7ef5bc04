"""The one shape of a task that a configuration can name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from implicit_rnn.training.sources import Source


class Task(NamedTuple):
    """Examples to learn from, and what a model of them must know.

    Attributes:
      kind: which models fit: `"tagging"`, `"words"`, `"language"`, ...
      sizes: numbers that a model is built with: `input_size`, `labels`, `vocabulary`, ...
      splits: sources by name: `train`, `valid` and `test`; any other is a part of the test set, or
        another test set, that a result has by itself as well.
      metric: what a model is judged by; the lower, the better.
      details: anything else that plots and reports may use.
      verdict: `lines -> dict` of numbers that a run's lines about training in `metrics.jsonl` give:
        what a table shows beside the metric of the test set.
    """

    kind: str
    sizes: dict[str, int]
    splits: dict[str, Source]
    metric: str
    details: dict[str, Any]
    verdict: Callable[[list[dict[str, Any]]], dict[str, float]] | None = None

    @property
    def keep(self) -> dict[str, Any]:
        """Files that a run folder keeps, by name: what a trained model needs beside itself."""
        return self.details.get("keep", {})

    @property
    def notes(self) -> Sequence[str]:
        """What a run says first."""
        return self.details.get("notes", ())


def one_of(name: str, value: str, known: Sequence[str]) -> None:
    """Refuses a setting that is none of those that are known."""
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)}; got {value!r}")
