"""A trained model as it is to be used: the state that a run's checkpoints give."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from implicit_rnn.training.checkpoint import CheckpointError, Checkpoints
from implicit_rnn.training.files import digest
from implicit_rnn.training.optimiser import OptimiserSettings
from implicit_rnn.training.parallel import ONE_DEVICE
from implicit_rnn.training.protocols import Model, Task
from implicit_rnn.training.recipe import Recipe
from implicit_rnn.training.settings import SettingsError, TrainingSettings
from implicit_rnn.training.step import State, Trainer, trainer


class Trained(NamedTuple):
    """A model with what it has learnt.

    Attributes:
      trainer: what it was trained by.
      state: the one that was chosen.
      record: what its checkpoint says of it: `update`, `score`, `metrics`.
    """

    trainer: Trainer
    state: State
    record: dict[str, Any]

    @property
    def params(self) -> Any:
        """The parameters, averaged and within bounds where training has them so."""
        return self.trainer.usable(self.state)

    def evaluate(self, split: str = "test") -> dict[str, float]:
        """Metrics of one of the task's splits."""
        splits = self.trainer.task.splits
        if split not in splits:
            raise SettingsError(f"no split {split!r}; there are {', '.join(splits)}")
        return self.trainer.evaluate(self.state, splits[split])


def restore(
    task: Task,
    model: Model,
    *,
    folder: Path,
    recipe: Recipe | None = None,
    optimiser: OptimiserSettings | optax.GradientTransformation | None = None,
    settings: TrainingSettings | None = None,
    average: int = 0,
) -> Trained:
    """The model of a run, from its folder.

    Args:
      task, model, recipe, optimiser, settings: as in `train`.
      folder: of the run.
      average: the mean of so many checkpoints, the last ones; 0: the best, or the last without a
        best.
    """
    parts = trainer(
        task, model, recipe=recipe, optimiser=optimiser, settings=settings, parallel=ONE_DEVICE
    )
    kept, like = Checkpoints(Path(folder) / "checkpoints"), jax.eval_shape(parts.init)
    say = partial(print, file=sys.stderr)
    state, record = chosen_state(kept, like, say, average)
    require_same(Path(folder), record)
    return Trained(parts, state, record)


def require_same(folder: Path, record: dict[str, Any]) -> None:
    """Refuses files beside a checkpoint that are not those that it was trained with."""
    path = folder / "config.toml"
    own = {path.name: record["configuration"], **record["kept"]}
    for name, expected in own.items():
        if not (folder / name).exists():
            continue
        text = (folder / name).read_text("utf-8", "replace")
        try:
            found = digest(text if name == path.name else json.loads(text))
        except ValueError:
            found = ""
        if found != expected:
            raise CheckpointError(
                f"{folder}: {name} is not the one that checkpoint {record['update']:06d} was "
                "trained with; a copy, or --resume, mends it"
            )


def chosen_state(
    kept: Checkpoints, like: Any, say: Callable[[str], None], average: int = 0
) -> tuple[State, dict[str, Any]]:
    """The state that a trained model is used with, and its record.

    Args:
      kept: checkpoints of the run.
      like: a state of its shapes.
      say: prints what is wrong with checkpoints that are passed over.
      average: as in `restore`.
    """
    if average:
        return averaged(kept.restore_several(average, like)), kept.record(kept.updates()[-1])
    found = kept.restore_best(like, say)
    if found is None:
        raise CheckpointError(f"{kept.folder.parent} has no checkpoint: train it first")
    return found


def averaged(states: Sequence[State]) -> State:
    """The last of several states, with the means of their parameters (checkpoint averaging)."""

    def mean(*leaves: jax.Array) -> jax.Array:
        return jnp.mean(jnp.stack(leaves), axis=0)

    params, average = (
        jax.tree.map(mean, *(getattr(state, name) for state in states))
        for name in ("params", "average")
    )
    return states[-1]._replace(params=params, average=average)
