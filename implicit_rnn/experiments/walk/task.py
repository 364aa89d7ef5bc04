"""The biased random walk: when does the walk get a drift? (Section 3.1 of the 2017 paper.)"""

from __future__ import annotations

from typing import Literal

from implicit_rnn.experiments.task import Task
from implicit_rnn.experiments.walks import biased_walk
from implicit_rnn.training.sources import evaluated_alike, labelled

__all__ = ["biased_walk", "biased_walk_task"]


def biased_walk_task(
    *,
    seed: int = 0,
    train: int = 50_000,
    valid: int = 2_500,
    test: int = 5_000,
    bias: float = 0.5,
    dimension: int = 8,
    min_length: int = 1,
    max_length: int = 40,
    direction: Literal["normal", "unit"] = "normal",
    inputs: Literal["both", "positions", "increments"] = "both",
) -> Task:
    """At which steps a random walk has a drift (Table 1 of the 2017 paper).

    Args:
      seed: of all three sets, which are drawn apart.
      train, valid, test: how many walks; the defaults are the paper's.
      bias, dimension, min_length, max_length, direction, inputs: as for `biased_walk`.
    """
    splits = {}
    for number, (name, count) in enumerate({"train": train, "valid": valid, "test": test}.items()):
        splits[name] = biased_walk(
            3 * seed + number,
            count,
            bias=bias,
            dimension=dimension,
            min_length=min_length,
            max_length=max_length,
            direction=direction,
            inputs=inputs,
        )
    return Task(
        "tagging",
        {"input_size": splits["train"].inputs.shape[-1], "labels": 2},
        evaluated_alike({name: labelled(examples) for name, examples in splits.items()}),
        "error",
        {"examples": splits},
    )
