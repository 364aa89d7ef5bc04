"""What a run came to: its best state on the test set, and what its solves took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax

from implicit_rnn.training.step import State, Trainer


def outcome(
    parts: Trainer, state: State, record: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """What `result.json` says of a trained model.

    Args:
      parts: of the run.
      state: the one that is tested.
      record: what its checkpoint says of it.
      rows: the lines of `metrics.jsonl`.
    """
    task = parts.task
    lines = [row for row in rows if "loss" in row]
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
    solved = [row for row in lines if "forward_steps" in row]
    if solved:
        tenth = max(len(solved) // 10, 1)
        for key in ("forward_steps", "backward_steps"):
            ends = (solved[:tenth], solved[-tenth:])
            content[key] = [sum(row[key] for row in end) / len(end) for end in ends]
        content["converged"] = sum(row["converged"] for row in solved) / len(solved)
    return content
