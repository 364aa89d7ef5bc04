"""The training loop: updates, evaluations, checkpoints, and a way back after a kill."""

from __future__ import annotations

import contextlib
import math
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

import solvers
from implicit_rnn.experiments.config import Config, ConfigError, dump, read
from implicit_rnn.models.base import Outcome
from implicit_rnn.training import folder as folders
from implicit_rnn.training.checkpoint import Checkpoints
from implicit_rnn.training.progress import Display, summary
from implicit_rnn.training.step import State, Trainer, chosen_state, ratios, trainer


class TrainingError(RuntimeError):
    """A run that cannot go on: why, and where its last good state is."""


def run(
    config: Config,
    folder: Path,
    *,
    resume: bool = False,
    command: str = "",
    name: str = "",
    console: Console | None = None,
) -> dict[str, Any]:
    """Trains as configured, in a folder; returns what `result.json` says.

    Args:
      config: what to do.
      folder: where `config.toml`, `run.json`, `metrics.jsonl`, `checkpoints/` and `result.json` go.
      resume: go on from the last good checkpoint, if there is one. Without it a folder in which
        something has been trained is refused.
      command: recorded with the result.
      name: shown beside the progress bar.
      console: where to print.
    """
    return run_trainer(
        trainer(config), config, folder, resume=resume, command=command, name=name, console=console
    )


def run_trainer(
    parts: Trainer,
    config: Config,
    folder: Path,
    *,
    resume: bool = False,
    command: str = "",
    name: str = "",
    console: Console | None = None,
) -> dict[str, Any]:
    """`run` for a trainer that is there already (`trainer_of`)."""
    console = console or Console(highlight=False)
    with folders.locked(folder):
        if not resume and (folder / "metrics.jsonl").exists():
            raise folders.FolderError(
                f"{folder} holds a run already: add --resume to go on with it, "
                "or choose another --output"
            )
        same_config(config, folder)
        for file, content in parts.task.details.get("keep", {}).items():
            folders.write_json(folder / file, content)
        with Display(name, config.training.updates, console) as display:
            for note in parts.task.details.get("notes", ()):
                display.say(note)
            return _Run(parts, config, folder, command, display).go()


def restore(
    config: Config, folder: Path, average: int = 0
) -> tuple[Trainer, State, dict[str, Any]]:
    """The trainer of a run, and the state that `chosen_state` chooses, with the record of it."""
    parts, kept = trainer(config), Checkpoints(folder / "checkpoints")
    return parts, *chosen_state(kept, jax.eval_shape(parts.init), print, average)


def same_config(config: Config, folder: Path) -> None:
    """Refuses a configuration other than what the folder was trained with; writes it if it may."""
    path = folder / "config.toml"
    trained = (folder / "checkpoints").exists() or (folder / "result.json").exists()
    if trained and path.exists() and read(path) != config:
        old, new = path.read_text().splitlines(), dump(config.table()).splitlines()
        changed = sorted(set(new) - set(old)) or sorted(set(old) - set(new))
        raise folders.FolderError(
            f"{folder} was begun with another configuration ({'; '.join(changed[:3])}): "
            "choose another --output"
        )
    folders.write_text(path, dump(config.table()))


class _Progress(NamedTuple):
    """Where a run is in its data, and what it has achieved."""

    epoch: int = 0
    position: int = 0
    seconds: float = 0.0
    best: float | None = None
    waited: int = 0


class _Run:
    """One run from where its folder is to its end."""

    def __init__(
        self, parts: Trainer, config: Config, folder: Path, command: str, display: Display
    ) -> None:
        self.parts, self.config, self.folder, self.display = parts, config, folder, display
        self.settings, self.source = config.training, parts.task.splits["train"]
        self.began = self.since = time.perf_counter()
        self.checkpoints = Checkpoints(folder / "checkpoints", self.settings.keep)
        self.records = folders.Records(folder / "metrics.jsonl")
        try:
            self.state = parts.init()
        except ValueError as error:
            raise ConfigError(str(error)) from error
        self.progress = _Progress()
        found = self.checkpoints.restore_last(self.state, display.say)
        if found is not None:
            self.state, record = found
            self.progress = _Progress(**record["progress"])
            display.say(f"{folder}: going on from update {record['update']}")
        self.update = int(self.state.update)
        self.records.rewind(self.update)
        self.past = self.progress.seconds  # of earlier sessions
        self.environment = folders.begun(folder / "run.json", command)
        self.events = _event_writer(folder, self.update) if self.settings.tensorboard else None

    def go(self) -> dict[str, Any]:
        settings, parts = self.settings, self.parts
        epoch, index = self.progress.epoch, self.progress.position
        plan, trouble = self.plan(epoch), ""
        with _interruption() as interrupted:
            while self.update < settings.updates and not trouble and not self.exhausted:
                if index == len(plan):
                    epoch, index, plan = epoch + 1, 0, self.plan(epoch + 1)
                if index == 0 and parts.model.carry:
                    fresh = parts.model.carry(self.state.params, settings.batch)
                    self.state = self.state._replace(carry=fresh)
                batch, numbers = self.source.batch(plan[index]), None
                if self.state.memory is not None and self.source.numbers is not None:
                    numbers = self.source.numbers(plan[index])
                self.state = parts.step(self.state, batch, numbers)
                self.update, index = self.update + 1, index + 1
                last = self.update == settings.updates
                self.display.advance(self.update)
                if self.update % settings.log_every == 0 or last:
                    self.log(epoch)
                    if int(self.state.optimiser.notfinite_count) >= settings.most_skipped:
                        trouble = _diagnosis(parts, self.state, batch, self.config)
                self.progress = self.progress._replace(
                    epoch=epoch, position=index, seconds=self.seconds
                )
                if self.update % settings.evaluate_every == 0 or last or trouble:
                    self.evaluate()
                elif interrupted.is_set():
                    self.save({})
                if interrupted.is_set() and not last:
                    self.display.say(f"interrupted at update {self.update}; --resume goes on")
                    raise KeyboardInterrupt
        if self.events:
            self.events.close()
        if trouble:
            raise TrainingError(
                f"{trouble}\nthe last good state is in {self.checkpoints.folder} "
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

    def plan(self, epoch: int) -> list:
        rng = np.random.default_rng((self.settings.seed, epoch))
        return self.source.plan(self.settings.batch, self.settings.buckets, rng)

    def log(self, epoch: int) -> None:
        """A line about the updates since the last one."""
        totals = {key: float(value) for key, value in self.state.totals.items()}
        row = {"update": self.update, "epoch": epoch} | ratios(totals)
        row |= {"skipped": int(self.state.optimiser.total_notfinite)}
        speed = totals["count"] / (time.perf_counter() - self.since)
        self.report(row | {"tokens_per_second": speed, "seconds": self.seconds})
        self.state = self.state._replace(totals=jax.tree.map(jnp.zeros_like, self.state.totals))
        self.since = time.perf_counter()

    def evaluate(self) -> None:
        """A line about the validation set, and a checkpoint."""
        found = self.parts.evaluate(self.state, self.parts.task.splits["valid"])
        row = {f"valid_{key}": value for key, value in found.items()}
        self.report({"update": self.update, "seconds": self.seconds} | row)
        score, best = found[self.parts.task.metric], self.progress.best
        better = math.isfinite(score) and (best is None or score < best)
        self.progress = self.progress._replace(
            best=score if better else best, waited=0 if better else self.progress.waited + 1
        )
        self.save({"score": score, "metrics": found})
        if not self.display.console.is_terminal:
            skipped = int(self.state.optimiser.total_notfinite)
            shown = summary({**found, "skipped": skipped})
            self.display.say(f"{self.update:6d}/{self.settings.updates}  valid {shown}")
        self.since = time.perf_counter()

    def save(self, record: dict[str, Any]) -> None:
        record = {**record, "progress": self.progress._asdict()}
        self.checkpoints.save(self.update, self.state, record)

    def report(self, row: dict[str, Any]) -> None:
        self.records.append(row)
        self.display.advance(self.update, row)
        for key, value in row.items():
            if self.events and key != "update" and isinstance(value, int | float):
                self.events.add_scalar(key, value, self.update)

    def finish(self) -> dict[str, Any]:
        """The best state on the test set, and what the run cost."""
        skipped = int(self.state.optimiser.total_notfinite)
        found = self.checkpoints.restore_best(self.state, self.display.say)
        state, record = found if found is not None else (self.state, {})
        lines = [row for row in self.records.read() if "loss" in row]
        rows = [row for row in lines if "forward_steps" in row]
        further = {
            name: self.parts.evaluate(state, source)
            for name, source in self.parts.task.splits.items()
            if name not in ("train", "valid", "test")
        }
        content = self.environment | {
            "seconds": self.seconds,
            "updates": self.update,
            "best_update": record.get("update"),
            "parameters": sum(leaf.size for leaf in jax.tree.leaves(state.params)),
            "skipped": skipped,
            "test": self.parts.evaluate(state, self.parts.task.splits["test"]),
            "valid": record.get("metrics"),
            "config": self.config.table(),
        }
        content |= {"parts": further} if further else {}
        if self.parts.task.verdict:
            content["verdict"] = self.parts.task.verdict(lines)
        if rows:
            tenth = max(len(rows) // 10, 1)
            for key in ("forward_steps", "backward_steps"):
                ends = (rows[:tenth], rows[-tenth:])
                content[key] = [sum(row[key] for row in end) / len(end) for end in ends]
            content["converged"] = sum(row["converged"] for row in rows) / len(rows)
        folders.write_json(self.folder / "result.json", content)
        return content


@contextlib.contextmanager
def _interruption() -> Iterator[threading.Event]:
    """Set by Ctrl-C, so that a run ends between two updates; a second one ends it at once."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def note(number: int, frame: Any) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    before = signal.signal(signal.SIGINT, note)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)


def _diagnosis(parts: Trainer, state: State, batch: Any, config: Config) -> str:
    """Why updates are not finite: the first of inputs, loss and gradients that is not."""
    lines = [f"{int(state.optimiser.notfinite_count)} updates in a row were not finite"]
    for path, leaf in jax.tree_util.tree_leaves_with_path(batch):
        if not np.all(np.isfinite(leaf)):
            lines.append(
                f"the batch's {jax.tree_util.keystr(path)} is not finite: look at the data"
            )

    def objective(params: Any) -> tuple[jax.Array, Outcome]:
        return parts.model.loss(params, batch, solve=config.solver.settings(), carry=state.carry)

    (loss, outcome), gradient = jax.value_and_grad(objective, has_aux=True)(parts.usable(state))
    lines.append(f"the loss of the last batch is {float(loss):.4g}")
    if outcome.info is not None:
        for status in np.unique(np.asarray(outcome.info.status)):
            share = float(np.mean(np.asarray(outcome.info.status) == status))
            lines.append(f"{share:.0%} of its solves: {solvers.explain(int(status))}")
    for path, leaf in jax.tree_util.tree_leaves_with_path(gradient):
        if not np.all(np.isfinite(leaf)):
            lines.append(f"the gradient of {jax.tree_util.keystr(path)} is not finite")
            break
    lines.append("lower optimiser.rate or optimiser.clip, or solve more exactly (solver.rtol)")
    return "\n  ".join(lines)


def _event_writer(folder: Path, update: int) -> Any:
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        raise TrainingError(
            "training.tensorboard needs the package tensorboardX: pip install tensorboardX"
        ) from None
    return SummaryWriter(str(folder / "events"), purge_step=update)
