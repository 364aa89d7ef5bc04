"""The figures of graph networks: how their training loss falls, and how their states settle."""

from __future__ import annotations

import sys
from pathlib import Path

import jax
import numpy as np

from implicit_rnn.experiments import plots
from implicit_rnn.experiments.config import Config
from implicit_rnn.experiments.graph.model import graph
from implicit_rnn.experiments.registry import MODELS
from implicit_rnn.experiments.runs import configuration, mean_curves, repetitions
from implicit_rnn.experiments.train import restored
from implicit_rnn.training import CheckpointError, State, Trainer

NAME = next(name for name, made in MODELS.items() if made is graph)
_TOLERANCE = 1e-6  # tighter than a training's: to be seen settling


def draw(output: Path, folders: list[Path]) -> list[Path]:
    """Draws what the graph networks among these runs have to show, as figure 3 of the 2018 paper.

    Runs that differ in nothing but seeds share a curve: the mean of their losses, and the states of
    the first of them.
    """
    groups, moved = {}, {}
    for name, members in repetitions(folders).items():
        config = configuration(members[0])
        if config.model["name"] != NAME:
            continue
        try:
            trainer, state, _ = restored(config, members[0])
        except CheckpointError as error:
            print(f"left out: {error}", file=sys.stderr)
            continue
        changes = settling(trainer, state, config)
        groups[name], moved[name] = members, (np.arange(len(changes)), changes)
    if not moved:
        return []
    return [
        plots.curves(
            mean_curves(groups, "loss"),
            output / "plots" / "training_loss.png",
            "Loss of the labels that are learnt from",
            ("updates", "nats a label"),
        ),
        plots.panels(
            {"": moved},
            output / "plots" / "settling.png",
            "How the trained networks settle",
            ("propagation steps", "relative change of all states"),
        ),
    ]


def settling(trainer: Trainer, state: State, config: Config) -> np.ndarray:
    """By how much each propagation step changes the states, relative to them."""
    options = {key: value for key, value in config.model.items() if key != "name"}
    model = graph(trainer.task, **(options | {"tolerance": _TOLERANCE}))
    source = trainer.task.splits["test"]
    batch = source.batch(source.plan(1, 1, None)[0])
    _, settled = jax.jit(model.scores, static_argnames="trace")(
        trainer.usable(state), batch.inputs[0], batch.edges[0], trace=config.model["steps"] + 1
    )
    changes = np.asarray(settled.info.trace)
    return changes[np.isfinite(changes) & (changes > 0)]
