"""The figures of associative memories: how they are learnt, how they settle, what they recall."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from implicit_rnn.cells.base import Params
from implicit_rnn.experiments import plots
from implicit_rnn.experiments.hopfield.model import hopfield
from implicit_rnn.experiments.registry import MODELS
from implicit_rnn.experiments.runs import configuration, mean_curves, repetitions
from implicit_rnn.experiments.train import restored
from implicit_rnn.models import Hopfield
from implicit_rnn.training import CheckpointError

NAME = next(name for name, made in MODELS.items() if made is hopfield)
_SHOWN = 10  # images in a row


class Recalled(NamedTuple):
    """What a trained memory makes of the test set.

    Attributes:
      images: black and white, `[count, pixels]`.
      differences: `||h_{t+1} - h_t||` of every step up to the first that changes nothing, the mean
        over the images.
    """

    images: np.ndarray
    differences: np.ndarray


def draw(output: Path, folders: list[Path]) -> list[Path]:
    """Draws what the runs among these folders that store images have to show.

    Runs that differ in nothing but seeds share a curve, their mean; what is recalled is by the
    first of them.
    """
    groups, recalled = {}, {}
    for name, members in repetitions(folders).items():
        config = configuration(members[0])
        if config.model["name"] != NAME:
            continue
        try:
            trainer, state, _ = restored(config, members[0])
        except CheckpointError as error:
            print(f"left out: {error}", file=sys.stderr)
            continue
        assert isinstance(trainer.model, Hopfield)
        details, title = trainer.task.details, name
        groups[title], shown = members, details["patterns"]["test"]
        recalled[title] = recall(
            trainer.model, trainer.usable(state), shown.observed, config.model["steps"]
        )
        rows = {"stored": shown.target, "shown": shown.observed}
    if not recalled:
        return []
    rows |= {title: found.images for title, found in recalled.items()}
    curves = {"training: whole images": mean_curves(groups, "loss")}
    evaluated = mean_curves(groups, "valid_loss")
    if any(len(x) > 1 for x, _ in evaluated.values()):  # of one evaluation there is no curve
        curves["validation: part of their ink"] = evaluated
    moved = {
        title: (np.arange(1, len(found.differences) + 1), found.differences)
        for title, found in recalled.items()
    }
    images = {title: row.reshape(-1, *details["shape"])[:_SHOWN] for title, row in rows.items()}
    plotted = output / "plots"
    return [
        plots.panels(
            curves,
            plotted / "memory.png",
            "How far outputs are from the images that are stored",
            ("updates", "mean distance of a pixel"),
        ),
        plots.panels(
            {"": moved},
            plotted / "settling.png",
            "How the trained network settles",
            ("step", "change of the state"),
        ),
        plots.gallery(images, plotted / "recalled.png", "What is recalled from part of the ink"),
    ]


def recall(model: Hopfield, params: Params, observed: np.ndarray, steps: int) -> Recalled:
    """What a memory makes of images in so many steps."""

    @jax.jit
    def run(params: Params, observed: jax.Array) -> tuple[jax.Array, jax.Array]:
        paths = jax.vmap(lambda image: model.trajectory(params, image, steps))(observed)
        moved = jnp.linalg.norm(jnp.diff(paths, axis=1), axis=-1)
        return model.outputs(paths[:, -1]) > 0.5, jnp.mean(moved, axis=0)

    images, differences = jax.device_get(run(params, observed))
    return Recalled(images, differences[: np.count_nonzero(differences)])
