"""Why a run cannot go on: the first of inputs, solves, loss and gradients that is not finite."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

import solvers
from implicit_rnn.training import processes
from implicit_rnn.training.step import State, Trainer


def diagnosis(parts: Trainer, state: State, batch: Any, unsettled: int = 0) -> str:
    """What is wrong with updates that are not finite, or whose solves all fail, in words.

    Args:
      parts, state: of the run.
      batch: the last one.
      unsettled: updates in a row none of whose solves converged.
    """
    if parts.layout is not None:  # looked at on one device
        state, batch = processes.gathered((state, batch))
    skipped, lines = int(state.optimiser.notfinite_count), []
    if skipped:
        lines.append(f"{skipped} updates in a row were not finite")
    if unsettled:
        lines.append(f"no solve of {unsettled} updates in a row converged")
    for path, leaf in jax.tree_util.tree_leaves_with_path(batch):
        if not np.all(np.isfinite(leaf)):
            lines.append(
                f"the batch's {jax.tree_util.keystr(path)} is not finite: look at the data"
            )
    loss, outcome, gradient = parts.loss(state, batch)
    lines.append(f"the loss of the last batch is {float(loss):.4g}")
    if outcome.info is not None:
        for status in np.unique(np.asarray(outcome.info.status)):
            share = float(np.mean(np.asarray(outcome.info.status) == status))
            lines.append(f"{share:.0%} of its solves: {solvers.explain(int(status))}")
    for path, leaf in jax.tree_util.tree_leaves_with_path(gradient):
        if not np.all(np.isfinite(leaf)):
            lines.append(f"the gradient of {jax.tree_util.keystr(path)} is not finite")
            break
    if skipped:
        lines.append("lower optimiser.rate or optimiser.clip, or solve more exactly (solver.rtol)")
    else:
        lines.append(
            "loosen solver.rtol, raise solver.max_steps, or keep the layer solvable "
            "(solver.bounded, a lower optimiser.rate)"
        )
    return "\n  ".join(lines)
