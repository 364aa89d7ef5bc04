"""The tagger of words that a configuration describes."""

from __future__ import annotations

from typing import Any

from implicit_rnn import models
from implicit_rnn.experiments.networks import encoder_of
from implicit_rnn.experiments.tagging import words
from implicit_rnn.experiments.tagging.spans import marks
from implicit_rnn.experiments.task import Task


def word_tagger(
    task: Task,
    *,
    encoder: str = "igru",
    hidden: int | None = None,
    word_size: int = 200,
    affix_size: int = 12,
    feature_dropout: float = 0.0,
    word_dropout: float = 0.0,
    **options: Any,
) -> models.Tagger:
    """A tag for every word.

    Args:
      encoder: a cell by name, "bi" and a causal one, or "tcn".
      hidden: width of the cell; as many as a word has features, as in the 2017 paper, without.
      word_size, affix_size, word_dropout: as for `words.word_tagger`.
      feature_dropout: of the encoder's inputs and features.
      **options: of the encoder and its cell.
    """
    return words.word_tagger(
        lambda width: encoder_of(encoder, hidden or width, options),
        word_size=word_size,
        affix_size=affix_size,
        dropout=feature_dropout,
        word_dropout=word_dropout,
        vectors=task.details.get("vectors"),
        spans=marks(task.details["vocabulary"].tags),
        **task.sizes,
    )
