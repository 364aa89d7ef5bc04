"""From a configuration to a task and a model that fit each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from implicit_rnn import models
from implicit_rnn.cells import CELLS
from implicit_rnn.tasks import TASKS, Task


def _encoder(encoder: str, hidden: int, options: dict[str, Any]) -> models.Encoder:
    return models.encoder(encoder, hidden, **options)


def tagger(
    task: Task, *, encoder: str = "igru", hidden: int = 64, feature_dropout: float = 0.0,
    **options: Any,
) -> models.Tagger:  # fmt: skip
    """A label for every step.

    Args:
      encoder: a cell by name, or "bi" and a causal one.
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
    truncate: int | None = None,
) -> models.LanguageModel:  # fmt: skip
    """The next token of a stream.

    Args:
      cell: a causal cell by name.
      hidden: its width.
      layers: how many of it.
      embedding_size, tied, truncate: as for `models.language_model`.
      dropout: between layers, and before the read-out.
    """
    if cell not in CELLS:
        raise ValueError(f"unknown cell {cell!r}; choose from {sorted(CELLS)}")
    return models.language_model(
        [CELLS[cell](hidden)] * layers, task.sizes["vocabulary"], embedding_size=embedding_size,
        tied=tied, dropout=dropout, truncate=truncate,
    )  # fmt: skip


def word_tagger(
    task: Task, *, encoder: str = "igru", hidden: int | None = None, word_size: int = 200,
    affix_size: int = 12, feature_dropout: float = 0.0, word_dropout: float = 0.0, **options: Any,
) -> models.Tagger:  # fmt: skip
    """A tag for every word.

    Args:
      encoder: a cell by name, or "bi" and a causal one.
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


# Every model by name, `name -> factory(task, **options)`: what configurations choose from.
MODELS: dict[str, Callable[..., models.Model]] = {
    "language_model": language_model,
    "tagger": tagger,
    "word_tagger": word_tagger,
}
# Which tasks they fit.
KINDS = {"language_model": "language", "tagger": "tagging", "word_tagger": "words"}


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
