"""The model of music that a configuration describes."""

from __future__ import annotations

from typing import Any, Literal

from implicit_rnn import models
from implicit_rnn.experiments.music.frames import FramesModel, frames_model
from implicit_rnn.experiments.networks import encoder_of
from implicit_rnn.experiments.task import Task


def frames(
    task: Task,
    *,
    encoder: str = "xrnn",
    hidden: int = 128,
    feature_dropout: float = 0.0,
    recall: Literal["nothing", "before", "after"] = "nothing",
    recall_size: int = 32,
    recall_heads: int = 1,
    **options: Any,
) -> FramesModel:
    """The next frame of a piece of music.

    Args:
      encoder: a causal cell by name, or "tcn".
      hidden: width of the cell, or of the convolutions.
      feature_dropout: of the frames that are read, and of the encoder's features.
      recall: whether the encoder looks back at earlier frames (`models.recalling`): by attention
        `"before"` it, as in the prototype of X-RNN, or by what it has made of them (`"after"`).
      recall_size, recall_heads: `size` and `heads` of that attention.
      **options: of the encoder and its cell.
    """
    made, keys = encoder_of(encoder, hidden, options), task.sizes["keys"]
    if recall != "nothing":
        made = models.recalling(made, keys, size=recall_size, heads=recall_heads, place=recall)
    return frames_model(made, keys, dropout=feature_dropout)
