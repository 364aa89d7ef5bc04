"""Where examples come from: generated or loaded, all with one shape."""

from collections.abc import Callable

from implicit_rnn.tasks.associative_memory import Patterns, associative_memory_task
from implicit_rnn.tasks.base import Examples, Source, Task
from implicit_rnn.tasks.biased_walk import biased_walk, biased_walk_task
from implicit_rnn.tasks.block_graph import block_graph
from implicit_rnn.tasks.citation import citation_task, read_citations
from implicit_rnn.tasks.graphs import Graph, GraphBatch, GraphError, checked_graph, graph_task
from implicit_rnn.tasks.hyper import Trainings, hyper_task
from implicit_rnn.tasks.ice_cream import ice_cream, ice_cream_task
from implicit_rnn.tasks.logical_inference import logical_inference_task
from implicit_rnn.tasks.music import Frames, music_task, read_music
from implicit_rnn.tasks.pairs import Pairs, pairs_task
from implicit_rnn.tasks.parsing import parsing_task
from implicit_rnn.tasks.pixels import Pixels, pixels_task
from implicit_rnn.tasks.sorting import sorting_task
from implicit_rnn.tasks.tagging import tagging_task
from implicit_rnn.tasks.text import tiny_shakespeare_task
from implicit_rnn.tasks.translation import translation_task
from implicit_rnn.tasks.tree_traversal import tree_traversal_task

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
    "pixels": pixels_task,
    "sorting": sorting_task,
    "tagging": tagging_task,
    "tiny_shakespeare": tiny_shakespeare_task,
    "translation": translation_task,
    "tree_traversal": tree_traversal_task,
}

__all__ = [
    "TASKS",
    "Examples",
    "Frames",
    "Graph",
    "GraphBatch",
    "GraphError",
    "Pairs",
    "Patterns",
    "Pixels",
    "Source",
    "Task",
    "Trainings",
    "associative_memory_task",
    "biased_walk",
    "biased_walk_task",
    "block_graph",
    "checked_graph",
    "citation_task",
    "graph_task",
    "hyper_task",
    "ice_cream",
    "ice_cream_task",
    "logical_inference_task",
    "music_task",
    "pairs_task",
    "parsing_task",
    "pixels_task",
    "read_citations",
    "read_music",
    "sorting_task",
    "tagging_task",
    "tiny_shakespeare_task",
    "translation_task",
    "tree_traversal_task",
]
