"""The range of every number that the table of a task, a model, an encoder or a cell may hold.

Settings of the other tables say theirs beside them (`training.settings` and its neighbours).
"""

from __future__ import annotations

from collections.abc import Sequence

from implicit_rnn.experiments.networks import DECODER
from implicit_rnn.training.ranges import (
    ANY,
    COUNT,
    DROPPED,
    NOT_NEGATIVE,
    POSITIVE,
    SEED,
    SHARE,
    SIZE,
    Range,
)

_BIAS = Range(-1e4, 1e4)  # before a sigmoid: far more than saturates it

# By the option's name, or by `name.option` where that of one task or model is of another kind.
RANGES: dict[str, Range] = {
    "affix_size": SIZE,
    "averaged": COUNT,
    "bias": Range(-1e6, 1e6),
    "capacity": NOT_NEGATIVE,
    "change": SHARE,
    "chunk": COUNT,
    "citation.train": Range(0, 1, least_open=True, most_open=True),
    "citation.valid": Range(0, 1, least_open=True, most_open=True),
    "compare_size": SIZE,
    "components": NOT_NEGATIVE,
    "corruption": SHARE,
    "count": COUNT,
    "coupling": POSITIVE,
    "days": COUNT,
    "decay": NOT_NEGATIVE,
    "decoder_hidden": SIZE,
    "deep_rnn.inputs": NOT_NEGATIVE,
    "delay": COUNT,
    "demand": NOT_NEGATIVE,
    "depth": COUNT,
    "dimension": SIZE,
    "dropout": DROPPED,
    "embedding_size": SIZE,
    "feature_dropout": DROPPED,
    "filter_width": SIZE,
    "forget_bias": _BIAS,
    "gain": POSITIVE,
    "growth": Range(0, 1, least_open=True),
    "heads": SIZE,
    "held_out": COUNT,
    "hidden": SIZE,
    "hopfield.hidden": SIZE._replace(least=0),
    "hyper_optimiser.momentum": Range(0, 1, least_open=True, most_open=True),
    "input_dropout": DROPPED,
    "kernel": COUNT,
    "layers": SIZE,
    "least": COUNT,
    "length": COUNT,
    "lengths": COUNT,
    "levels": COUNT,
    "longest": COUNT,
    "max_length": COUNT,
    "memory": POSITIVE,
    "merges": NOT_NEGATIVE,
    "min_length": COUNT,
    "minibatch": COUNT,
    "most": COUNT,
    "most_words": NOT_NEGATIVE,
    "operators": Range(0, 11),
    "output_bias": _BIAS,
    "outputs": NOT_NEGATIVE,
    "places": COUNT,
    "pool": COUNT,
    "rate": POSITIVE,
    "contractive.rate": Range(0, 1, least_open=True, most_open=True),
    "recall_heads": COUNT,
    "recall_size": SIZE,
    "recursion": SHARE,
    "reorder": NOT_NEGATIVE,
    "repeats": COUNT,
    "scale": POSITIVE,
    "seed": SEED,
    "segment": NOT_NEGATIVE,
    "smoothing": DROPPED,
    "stencil": Range(-1000, 1000),
    "split": _BIAS,
    "step": POSITIVE,
    "steps": COUNT,
    "symbols": COUNT,
    "test": COUNT,
    "threshold": SHARE,
    "time_constant": POSITIVE,
    "tiny_shakespeare.held_out": Range(0, 0.5, least_open=True),
    "tolerance": POSITIVE,
    "graph.tolerance": NOT_NEGATIVE,
    "train": COUNT,
    "transition": NOT_NEGATIVE,
    "tree_traversal.depth": Range(1, 12),
    "truncate": COUNT,
    "truncation": COUNT,
    "update_bias": _BIAS,
    "valid": COUNT,
    "values": COUNT,
    "width": SIZE,
    "window": COUNT,
    "music.window": NOT_NEGATIVE,
    "word_dropout": DROPPED,
    "word_size": SIZE,
}


def range_of(owners: Sequence[str], option: str) -> Range:
    """The range of an option.

    Args:
      owners: what takes it: a task; or a model, its encoder and its cells.
      option: its name; what begins with `decoder_` may be of a decoder's cell, and so may an owner.
    """
    for prefix in ("", DECODER):
        name = option.removeprefix(prefix)
        own = [f"{owner.removeprefix(prefix)}.{name}" for owner in owners]
        for key in [*own, name]:
            if key in RANGES:
                return RANGES[key]
    return ANY
