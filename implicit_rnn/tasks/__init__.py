"""Where examples come from: generated or loaded, all with one shape."""

from implicit_rnn.tasks.base import Examples
from implicit_rnn.tasks.biased_walk import biased_walk

__all__ = ["Examples", "biased_walk"]
