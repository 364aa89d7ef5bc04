"""The model of two sentences that a configuration describes."""

from __future__ import annotations

from typing import Any

from implicit_rnn.experiments.logic import sentence_pair as pairs
from implicit_rnn.experiments.networks import encoder_of
from implicit_rnn.experiments.task import Task


def sentence_pair(
    task: Task,
    *,
    encoder: str = "lstm",
    hidden: int = 128,
    embedding_size: int = 64,
    compare_size: int = 128,
    feature_dropout: float = 0.0,
    input_dropout: float | None = None,
    **options: Any,
) -> pairs.SentencePair:
    """A label for two sequences of tokens.

    Args:
      encoder: a cell by name, "bi" and a causal one, or "tcn".
      hidden: width of the cell.
      embedding_size, compare_size: as for `pairs.sentence_pair`.
      feature_dropout: of embedded tokens, of what is compared and of the hidden layer.
      input_dropout: of embedded tokens, in place of that.
      **options: of the encoder and its cell.
    """
    return pairs.sentence_pair(
        encoder_of(encoder, hidden, options),
        **task.sizes,
        embedding_size=embedding_size,
        compare_size=compare_size,
        dropout=feature_dropout,
        input_dropout=input_dropout,
    )
