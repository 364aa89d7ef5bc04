"""What a run has come to: the best state on the test set, and what its solves took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax

from implicit_rnn.training.step import State, Trainer


def outcome(
    parts: Trainer, state: State, record: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """The part of `result.json` that says how good a model is.

    Args:
      parts: of the run.
      state: the best one.
      record: what its checkpoint says of it.
      lines: those of `metrics.jsonl` about training.
    """
    task = parts.task
    content = {
        "best_update": record.get("update"),
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(state.params)),
        "test": parts.evaluate(state, task.splits["test"]),
        "valid": record.get("metrics"),
    }
    further = {
        name: parts.evaluate(state, split)
        for name, split in task.splits.items()
        if name not in ("train", "valid", "test")
    }
    content |= {"parts": further} if further else {}
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
