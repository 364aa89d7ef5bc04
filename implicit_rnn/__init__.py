"""Recurrent networks whose states are defined by an equation."""

from implicit_rnn import cells
from implicit_rnn.sequence import (
    bidirectional,
    equilibrium,
    grid,
    implicit,
    implicit_batch,
    init_bidirectional,
    init_grid,
    init_stack,
    initial_states,
    learning_rule,
    parallel,
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
    "init_bidirectional",
    "init_grid",
    "init_stack",
    "initial_states",
    "learning_rule",
    "parallel",
    "stack",
    "stateful",
    "switch",
    "unroll",
]
