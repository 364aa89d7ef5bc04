"""Recurrent cells as records of pure functions: causal ones, implicit ones, and the combinator."""

from collections.abc import Callable

from implicit_rnn.cells.base import Cell
from implicit_rnn.cells.contractive import contractive
from implicit_rnn.cells.deep import DeepState, deep_rnn, stacked
from implicit_rnn.cells.gru import gru
from implicit_rnn.cells.igru import igru
from implicit_rnn.cells.ilstm import ilstm
from implicit_rnn.cells.implicit import implicit
from implicit_rnn.cells.irnn import irnn
from implicit_rnn.cells.lstm import LSTMState, lstm
from implicit_rnn.cells.memory import remembering
from implicit_rnn.cells.mgu import mgu
from implicit_rnn.cells.mingru import mingru
from implicit_rnn.cells.onlstm import onlstm
from implicit_rnn.cells.qrnn import QRNNState, qrnn
from implicit_rnn.cells.rnn import OutputState, rnn
from implicit_rnn.cells.sru import sru
from implicit_rnn.cells.xrnn import XRNNState, recursion_weights, xrnn

# Every cell by name, `name -> factory(hidden_size, **options)`: what configurations choose from.
CELLS: dict[str, Callable[..., Cell]] = {
    "contractive": contractive,
    "deep_rnn": deep_rnn,
    "gru": gru,
    "igru": igru,
    "ilstm": ilstm,
    "irnn": irnn,
    "lstm": lstm,
    "mgu": mgu,
    "mingru": mingru,
    "onlstm": onlstm,
    "qrnn": qrnn,
    "rnn": rnn,
    "sru": sru,
    "xrnn": xrnn,
}

__all__ = [
    "CELLS",
    "Cell",
    "DeepState",
    "LSTMState",
    "OutputState",
    "QRNNState",
    "XRNNState",
    "contractive",
    "deep_rnn",
    "gru",
    "igru",
    "ilstm",
    "implicit",
    "irnn",
    "lstm",
    "mgu",
    "mingru",
    "onlstm",
    "qrnn",
    "recursion_weights",
    "remembering",
    "rnn",
    "sru",
    "stacked",
    "xrnn",
]
