"""A trace of some updates for a profiler."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax

from implicit_rnn.training.step import Trainer


def traced(parts: Trainer, folder: Path, updates: int) -> Trainer:
    """The parts of a run that write a trace of `updates` updates, from the second on.

    The first compiles. Others of another shape may compile within the trace.

    Args:
      parts: of the run.
      folder: where the trace goes, for TensorBoard's profiler or Perfetto.
      updates: how many; a run that ends before them leaves no trace.
    """
    taken = 0

    def step(state: Any, *rest: Any) -> Any:
        nonlocal taken
        if taken == 1:
            jax.profiler.start_trace(str(folder))
        state = parts.step(state, *rest)
        if taken == updates:
            jax.block_until_ready(state)
            jax.profiler.stop_trace()
        taken += 1
        return state

    return parts._replace(step=step)
