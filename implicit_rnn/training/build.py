"""From a configuration to a task and a model that fit each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from implicit_rnn import models
from implicit_rnn.cells import CELLS, Cell
from implicit_rnn.tasks import TASKS, Task
from implicit_rnn.training.hyper import hyper_optimiser

# Encoders that are no layers of cells, by name.
ENCODERS: dict[str, Callable[..., models.Encoder]] = {"tcn": models.tcn}
DECODER = "decoder_"  # in front of an option's name: it is that of the decoder's cell


def _encoder(encoder: str, hidden: int, options: dict[str, Any]) -> models.Encoder:
    if encoder in ENCODERS:
        return ENCODERS[encoder](hidden, **options)
    return models.encoder(encoder, hidden, **options)


def _cell(name: str) -> Callable[..., Cell]:
    if name not in CELLS:
        raise ValueError(f"unknown cell {name!r}; choose from {sorted(CELLS)}")
    return CELLS[name]


def tagger(
    task: Task, *, encoder: str = "igru", hidden: int = 64, feature_dropout: float = 0.0,
    **options: Any,
) -> models.Tagger:  # fmt: skip
    """A label for every step.

    Args:
      encoder: a cell by name, "bi" and a causal one, or "tcn".
      hidden: width of the cell.
      feature_dropout: of the model's inputs and of the encoder's features.
      **options: of the encoder and its cell.
    """
    return models.tagger(
        _encoder(encoder, hidden, options), task.sizes["input_size"], task.sizes["labels"],
        dropout=feature_dropout,
    )  # fmt: skip


def language_model(
    task: Task, *, cell: str = "lstm", hidden: int = 128, layers: int = 1,
    embedding_size: int | None = None, tied: bool = False, dropout: float = 0.0,
    truncate: int | None = None, **options: Any,
) -> models.LanguageModel:  # fmt: skip
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
        [_cell(cell)(hidden, **options)] * layers, task.sizes["vocabulary"],
        embedding_size=embedding_size, tied=tied, dropout=dropout, truncate=truncate,
    )  # fmt: skip


def word_tagger(
    task: Task, *, encoder: str = "igru", hidden: int | None = None, word_size: int = 200,
    affix_size: int = 12, feature_dropout: float = 0.0, word_dropout: float = 0.0, **options: Any,
) -> models.Tagger:  # fmt: skip
    """A tag for every word.

    Args:
      encoder: a cell by name, "bi" and a causal one, or "tcn".
      hidden: width of the cell; as many as a word has features, as in the 2017 paper, without.
      word_size, affix_size, word_dropout: as for `models.word_tagger`.
      feature_dropout: of the encoder's inputs and features.
      **options: of the encoder and its cell.
    """
    return models.word_tagger(
        lambda width: _encoder(encoder, hidden or width, options), word_size=word_size,
        affix_size=affix_size, dropout=feature_dropout, word_dropout=word_dropout,
        vectors=task.details.get("vectors"), **task.sizes,
    )  # fmt: skip


def classifier(
    task: Task, *, encoder: str = "xrnn", hidden: int = 128,
    pooling: Literal["last", "mean", "attention"] = "last", feature_dropout: float = 0.0,
    **options: Any,
) -> models.Classifier:  # fmt: skip
    """A label for a whole sequence.

    Args:
      encoder: a cell by name, "bi" and a causal one, or "tcn".
      hidden: width of the cell, or of the convolutions.
      pooling: as for `models.classifier`.
      feature_dropout: of the model's inputs, and of the vector that is read.
      **options: of the encoder and its cell.
    """
    return models.classifier(
        _encoder(encoder, hidden, options), task.sizes["input_size"], task.sizes["labels"],
        pooling=pooling, dropout=feature_dropout,
    )  # fmt: skip


def frames(
    task: Task, *, encoder: str = "xrnn", hidden: int = 128, feature_dropout: float = 0.0,
    **options: Any,
) -> models.FramesModel:  # fmt: skip
    """The next frame of a piece of music.

    Args:
      encoder: a causal cell by name, or "tcn".
      hidden: width of the cell, or of the convolutions.
      feature_dropout: of the frames that are read, and of the encoder's features.
      **options: of the encoder and its cell.
    """
    return models.frames_model(
        _encoder(encoder, hidden, options), task.sizes["keys"], dropout=feature_dropout
    )


def graph(
    task: Task, *, hidden: int | None = None, rule: str = "neumann", truncation: int = 5,
    uniform: bool = False, steps: int = 100, tolerance: float = 1e-3,
    inputs: Literal["every_step", "initial"] = "every_step",
    normalise: Literal["none", "mean", "symmetric"] = "symmetric", coupling: float = 0.95,
    dropout: float = 0.0,
) -> models.GraphNetwork:  # fmt: skip
    """A label for every node: a gated graph network at its equilibrium.

    Args:
      hidden: width of a node's state; as many as it has features without.
      rule, truncation, uniform, steps, tolerance, inputs, normalise, coupling, dropout: as for
        `models.graph_network`.
    """
    sizes = task.sizes
    return models.graph_network(
        sizes["input_size"], sizes["labels"], hidden or sizes["input_size"], rule=rule,
        truncation=truncation, uniform=uniform, steps=steps, tolerance=tolerance, inputs=inputs,
        normalise=normalise, coupling=coupling, dropout=dropout,
    )  # fmt: skip


def logistic_regression(task: Task, *, dropout: float = 0.0) -> models.LogisticRegression:
    """A label for every node from its own features.

    Args:
      dropout: of the features.
    """
    return models.logistic_regression(
        task.sizes["input_size"], task.sizes["labels"], dropout=dropout
    )


def hopfield(
    task: Task, *, hidden: int = 1024, rule: str = "neumann", truncation: int = 20,
    uniform: bool = False, steps: int = 50, tolerance: float = 1e-5, scale: float = 1e-3,
    read_out: Literal["state", "activation"] = "state", time_constant: float = 1.0,
    gain: float = 0.5, step: float = 1.0,
) -> models.Hopfield:  # fmt: skip
    """An associative memory of images.

    Args:
      hidden, rule, truncation, uniform, steps, tolerance, scale, read_out, time_constant, gain,
        step: as for `models.hopfield`.
    """
    return models.hopfield(
        task.sizes["pixels"], hidden, rule=rule, truncation=truncation, uniform=uniform,
        steps=steps, tolerance=tolerance, scale=scale, read_out=read_out,
        time_constant=time_constant, gain=gain, step=step,
    )  # fmt: skip


def seq2seq(
    task: Task, *, encoder: str = "bilstm", hidden: int = 64, embedding_size: int = 64,
    attention: Literal["additive", "bilinear", "dot", "none"] = "additive",
    context: Literal["input", "state", "both"] = "both",
    decoder: str = "lstm", decoder_hidden: int = 128, feature_dropout: float = 0.0, **options: Any,
) -> models.Seq2Seq:  # fmt: skip
    """A sequence from a sequence, token by token.

    Args:
      encoder: a cell by name, "bi" and a causal one, or "tcn".
      hidden: width of the encoder's cell.
      embedding_size, attention, context: as for `models.seq2seq`.
      decoder: a causal cell by name.
      decoder_hidden: its width.
      feature_dropout: of embedded tokens, the encoder's features, and what the read-out sees.
      **options: of the encoder and its cell, and of the decoder's cell with `decoder_` in front
        (`decoder_depth`).
    """
    own = {key: options.pop(key) for key in [*options] if key.startswith(DECODER)}
    cell = _cell(decoder)(
        decoder_hidden, **{key.removeprefix(DECODER): value for key, value in own.items()}
    )
    return models.seq2seq(
        _encoder(encoder, hidden, options), cell, **task.sizes, embedding_size=embedding_size,
        attention=None if attention == "none" else attention, context=context,
        dropout=feature_dropout,
    )  # fmt: skip


def sentence_pair(
    task: Task, *, encoder: str = "lstm", hidden: int = 128, embedding_size: int = 64,
    compare_size: int = 128, feature_dropout: float = 0.0, **options: Any,
) -> models.SentencePair:  # fmt: skip
    """A label for two sequences of tokens.

    Args:
      encoder: a cell by name, "bi" and a causal one, or "tcn".
      hidden: width of the cell.
      embedding_size, compare_size: as for `models.sentence_pair`.
      feature_dropout: of embedded tokens, of what is compared and of the hidden layer.
      **options: of the encoder and its cell.
    """
    return models.sentence_pair(
        _encoder(encoder, hidden, options), **task.sizes, embedding_size=embedding_size,
        compare_size=compare_size, dropout=feature_dropout,
    )  # fmt: skip


def transformer(
    task: Task, *, width: int = 128, heads: int = 4, layers: int = 2,
    block: Literal["feed_forward", "recursive"] = "feed_forward", hidden: int = 512,
    aggregate: Literal["linear", "recursive"] = "linear", depth: int = 2,
    recursion: Literal["dynamic", "scalar"] | float = "dynamic", squash: bool = False,
    dropout: float = 0.1, smoothing: float = 0.0,
) -> models.Transformer:  # fmt: skip
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
        **task.sizes, width=width, heads=heads, layers=layers, block=blocks[block],
        aggregate=blocks[aggregate], dropout=dropout, smoothing=smoothing,
    )  # fmt: skip


# Every model by name, `name -> factory(task, **options)`: what configurations choose from.
MODELS: dict[str, Callable[..., models.Model]] = {
    "classifier": classifier,
    "frames": frames,
    "graph": graph,
    "hopfield": hopfield,
    "hyper_optimiser": hyper_optimiser,
    "language_model": language_model,
    "logistic_regression": logistic_regression,
    "sentence_pair": sentence_pair,
    "seq2seq": seq2seq,
    "tagger": tagger,
    "transformer": transformer,
    "word_tagger": word_tagger,
}
# Which tasks they fit.
KINDS = {
    "classifier": "sequences",
    "frames": "frames",
    "graph": "graph",
    "hopfield": "memory",
    "hyper_optimiser": "trainings",
    "language_model": "language",
    "logistic_regression": "graph",
    "sentence_pair": "sentence_pairs",
    "seq2seq": "pairs",
    "tagger": "tagging",
    "transformer": "pairs",
    "word_tagger": "words",
}


def build(task: dict[str, Any], model: dict[str, Any]) -> tuple[Task, models.Model]:
    """The task and the model of two checked tables."""
    task, model = dict(task), dict(model)
    name, made = model.pop("name"), TASKS[task.pop("name")](**task)
    if KINDS[name] != made.kind:
        fitting = [key for key, kind in KINDS.items() if kind == made.kind]
        raise ValueError(
            f"model {name!r} does not fit this task, which is {made.kind!r}: choose from {fitting}"
        )
    return made, MODELS[name](made, **model)
