"""A trace of some updates for a profiler."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax

from implicit_rnn.training.step import Trainer


@contextmanager
def traced(parts: Trainer, folder: Path, updates: int) -> Iterator[Trainer]:
    """The parts of a run that write a trace of `updates` updates, from the second on.

    The first compiles. Others of another shape may compile within the trace. A run that ends before
    them, however it does, leaves a trace of those that there were.

    Args:
      parts: of the run.
      folder: where the trace goes, for TensorBoard's profiler or Perfetto.
      updates: how many; 0: none.
    """
    if not updates:
        yield parts
        return
    taken, running = 0, False

    def step(state: Any, *rest: Any) -> Any:
        nonlocal taken, running
        if taken == 1:
            jax.profiler.start_trace(str(folder))
            running = True
        state = parts.step(state, *rest)
        if taken == updates:
            jax.block_until_ready(state)
            jax.profiler.stop_trace()
            running = False
        taken += 1
        return state

    try:
        yield parts._replace(step=step)
    finally:
        if running:
            jax.profiler.stop_trace()
