"""Recurrent networks whose states are defined by an equation."""

from implicit_rnn import cells
from implicit_rnn.sequence import (
    bidirectional,
    implicit,
    implicit_batch,
    init_bidirectional,
    init_stack,
    stack,
    switch,
    unroll,
)

__all__ = [
    "bidirectional",
    "cells",
    "implicit",
    "implicit_batch",
    "init_bidirectional",
    "init_stack",
    "stack",
    "switch",
    "unroll",
]
