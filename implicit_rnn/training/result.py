"""What `result.json` says of a run: the best state on the test set, and what the run cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax

from implicit_rnn.training.folder import Records
from implicit_rnn.training.step import State, Trainer


def result(
    parts: Trainer,
    state: State,
    record: Mapping[str, Any],
    records: Records,
    told: Mapping[str, Any],
) -> dict[str, Any]:
    """The content of `result.json`.

    Args:
      parts: of the run.
      state: the best one.
      record: what its checkpoint says of it.
      records: the lines of the run.
      told: what the run knows of itself: where, how long, with which configuration.
    """
    task = parts.task
    further = {
        name: parts.evaluate(state, split)
        for name, split in task.splits.items()
        if name not in ("train", "valid", "test")
    }
    content = {
        **told,
        "best_update": record.get("update"),
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(state.params)),
        "test": parts.evaluate(state, task.splits["test"]),
        "valid": record.get("metrics"),
    }
    content |= {"parts": further} if further else {}
    # After the evaluations, in which processes wait for the one that writes.
    lines = [row for row in records.read() if "loss" in row]
    verdict = getattr(task, "verdict", None)
    content |= {"verdict": verdict(lines)} if verdict else {}
    rows = [row for row in lines if "forward_steps" in row]
    if rows:
        tenth = max(len(rows) // 10, 1)
        for key in ("forward_steps", "backward_steps"):
            ends = (rows[:tenth], rows[-tenth:])
            content[key] = [sum(row[key] for row in end) / len(end) for end in ends]
        content["converged"] = sum(row["converged"] for row in rows) / len(rows)
    return content
