"""The model of music that a configuration describes."""

from __future__ import annotations

from typing import Any

from implicit_rnn.experiments.music.frames import FramesModel, frames_model
from implicit_rnn.experiments.networks import encoder_of
from implicit_rnn.experiments.task import Task


def frames(
    task: Task,
    *,
    encoder: str = "xrnn",
    hidden: int = 128,
    feature_dropout: float = 0.0,
    **options: Any,
) -> FramesModel:
    """The next frame of a piece of music.

    Args:
      encoder: a causal cell by name, or "tcn".
      hidden: width of the cell, or of the convolutions.
      feature_dropout: of the frames that are read, and of the encoder's features.
      **options: of the encoder and its cell.
    """
    return frames_model(
        encoder_of(encoder, hidden, options), task.sizes["keys"], dropout=feature_dropout
    )
