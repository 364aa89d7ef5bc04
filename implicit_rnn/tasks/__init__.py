"""Where examples come from: generated or loaded, all with one shape."""

from collections.abc import Callable

from implicit_rnn.tasks.base import Examples, Source, Task
from implicit_rnn.tasks.biased_walk import biased_walk, biased_walk_task
from implicit_rnn.tasks.ice_cream import ice_cream, ice_cream_task
from implicit_rnn.tasks.logical_inference import logical_inference_task
from implicit_rnn.tasks.pairs import Pairs, pairs_task
from implicit_rnn.tasks.sorting import sorting_task
from implicit_rnn.tasks.tagging import tagging_task
from implicit_rnn.tasks.text import tiny_shakespeare_task
from implicit_rnn.tasks.tree_traversal import tree_traversal_task

# Every task by name, `name -> factory(**options)`: what configurations choose from.
TASKS: dict[str, Callable[..., Task]] = {
    "biased_walk": biased_walk_task,
    "ice_cream": ice_cream_task,
    "logical_inference": logical_inference_task,
    "sorting": sorting_task,
    "tagging": tagging_task,
    "tiny_shakespeare": tiny_shakespeare_task,
    "tree_traversal": tree_traversal_task,
}

__all__ = [
    "TASKS",
    "Examples",
    "Pairs",
    "Source",
    "Task",
    "biased_walk",
    "biased_walk_task",
    "ice_cream",
    "ice_cream_task",
    "logical_inference_task",
    "pairs_task",
    "sorting_task",
    "tagging_task",
    "tiny_shakespeare_task",
    "tree_traversal_task",
]
