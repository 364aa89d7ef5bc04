"""Run a cell over time: unrolled, in layers, or solved for the whole sequence."""

from implicit_rnn.sequence.bidirectional import bidirectional, init_bidirectional
from implicit_rnn.sequence.equilibrium import equilibrium, learning_rule
from implicit_rnn.sequence.grid import grid, init_grid
from implicit_rnn.sequence.parallel import parallel
from implicit_rnn.sequence.sharded import implicit_sharded, parallel_sharded
from implicit_rnn.sequence.solve import banded_adjoint, implicit, implicit_batch, switch
from implicit_rnn.sequence.stack import init_stack, stack
from implicit_rnn.sequence.stateful import initial_states, stateful
from implicit_rnn.sequence.unroll import unroll

__all__ = [
    "banded_adjoint",
    "bidirectional",
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
