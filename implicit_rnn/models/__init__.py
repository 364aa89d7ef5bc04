"""Whole networks: records of pure functions over a batch."""

from implicit_rnn.models.attention import ATTENTIONS, Attention
from implicit_rnn.models.base import Model, Outcome, metrics
from implicit_rnn.models.captioner import CaptionBatch, Captioner, captioner
from implicit_rnn.models.classifier import Classifier, LabelledBatch, classifier
from implicit_rnn.models.decoding import Decoded, beam, greedy, sample
from implicit_rnn.models.encoder import Encoded, Encoder, encoder
from implicit_rnn.models.language_model import LanguageModel, TokenBatch, language_model
from implicit_rnn.models.output_recurrence import OutputRecurrence, output_recurrence
from implicit_rnn.models.seq2seq import PairBatch, Seq2Seq, seq2seq
from implicit_rnn.models.tagger import Tagger, tagger
from implicit_rnn.models.words import word_tagger

__all__ = [
    "ATTENTIONS",
    "Attention",
    "CaptionBatch",
    "Captioner",
    "Classifier",
    "Decoded",
    "Encoded",
    "Encoder",
    "LabelledBatch",
    "LanguageModel",
    "Model",
    "Outcome",
    "OutputRecurrence",
    "PairBatch",
    "Seq2Seq",
    "Tagger",
    "TokenBatch",
    "beam",
    "captioner",
    "classifier",
    "encoder",
    "greedy",
    "language_model",
    "metrics",
    "output_recurrence",
    "sample",
    "seq2seq",
    "tagger",
    "word_tagger",
]
