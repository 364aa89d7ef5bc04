"""From configurations to trained models: one run, or all runs of an experiment one by one."""

from __future__ import annotations

import contextlib
import fnmatch
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from implicit_rnn.experiments import runs
from implicit_rnn.experiments.config import Config, Experiment
from implicit_rnn.experiments.options import ConfigError
from implicit_rnn.experiments.registry import Tasks, build
from implicit_rnn.experiments.report import printer, tabulate
from implicit_rnn.experiments.runs import MARK
from implicit_rnn.experiments.task import Task
from implicit_rnn.training import Trained, Trainer, files, processes, restore, trainer
from implicit_rnn.training import folder as folders
from implicit_rnn.training import train as train_model
from implicit_rnn.training.protocols import Model
from implicit_rnn.training.writers import TensorBoard


def train(
    experiment: Experiment,
    output: Path,
    *,
    resume: bool = False,
    only: Sequence[str] = (),
    profile_trace: int = 0,
    command: str = "",
    console: Console | None = None,
    tasks: Tasks | None = None,
) -> list[dict[str, Any]]:
    """Trains every run of an experiment in a folder of its own, then prints and writes the table.

    Args:
      experiment: what to run.
      output: where; a single run goes right into it.
      resume: go on: runs that have finished are not run again.
      only: patterns (`bias=0.5-*`); runs whose name fits none are left out.
      profile_trace: as for `training.train`, of every run.
      command: recorded with every result.
      console: where to print.
      tasks: those made so far.

    Returns:
      The rows of the table.
    """
    tasks = tasks or Tasks()
    console = console or (printer() if processes.first() else Console(quiet=True))
    chosen = {
        name: config
        for name, config in experiment.runs.items()
        if not only or any(fnmatch.fnmatchcase(name, pattern) for pattern in only)
    }
    if not chosen:
        there = "there are " + ", ".join(experiment.runs)
        if [*experiment.runs] == [""]:
            there = "this configuration has a single run, without a name: leave out --only"
        raise ConfigError(f"no run fits {list(only)}; {there}")
    if processes.first():
        _begin(experiment, output, resume, console)
    processes.wait("the experiment's folder")
    for number, (name, config) in enumerate(chosen.items()):
        folder = output / name
        if len(chosen) > 1:
            console.rule(f"{name}  ({number + 1} of {len(chosen)})", align="left")
        if _finished(folder, config, console):
            if processes.first():
                folders.keep_configuration(folder, config.table())
            console.print(f"{folder} is finished", highlight=False)
            continue
        train_run(
            config,
            folder,
            resume=resume,
            profile_trace=profile_trace,
            command=command,
            name=name,
            console=console,
            tasks=tasks,
        )
    return tabulate(output, console) if processes.first() else []


def _begin(experiment: Experiment, output: Path, resume: bool, console: Console) -> None:
    """Marks a folder as that of an experiment; refuses one that is another's."""
    mark = output / MARK
    if output.exists() and not output.is_dir():
        raise folders.FolderError(f"{output} is a file: name a folder (--output)")
    if mark.exists() and not resume:
        raise folders.FolderError(
            f"{output} holds an experiment already: add --resume to go on with it, "
            "or choose another --output"
        )
    content = {"title": experiment.title, "runs": experiment.labels, "paper": experiment.paper}
    _keep(mark, files.plain(content), console)


def _keep(mark: Path, content: dict[str, Any], console: Console) -> None:
    """Writes what an experiment is; refuses the folder of another one."""
    if mark.exists():
        try:
            before = runs.experiment(mark.parent)
        except (folders.FolderError, ConfigError) as error:
            console.print(f"{error}; it is kept as {files.set_aside(mark).name}", soft_wrap=True)
            before = content
        if before["runs"] != content["runs"]:
            raise folders.FolderError(
                f"{mark.parent} holds another experiment, of other runs: choose another --output"
            )
    files.write_sealed(mark, content)


def _finished(folder: Path, config: Config, console: Console) -> bool:
    """Whether a run has its result; what process 0 sees counts."""
    path = folder / "result.json"
    if processes.first():
        _look_at(path, config, console)
    return processes.from_first("finished" if path.exists() else "open") == "finished"


def _look_at(path: Path, config: Config, console: Console) -> None:
    """Sets a result aside that is damaged, or that of another run."""
    if not path.exists():
        return
    try:
        found = runs.outcome(path.parent)
        if found["config"] == files.plain(config.table()):
            lines = folders.Records(path.with_name("metrics.jsonl"))
            lines.check(found.get("lines"), lambda words: console.print(words, soft_wrap=True))
            return
        trouble = f"{path} is that of another run"
    except folders.FolderError as error:
        trouble = str(error)
    console.print(f"{trouble}; it is kept as {files.set_aside(path).name}", soft_wrap=True)
    path.unlink(missing_ok=True)


def train_run(
    config: Config,
    folder: Path,
    *,
    resume: bool = False,
    profile_trace: int = 0,
    command: str = "",
    name: str = "",
    console: Console | None = None,
    tasks: Tasks | None = None,
) -> dict[str, Any]:
    """Trains one run in a folder (`training.train`); returns what `result.json` says."""
    task, model = _built(config, tasks)
    with contextlib.ExitStack() as stack:
        hook = None
        if config.training.tensorboard and processes.first():
            hook = stack.enter_context(contextlib.closing(TensorBoard(folder / "events")))
        return train_model(
            task,
            model,
            **how(config),
            parallel=config.parallel,
            folder=folder,
            resume=resume,
            configuration=config.table(),
            on_log=hook,
            on_evaluate=hook,
            profile_trace=profile_trace,
            command=command,
            name=name,
            console=console,
        )


def trainer_of(config: Config) -> Trainer:
    """The compiled parts of a run (`training.trainer`)."""
    return trainer(*_built(config), **how(config), parallel=config.parallel)


def restored(config: Config, folder: Path, average: int = 0, tasks: Tasks | None = None) -> Trained:
    """What a run has learnt (`training.restore`)."""
    return restore(*_built(config, tasks), **how(config), folder=folder, average=average)


def how(config: Config) -> dict[str, Any]:
    """What `training.train` and its like take beside a task and a model."""
    return {
        "recipe": config.solver,
        "optimiser": config.optimiser,
        "settings": config.training,
    }


def _built(config: Config, tasks: Tasks | None = None) -> tuple[Task, Model]:
    try:
        return build(config.task, config.model, tasks)
    except ValueError as error:
        raise ConfigError(str(error)) from error
