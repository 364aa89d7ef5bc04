"""Networks of `models` for a task, from options that a configuration gives by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from implicit_rnn import models
from implicit_rnn.cells import CELLS, Cell
from implicit_rnn.experiments.task import Task

# Encoders that are no layers of cells, by name.
ENCODERS: dict[str, Callable[..., models.Encoder]] = {"tcn": models.tcn}
DECODER = "decoder_"  # in front of an option's name: it is that of the decoder's cell


def encoder_of(encoder: str, hidden: int, options: dict[str, Any]) -> models.Encoder:
    """An encoder by name."""
    if encoder in ENCODERS:
        return ENCODERS[encoder](hidden, **options)
    return models.encoder(encoder, hidden, **options)


def cell_of(name: str) -> Callable[..., Cell]:
    """What makes a cell, by its name."""
    if name not in CELLS:
        raise ValueError(f"unknown cell {name!r}; choose from {sorted(CELLS)}")
    return CELLS[name]


def tagger(
    task: Task,
    *,
    encoder: str = "igru",
    hidden: int = 64,
    feature_dropout: float = 0.0,
    **options: Any,
) -> models.Tagger:
    """A label for every step.

    Args:
      encoder: a cell by name, "bi" and a causal one, or "tcn".
      hidden: width of the cell.
      feature_dropout: of the model's inputs and of the encoder's features.
      **options: of the encoder and its cell.
    """
    return models.tagger(
        encoder_of(encoder, hidden, options),
        task.sizes["input_size"],
        task.sizes["labels"],
        dropout=feature_dropout,
    )


def language_model(
    task: Task,
    *,
    cell: str = "lstm",
    hidden: int = 128,
    layers: int = 1,
    embedding_size: int | None = None,
    tied: bool = False,
    dropout: float = 0.0,
    truncate: int | None = None,
    **options: Any,
) -> models.LanguageModel:
    """The next token of a stream.

    Args:
      cell: a causal cell by name.
      hidden: its width.
      layers: how many of it.
      embedding_size, tied, truncate: as for `models.language_model`.
      dropout: between layers, and before the read-out.
      **options: of the cell.
    """
    return models.language_model(
        [cell_of(cell)(hidden, **options)] * layers,
        task.sizes["vocabulary"],
        embedding_size=embedding_size,
        tied=tied,
        dropout=dropout,
        truncate=truncate,
    )


def classifier(
    task: Task,
    *,
    encoder: str = "xrnn",
    hidden: int = 128,
    pooling: Literal["last", "mean", "max", "attention"] = "last",
    feature_dropout: float = 0.0,
    **options: Any,
) -> models.Classifier:
    """A label for a whole sequence.

    Args:
      encoder: a cell by name, "bi" and a causal one, or "tcn".
      hidden: width of the cell, or of the convolutions.
      pooling: as for `models.classifier`.
      feature_dropout: of the model's inputs, and of the vector that is read.
      **options: of the encoder and its cell.
    """
    return models.classifier(
        encoder_of(encoder, hidden, options),
        task.sizes["input_size"],
        task.sizes["labels"],
        pooling=pooling,
        dropout=feature_dropout,
    )


def seq2seq(
    task: Task,
    *,
    encoder: str = "bilstm",
    hidden: int = 64,
    embedding_size: int = 64,
    attention: Literal["additive", "bilinear", "dot", "none"] = "additive",
    context: Literal["input", "state", "both"] = "both",
    decoder: str = "lstm",
    decoder_hidden: int = 128,
    feature_dropout: float = 0.0,
    feeding: bool = False,
    smoothing: float = 0.0,
    **options: Any,
) -> models.Seq2Seq:
    """A sequence from a sequence, token by token.

    Args:
      encoder: a cell by name, "bi" and a causal one, or "tcn".
      hidden: width of the encoder's cell.
      embedding_size, attention, context: as for `models.seq2seq`.
      decoder: a causal cell by name.
      decoder_hidden: its width.
      feature_dropout: of embedded tokens, the encoder's features, and what the read-out sees.
      feeding, smoothing: as for `models.seq2seq`.
      **options: of the encoder and its cell, and of the decoder's cell with `decoder_` in front
        (`decoder_depth`).
    """
    own = {key: options.pop(key) for key in [*options] if key.startswith(DECODER)}
    cell = cell_of(decoder)(
        decoder_hidden, **{key.removeprefix(DECODER): value for key, value in own.items()}
    )
    return models.seq2seq(
        encoder_of(encoder, hidden, options),
        cell,
        **task.sizes,
        embedding_size=embedding_size,
        attention=None if attention == "none" else attention,
        context=context,
        dropout=feature_dropout,
        feeding=feeding,
        smoothing=smoothing,
    )


def transformer(
    task: Task,
    *,
    width: int = 128,
    heads: int = 4,
    layers: int = 2,
    block: Literal["feed_forward", "recursive"] = "feed_forward",
    hidden: int = 512,
    aggregate: Literal["linear", "recursive"] = "linear",
    depth: int = 2,
    recursion: Literal["dynamic", "scalar"] | float = "dynamic",
    squash: bool = False,
    dropout: float = 0.1,
    smoothing: float = 0.0,
) -> models.Transformer:
    """A sequence from a sequence by attention.

    Args:
      width, heads, layers, dropout, smoothing: as for `models.transformer`.
      block: what follows attention: a perceptron, or the parallel X-RNN.
      hidden: width of the perceptron's hidden layer.
      aggregate: what makes one vector of those of the heads.
      depth, recursion, squash: of X-RNN, as for `models.recursive`.
    """
    blocks = {
        "feed_forward": models.feed_forward(hidden),
        "linear": models.linear(),
        "recursive": models.recursive(depth=depth, recursion=recursion, squash=squash),
    }
    return models.transformer(
        **task.sizes,
        width=width,
        heads=heads,
        layers=layers,
        block=blocks[block],
        aggregate=blocks[aggregate],
        dropout=dropout,
        smoothing=smoothing,
    )
