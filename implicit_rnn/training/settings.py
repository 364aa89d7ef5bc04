"""How long to train, how often to look, what to keep."""

from __future__ import annotations

import dataclasses

from implicit_rnn.training.ranges import COUNT, NOT_NEGATIVE, SEED, Range, check_settings

PRECISIONS = ("bfloat16", "float16", "float32")


class SettingsError(ValueError):
    """Settings that the task, the model or the recipe refuses: which, and why."""


RANGES = {
    "updates": COUNT, "batch": COUNT, "buckets": COUNT, "seed": SEED, "log_every": COUNT,
    "evaluate_every": COUNT, "checkpoint_every": NOT_NEGATIVE, "keep": Range(2),
    "patience": NOT_NEGATIVE, "evaluate_batch": COUNT, "most_skipped": COUNT, "accumulate": COUNT,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class TrainingSettings:
    """The `training` table of a configuration.

    Attributes:
      updates: how many.
      batch: examples a batch.
      accumulate: batches an update, whose gradients are added up as if they were one large batch;
        the last update of an epoch takes those that are left.
      buckets: how many lengths batches are padded to.
      seed: of parameters, order and dropout (a task has a seed of its own).
      log_every: updates between two lines of `metrics.jsonl`.
      evaluate_every: updates between two evaluations on the validation set.
      checkpoint_every: updates between two checkpoints, written while training goes on, beside
        those of the best evaluations; 0: one with every evaluation.
      keep: checkpoints kept beside the best, two at least: one to fall back to.
      patience: evaluations without improvement before training stops; 0: it does not.
      evaluate_batch: examples a batch of an evaluation.
      most_skipped: updates in a row that may be skipped for not being finite, or that may pass
        without a single solve that converges; looked at with every line of `metrics.jsonl`.
      dtype: what losses compute in, `"bfloat16"`, `"float16"` or `"float32"`, while parameters are
        kept as they are; None: as the model does.
    """

    updates: int = 1000
    batch: int = 32
    accumulate: int = 1
    buckets: int = 4
    seed: int = 0
    log_every: int = 50
    evaluate_every: int = 500
    checkpoint_every: int = 0
    keep: int = 2
    patience: int = 0
    evaluate_batch: int = 250
    most_skipped: int = 50
    dtype: str | None = None

    def __post_init__(self) -> None:
        if self.dtype not in (None, *PRECISIONS):
            raise ValueError(f"dtype must be one of {', '.join(PRECISIONS)}, got {self.dtype!r}")
        check_settings(self, RANGES)
