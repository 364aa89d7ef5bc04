"""Recurrent networks whose states are defined by an equation."""

import importlib
from typing import Any

from implicit_rnn import cells
from implicit_rnn.sequence import (
    bidirectional,
    equilibrium,
    grid,
    implicit,
    implicit_batch,
    implicit_sharded,
    init_bidirectional,
    init_grid,
    init_stack,
    initial_states,
    learning_rule,
    parallel,
    parallel_sharded,
    stack,
    stateful,
    switch,
    unroll,
)

__all__ = [
    "bidirectional",
    "cells",
    "equilibrium",
    "grid",
    "implicit",
    "implicit_batch",
    "implicit_sharded",
    "init_bidirectional",
    "init_grid",
    "init_stack",
    "initial_states",
    "learning_rule",
    "parallel",
    "parallel_sharded",
    "stack",
    "stateful",
    "switch",
    "unroll",
]

# What needs flax, optax or matplotlib is imported when it is first named.
_LATER = ("experiments", "models", "nn", "spectral", "training")


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
