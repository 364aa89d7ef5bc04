"""The training loop: one run in one folder, from where the folder is to the end."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from rich.console import Console

from implicit_rnn.training import files, processes
from implicit_rnn.training import folder as folders
from implicit_rnn.training.ahead import batches_ahead
from implicit_rnn.training.checkpoint import CheckpointError, Checkpoints
from implicit_rnn.training.claim import Claim, claimed
from implicit_rnn.training.dealing import where
from implicit_rnn.training.diagnosis import diagnosis
from implicit_rnn.training.hooks import NO_HOOKS, Hooks
from implicit_rnn.training.interruption import Interruption, interruption
from implicit_rnn.training.optimiser import OptimiserSettings
from implicit_rnn.training.parallel import Layout, ParallelSettings
from implicit_rnn.training.profile import traced
from implicit_rnn.training.progress import Display, summary
from implicit_rnn.training.protocols import Model, Task, require_splits
from implicit_rnn.training.recipe import Recipe
from implicit_rnn.training.result import result
from implicit_rnn.training.settings import SettingsError, TrainingSettings
from implicit_rnn.training.step import Trainer, trainer
from implicit_rnn.training.tables import settings_tables
from implicit_rnn.training.totals import numbers, ratios
from implicit_rnn.training.watch import watching


class TrainingError(RuntimeError):
    """A run that cannot go on: why, and where its last good state is."""


def train(
    task: Task,
    model: Model,
    *,
    folder: Path,
    recipe: Recipe | None = None,
    optimiser: OptimiserSettings | optax.GradientTransformation | None = None,
    settings: TrainingSettings | None = None,
    parallel: ParallelSettings | Layout | None = None,
    resume: bool = False,
    configuration: Mapping[str, Any] | None = None,
    on_log: Callable[[dict[str, Any]], None] | None = None,
    on_evaluate: Callable[[dict[str, Any]], None] | None = None,
    on_checkpoint: Callable[[Path], None] | None = None,
    profile_trace: int = 0,
    command: str = "",
    name: str = "",
    console: Console | None = None,
) -> dict[str, Any]:
    """Trains a model in a folder; returns what `result.json` says.

    The state with the best metric on the validation set is the one that is tested. A run that was
    killed goes on with `resume` as if nothing had happened.

    Args:
      task: splits of batches, and a metric: see `training/protocols.py`.
      model: parameters, and a loss of a batch.
      folder: where `config.toml`, `run.json`, `metrics.jsonl`, `checkpoints/` and `result.json` go.
      recipe: how implicit layers are solved and kept solvable.
      optimiser: settings, or any optimiser of optax.
      settings: how long to train, how often to look, what to keep.
      parallel: over which devices; settings, or a layout on a mesh of your own; by default all
        that the batch can be dealt over. A run goes on with any number of them.
      resume: go on from the last good checkpoint, if there is one. Without it a folder in which
        something has been trained is refused.
      configuration: nested tables that the folder keeps; one that was trained with another is
        refused. By default the settings.
      on_log, on_evaluate, on_checkpoint: see `Hooks`.
      profile_trace: so many updates are traced for a profiler, into `profile/` of the folder.
      command: recorded with the result.
      name: shown beside the progress bar.
      console: where to print.
    """
    require_splits(task)
    parts = trainer(
        task, model, recipe=recipe, optimiser=optimiser, settings=settings, parallel=parallel
    )
    if configuration is None:
        configuration = settings_tables(recipe=recipe, optimiser=optimiser, training=settings)
    with traced(parts, Path(folder) / "profile", profile_trace) as parts:
        return run(
            parts,
            Path(folder),
            configuration=configuration,
            resume=resume,
            hooks=Hooks(watching(model, recipe, on_log), on_evaluate, on_checkpoint),
            command=command,
            name=name,
            console=console,
        )


def run(
    parts: Trainer,
    folder: Path,
    *,
    configuration: Mapping[str, Any],
    resume: bool = False,
    hooks: Hooks = NO_HOOKS,
    command: str = "",
    name: str = "",
    console: Console | None = None,
) -> dict[str, Any]:
    """`train` for compiled parts that are there already."""
    console = console or Console(highlight=False, quiet=not processes.first())
    with (
        claimed(folder, configuration, getattr(parts.task, "keep", {}), resume) as claim,
        Display(name, parts.settings.updates, console) as display,
    ):
        for note in getattr(parts.task, "notes", ()):
            display.say(note)
        if jax.device_count() > 1:
            display.say(where(parts.layout and parts.layout.mesh))
        return _Run(parts, folder, claim, hooks, command, display).go()


class _Progress(NamedTuple):
    """Where a run is in its data, and what it has achieved."""

    epoch: int = 0
    position: int = 0
    seconds: float = 0.0
    best: float | None = None
    waited: int = 0
    unsettled: int = 0  # updates in a row without a solve that converged
    due: bool = False  # an evaluation of this update, which a signal has ended


class _Run:
    """One run from where its folder is to its end."""

    def __init__(
        self,
        parts: Trainer,
        folder: Path,
        claim: Claim,
        hooks: Hooks,
        command: str,
        display: Display,
    ) -> None:
        self.parts, self.folder, self.claim = parts, folder, claim
        self.hooks, self.display = hooks, display
        self.settings, self.split = parts.settings, parts.task.splits["train"]
        self.began = self.since = time.perf_counter()
        self.checkpoints = Checkpoints(folder / "checkpoints", self.settings.keep)
        self.records = folders.Records(folder / "metrics.jsonl")
        try:
            self.state = jax.block_until_ready(parts.init())
        except ValueError as error:
            raise SettingsError(str(error)) from error
        self.progress, lines = _Progress(), None
        found = self.checkpoints.restore_last(self.state, display.say)
        if found is not None:
            self.state, record = found
            if record["configuration"] != claim.digest:
                raise folders.FolderError(
                    f"checkpoint {record['update']:06d} in {self.checkpoints.folder} is that of "
                    "another run: take it away, or choose another folder (--output)"
                )
            self.progress, lines = _Progress(**record["progress"]), record["lines"]
            display.say(f"{folder}: going on from update {record['update']}")
        self.update = int(self.state.update)
        self.past = self.progress.seconds  # of earlier sessions
        self.environment = folders.environment(command)
        if processes.first():
            self.records.rewind(self.update, lines, display.say)
            self.environment = folders.begun(folder / "run.json", command, display.say)

    def go(self) -> dict[str, Any]:
        """Trains to the end; what the disk refuses is an error that names the last checkpoint."""
        try:
            return self.to_the_end()
        except (OSError, CheckpointError) as error:
            there = self.checkpoints.updates()
            last = f"{there[-1]:06d} in {self.checkpoints.folder}" if there else "none yet"
            raise TrainingError(
                f"{files.in_words(error)}; the last good checkpoint is {last}: make room or mend "
                "this, then go on with --resume"
            ) from error

    def to_the_end(self) -> dict[str, Any]:
        settings, parts = self.settings, self.parts
        epoch, index = self.progress.epoch, self.progress.position
        plan, trouble, asked = self.plan(epoch), "", False
        load = functools.partial(parts.load, self.split)
        with interruption() as interrupted, batches_ahead(load) as ahead:
            if self.progress.due and (found := self.evaluate(interrupted)):
                self.save(found)
            while self.update < settings.updates and not (
                trouble or asked or self.progress.due or self.exhausted
            ):
                if index == len(plan):
                    epoch, index, plan = epoch + 1, 0, self.plan(epoch + 1)
                if index == 0:
                    self.state = parts.begin(self.state)
                end = min(index + settings.accumulate, len(plan))
                batches = tuple(ahead.take(plan, number) for number in range(index, end))
                numbers = self.split.numbers(plan[index]) if self.state.memory is not None else None
                given = batches if settings.accumulate > 1 else batches[0]
                self.state = parts.step(self.state, given, numbers)
                self.update, index = self.update + 1, end
                last = self.update == settings.updates
                self.display.advance(self.update)
                if self.update % settings.log_every == 0 or last:
                    self.log(epoch)
                    if self.hopeless(last):
                        trouble = diagnosis(parts, self.state, batches[-1], self.progress.unsettled)
                self.progress = self.progress._replace(
                    epoch=epoch, position=index, seconds=self.seconds
                )
                looked_at = self.update % settings.evaluate_every == 0 or last or trouble
                record = self.evaluate(interrupted) if looked_at else {}
                asked = interrupted.reached()
                if last or trouble or asked or self.due(bool(record)):
                    self.save(record)
                else:
                    self.settle()
            self.settle(wait=True)
            if not trouble and (asked or interrupted.at_once()):
                interrupted.end(self.update, self.display.say)
        if trouble:
            raise TrainingError(
                f"{trouble}\n  the last good state is in {self.checkpoints.folder} "
                f"({self.update:06d})"
            )
        if self.update < settings.updates:
            self.display.say(f"stopped early: no better for {self.progress.waited} evaluations")
        return self.finish()

    @property
    def seconds(self) -> float:
        """Of training, evaluations and compilation included, over all sessions of the run."""
        return self.past + time.perf_counter() - self.began

    @property
    def exhausted(self) -> bool:
        return 0 < self.settings.patience <= self.progress.waited

    def due(self, evaluated: bool) -> bool:
        """Whether this update deserves a checkpoint."""
        every = self.settings.checkpoint_every
        good = evaluated and (not every or self.progress.waited == 0)
        return good or self.exhausted or (every > 0 and self.update % every == 0)

    def hopeless(self, last: bool) -> bool:
        """Whether updates are skipped, or solves fail, one after the other: too many, or all."""
        skipped, unsettled = int(self.state.optimiser.notfinite_count), self.progress.unsettled
        most = self.settings.most_skipped
        return max(skipped, unsettled) >= most or (last and unsettled >= self.update)

    def plan(self, epoch: int) -> Sequence[Any]:
        rng = np.random.default_rng((self.settings.seed, epoch))
        return self.split.plan(self.settings.batch, self.settings.buckets, rng)

    def log(self, epoch: int) -> None:
        """A line about the updates since the last one."""
        totals = numbers(self.state.totals)
        row = {"update": self.update, "epoch": epoch} | ratios(totals)
        failed = totals.get("solves", 0) > 0 and not row["converged"]
        counts = failed and getattr(self.parts.model, "settles", True)
        window = (self.update - 1) % self.settings.log_every + 1
        self.progress = self.progress._replace(
            unsettled=self.progress.unsettled + window if counts else 0
        )
        rate = self.parts.rate(self.state)
        row |= {} if rate is None else {"learning_rate": rate}
        row |= {"skipped": int(self.state.optimiser.total_notfinite)}
        speed = totals["count"] / (time.perf_counter() - self.since)
        self.report(row | {"tokens_per_second": speed, "seconds": self.seconds}, self.hooks.on_log)
        self.state = self.state._replace(totals=jax.tree.map(jnp.zeros_like, self.state.totals))
        self.since = time.perf_counter()

    def evaluate(self, interrupted: Interruption) -> dict[str, Any]:
        """A line about the validation set; what a checkpoint says of it. Nothing, if ended."""
        ended, valid = interrupted.at_once, self.parts.task.splits["valid"]
        found = self.parts.evaluate(self.state, valid, ended)
        self.progress = self.progress._replace(due=not found and ended())
        if self.progress.due:
            return {}
        row = {f"valid_{key}": value for key, value in found.items()}
        self.report({"update": self.update, "seconds": self.seconds} | row, self.hooks.on_evaluate)
        score, best = found[self.parts.task.metric], self.progress.best
        better = math.isfinite(score) and (best is None or score < best)
        self.progress = self.progress._replace(
            best=score if better else best, waited=0 if better else self.progress.waited + 1
        )
        self.state = self.parts.waited(self.state, self.progress.waited)
        if not self.display.console.is_terminal:
            skipped = int(self.state.optimiser.total_notfinite)
            shown = summary({**found, "skipped": skipped})
            self.display.say(f"{self.update:6d}/{self.settings.updates}  valid {shown}")
        self.since = time.perf_counter()
        return {"score": score, "metrics": found}

    def save(self, record: dict[str, Any]) -> None:
        record = record | {"progress": self.progress._asdict(), "lines": self.records.sum}
        kept = getattr(self.parts.task, "keep", {}).items()
        record["configuration"] = self.claim.digest
        record["kept"] = {name: files.digest(files.plain(content)) for name, content in kept}
        self.claim.check()
        self.settle(wait=True)
        self.checkpoints.save(self.update, self.state, record)
        self.since = time.perf_counter()

    def settle(self, wait: bool = False) -> None:
        """Seals a checkpoint that has been written meanwhile."""
        path = self.checkpoints.settle(wait)
        if path and self.hooks.on_checkpoint and processes.first():
            self.hooks.on_checkpoint(path)

    def report(self, row: dict[str, Any], hook: Callable[[dict[str, Any]], None] | None) -> None:
        self.claim.check()
        if processes.first():
            self.records.append(row)
        self.display.advance(self.update, row)
        if hook and processes.first():
            hook(row)

    def finish(self) -> dict[str, Any]:
        """The best state on the test set, and what the run cost."""
        self.checkpoints.close()
        found = self.checkpoints.restore_best(self.state, self.display.say, self.progress.best)
        state, record = found if found is not None else (self.state, {})
        told = {
            **self.environment,
            "seconds": self.seconds,
            "updates": self.update,
            "skipped": int(self.state.optimiser.total_notfinite),
            "config": self.claim.configuration,
            "lines": self.records.sum,
        }
        content = result(self.parts, state, record, self.records, told)
        self.claim.check()
        if processes.first():
            files.write_sealed(self.folder / "result.json", content)
        return content
