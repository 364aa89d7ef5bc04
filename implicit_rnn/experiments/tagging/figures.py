"""The figures of taggers of words: which tags they take for which."""

from __future__ import annotations

from pathlib import Path

from implicit_rnn.experiments import plots
from implicit_rnn.experiments.config import Config
from implicit_rnn.experiments.tagging.errors import by_distance, errors
from implicit_rnn.experiments.tagging.use import predictions
from implicit_rnn.models import Tagger
from implicit_rnn.training import State, Trainer
from implicit_rnn.training.files import write_json


def mistaken(
    folder: Path, stem: str, model: Tagger, trainer: Trainer, state: State, config: Config
) -> list[Path]:
    """Which tags of the test set are taken for which, and what else tells where errors are."""
    source, size = trainer.task.splits["test"], config.training.evaluate_batch
    settings = config.solver.exact().settings()
    given = [*predictions(model, trainer.usable(state), source, settings, size)]
    found = errors(trainer.task.details["vocabulary"].tags, given)
    far = by_distance(
        [sentence.distances for sentence in trainer.task.details["sentences"]["test"]],
        ((entry[0], *own) for entry, own in zip(source.plan(size, 2, None), given, strict=True)),
    )
    skipped = {key: trainer.task.details[key] for key in ("skipped", "unseen")}
    return [
        write_json(folder / f"{stem}errors.json", found.content() | skipped | {"by distance": far}),
        plots.confusion(
            found.confusion,
            found.tags,
            folder / f"{stem}confusion.png",
            "Which tags are taken for which, in the test set",
        ),
    ]
