"""Recurrent cells as records of pure functions: causal ones, implicit ones, and the combinator."""

from collections.abc import Callable

from implicit_rnn.cells.base import Cell
from implicit_rnn.cells.contractive import contractive
from implicit_rnn.cells.gru import gru
from implicit_rnn.cells.igru import igru
from implicit_rnn.cells.ilstm import ilstm
from implicit_rnn.cells.implicit import implicit
from implicit_rnn.cells.irnn import irnn
from implicit_rnn.cells.lstm import LSTMState, lstm

# Every cell by name, `name -> factory(hidden_size, **options)`: what configurations choose from.
CELLS: dict[str, Callable[..., Cell]] = {
    "contractive": contractive,
    "gru": gru,
    "igru": igru,
    "ilstm": ilstm,
    "irnn": irnn,
    "lstm": lstm,
}

__all__ = [
    "CELLS",
    "Cell",
    "LSTMState",
    "contractive",
    "gru",
    "igru",
    "ilstm",
    "implicit",
    "irnn",
    "lstm",
]
