"""Whole networks: records of pure functions over a batch."""

from implicit_rnn.models.attention import ATTENTIONS, Attention
from implicit_rnn.models.base import Network, Outcome, metrics
from implicit_rnn.models.blocks import Block, feed_forward, linear, recursive
from implicit_rnn.models.captioner import CaptionBatch, Captioner, captioner
from implicit_rnn.models.classifier import Classifier, LabelledBatch, classifier
from implicit_rnn.models.decoding import Decoded, beam, greedy, sample
from implicit_rnn.models.encoder import Encoded, Encoder, encoder
from implicit_rnn.models.graph import (
    GraphNetwork,
    LogisticRegression,
    graph_network,
    logistic_regression,
)
from implicit_rnn.models.hopfield import Hopfield, descent_step, energy, hopfield
from implicit_rnn.models.language_model import LanguageModel, TokenBatch, language_model
from implicit_rnn.models.output_recurrence import OutputRecurrence, output_recurrence
from implicit_rnn.models.recalling import recalling
from implicit_rnn.models.seq2seq import PairBatch, Seq2Seq, seq2seq
from implicit_rnn.models.tagger import Tagger, tagger
from implicit_rnn.models.tcn import tcn
from implicit_rnn.models.transformer import Transformer, transformer

__all__ = [
    "ATTENTIONS",
    "Attention",
    "Block",
    "CaptionBatch",
    "Captioner",
    "Classifier",
    "Decoded",
    "Encoded",
    "Encoder",
    "GraphNetwork",
    "Hopfield",
    "LabelledBatch",
    "LanguageModel",
    "LogisticRegression",
    "Network",
    "Outcome",
    "OutputRecurrence",
    "PairBatch",
    "Seq2Seq",
    "Tagger",
    "TokenBatch",
    "Transformer",
    "beam",
    "captioner",
    "classifier",
    "descent_step",
    "encoder",
    "energy",
    "feed_forward",
    "graph_network",
    "greedy",
    "hopfield",
    "language_model",
    "linear",
    "logistic_regression",
    "metrics",
    "output_recurrence",
    "recalling",
    "recursive",
    "sample",
    "seq2seq",
    "tagger",
    "tcn",
    "transformer",
]
