"""Every task and model that a configuration can name, and which of them fit each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from implicit_rnn import models
from implicit_rnn.experiments.graph.model import graph, logistic_regression
from implicit_rnn.experiments.graph.task import citation_task
from implicit_rnn.experiments.hopfield.model import hopfield
from implicit_rnn.experiments.hopfield.task import associative_memory_task
from implicit_rnn.experiments.hyper.model import hyper_optimiser
from implicit_rnn.experiments.hyper.task import hyper_task
from implicit_rnn.experiments.ice_cream.task import ice_cream_task
from implicit_rnn.experiments.logic.model import sentence_pair
from implicit_rnn.experiments.logic.task import logical_inference_task
from implicit_rnn.experiments.music.model import frames
from implicit_rnn.experiments.music.task import music_task
from implicit_rnn.experiments.networks import (
    classifier,
    language_model,
    seq2seq,
    tagger,
    transformer,
)
from implicit_rnn.experiments.parsing.task import parsing_task
from implicit_rnn.experiments.passes.task import passes_task
from implicit_rnn.experiments.pixels.task import pixels_task
from implicit_rnn.experiments.shakespeare.task import tiny_shakespeare_task
from implicit_rnn.experiments.sorting.task import sorting_task
from implicit_rnn.experiments.tagging.model import word_tagger
from implicit_rnn.experiments.tagging.task import tagging_task
from implicit_rnn.experiments.task import Task
from implicit_rnn.experiments.translation.task import translation_task
from implicit_rnn.experiments.trees.task import tree_traversal_task
from implicit_rnn.experiments.walk.task import biased_walk_task

# Every task by name, `name -> factory(**options)`: what configurations choose from.
TASKS: dict[str, Callable[..., Task]] = {
    "associative_memory": associative_memory_task,
    "biased_walk": biased_walk_task,
    "citation": citation_task,
    "hyper": hyper_task,
    "ice_cream": ice_cream_task,
    "logical_inference": logical_inference_task,
    "music": music_task,
    "parsing": parsing_task,
    "passes": passes_task,
    "pixels": pixels_task,
    "sorting": sorting_task,
    "tagging": tagging_task,
    "tiny_shakespeare": tiny_shakespeare_task,
    "translation": translation_task,
    "tree_traversal": tree_traversal_task,
}
# Every model by name, `name -> factory(task, **options)`: what configurations choose from.
MODELS: dict[str, Callable[..., models.Network]] = {
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


class Tasks:
    """Tasks by their tables; the last one is kept, for runs that differ in models alone."""

    def __init__(self) -> None:
        self._last: tuple[dict[str, Any], Task] | None = None

    def __call__(self, table: dict[str, Any]) -> Task:
        """The task of a checked table."""
        if self._last is None or self._last[0] != table:
            self._last = None  # before the next one takes memory
            options = dict(table)
            self._last = table, TASKS[options.pop("name")](**options)
        return self._last[1]


def build(
    task: dict[str, Any], model: dict[str, Any], tasks: Tasks | None = None
) -> tuple[Task, models.Network]:
    """The task and the model of two checked tables.

    Args:
      task, model: the tables.
      tasks: those made so far.
    """
    model, made = dict(model), (tasks or Tasks())(task)
    name = model.pop("name")
    if KINDS[name] != made.kind:
        fitting = [key for key, kind in KINDS.items() if kind == made.kind]
        raise ValueError(
            f"model {name!r} does not fit this task, which is {made.kind!r}: choose from {fitting}"
        )
    return made, MODELS[name](made, **model)
