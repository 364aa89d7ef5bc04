"""Whole networks: records of pure functions over a batch."""

from implicit_rnn.models.base import Model, Outcome
from implicit_rnn.models.encoder import Encoded, Encoder, encoder
from implicit_rnn.models.tagger import Tagger, tagger

__all__ = ["Encoded", "Encoder", "Model", "Outcome", "Tagger", "encoder", "tagger"]
