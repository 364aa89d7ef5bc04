"""Recurrent networks whose states are defined by an equation."""

from implicit_rnn import cells
from implicit_rnn.sequence import (
    bidirectional,
    grid,
    implicit,
    implicit_batch,
    init_bidirectional,
    init_grid,
    init_stack,
    initial_states,
    parallel,
    stack,
    stateful,
    switch,
    unroll,
)

__all__ = [
    "bidirectional",
    "cells",
    "grid",
    "implicit",
    "implicit_batch",
    "init_bidirectional",
    "init_grid",
    "init_stack",
    "initial_states",
    "parallel",
    "stack",
    "stateful",
    "switch",
    "unroll",
]
