"""Recurrent networks whose states are defined by an equation."""

from implicit_rnn import cells
from implicit_rnn.sequence import implicit, implicit_batch, init_stack, stack, switch, unroll

__all__ = ["cells", "implicit", "implicit_batch", "init_stack", "stack", "switch", "unroll"]
