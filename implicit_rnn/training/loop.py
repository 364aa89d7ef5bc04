"""The training loop: one compiled step, evaluations, checkpoints, and a way back after a kill."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from rich.console import Console

import solvers
from implicit_rnn.models.base import Model, Outcome, metrics
from implicit_rnn.tasks import Source, Task
from implicit_rnn.training import folder as folders
from implicit_rnn.training.build import build
from implicit_rnn.training.checkpoint import CheckpointError, Checkpoints
from implicit_rnn.training.config import Config, dump
from implicit_rnn.training.optimiser import optimiser
from implicit_rnn.training.progress import Display, summary
from implicit_rnn.training.recipe import Recipe
from solvers import Info


class TrainingError(RuntimeError):
    """A run that cannot go on: why, and where its last good state is."""


class State(NamedTuple):
    """All that changes from update to update; a checkpoint holds it whole.

    Attributes:
      params: parameters.
      optimiser: the optimiser's own state.
      average: running mean of the parameters, or None.
      carry: what a stateful model takes from batch to batch, or None.
      update: how many updates there were; random keys are made from it.
      loss: the latest one.
      totals: sums since the last line of `metrics.jsonl`.
      memory: states of all training examples, where solves start warm, or None.
    """

    params: Any
    optimiser: Any
    average: Any
    carry: Any
    update: jax.Array
    loss: jax.Array
    totals: dict[str, jax.Array]
    memory: Any


class Trainer(NamedTuple):
    """A model with what is needed to train and to evaluate it.

    Attributes:
      init: `() -> State`.
      step: `(state, batch, numbers) -> state`, compiled; the state that it is given is used up.
        The numbers of the examples matter only where solves start warm.
      evaluate: `(state, source) -> dict` of metrics.
      task: what is learnt.
      model: what learns it.
    """

    init: Callable[[], State]
    step: Callable[..., State]
    evaluate: Callable[[State, Source], dict[str, float]]
    task: Task
    model: Model


def trainer(config: Config) -> Trainer:
    """The compiled parts of a run."""
    task, model = build(config.task, config.model)
    return trainer_of(task, model, config)


def trainer_of(task: Task, model: Model, config: Config) -> Trainer:
    """The same for a task and a model that are there already."""
    settings, ema = config.training, config.optimiser.ema
    recipe = dataclasses.replace(config.solver, clip=config.optimiser.clip or math.inf)
    bounds = jax.tree.map(lambda bound: recipe.bound_scale * bound, model.bounds)
    optimise = recipe.optimiser(bounds, optimiser(config.optimiser, settings.updates))

    def init() -> State:
        params = model.init(jax.random.key(settings.seed))
        carry = model.carry(params, settings.batch) if model.carry else None
        entry = task.splits["train"].plan(settings.batch, settings.buckets, _rng(settings.seed, 0))
        batch = task.splits["train"].batch(entry[0])
        told = jax.eval_shape(lambda p, b: model.loss(p, b)[1], params, batch)
        names = [*told.sums, *(_SOLVER_SUMS if model.solves else ())]
        totals = {name: jnp.zeros((), jnp.float32) for name in names}
        return State(
            params, optimise.init(params), jax.tree.map(jnp.array, params) if ema else None, carry,
            jnp.zeros((), jnp.int32), jnp.ones((), jnp.float32), totals,
            _memory(told.states, task.splits["train"]) if recipe.warm else None,
        )  # fmt: skip

    def step(state: State, batch: Any, numbers: jax.Array | None = None) -> State:
        key = jax.random.fold_in(jax.random.key(settings.seed), state.update)
        size = jax.tree.leaves(batch)[0].shape[0]
        probe = solvers.adjoint_probe((model.solves, size)) if model.solves else None
        solve = recipe.settings(state.loss)
        if recipe.warm:
            time = batch.labels.shape[1]
            solve["start"] = jax.tree.map(lambda leaf: leaf[numbers, :time], state.memory)

        def objective(params: Any, probe: Info | None) -> tuple[jax.Array, Outcome]:
            return model.loss(
                recipe.usable(params, bounds), batch, key=key, probe=probe,
                solve=solve, carry=state.carry,
            )  # fmt: skip

        (loss, outcome), (gradient, seen) = jax.value_and_grad(objective, (0, 1), has_aux=True)(
            state.params, probe
        )
        finite = jnp.isfinite(loss)
        # A loss that is not finite is a gradient that is not: the optimiser skips and counts it.
        gradient = jax.tree.map(lambda leaf: jnp.where(finite, leaf, jnp.nan), gradient)
        changes, inner = optimise.update(gradient, state.optimiser, state.params)
        params = optax.apply_updates(state.params, changes)
        average = state.average
        if ema:
            # Early on a short mean: the first parameters are not worth remembering.
            decay = jnp.minimum(ema, (1.0 + state.update) / (10.0 + state.update))
            average = jax.tree.map(lambda a, p: decay * a + (1 - decay) * p, average, params)
        carry = jax.tree.map(
            lambda new, old: jnp.where(finite, new, old), outcome.carry, state.carry
        )
        good = {name: jnp.where(finite, value, 0) for name, value in outcome.sums.items()}
        totals = _add(state.totals, good | _solver_sums(outcome.info, seen, batch))
        loss = jnp.where(finite, loss, state.loss).astype(jnp.float32)
        memory = jax.tree.map(
            lambda leaf, new: leaf.at[numbers, : new.shape[1]].set(new),
            state.memory, outcome.states if recipe.warm else None,
        )  # fmt: skip
        return State(params, inner, average, carry, state.update + 1, loss, totals, memory)

    @jax.jit
    def judge(params: Any, batch: Any, carry: Any) -> tuple[dict[str, jax.Array], Any]:
        _, outcome = model.loss(
            recipe.usable(params, bounds), batch, solve=recipe.exact().settings(), carry=carry
        )
        return outcome.sums | _solver_sums(outcome.info, None, batch), outcome.carry

    def evaluate(state: State, source: Source) -> dict[str, float]:
        params = state.average if ema else state.params
        size = settings.batch if model.carry else settings.evaluate_batch
        carry = model.carry(params, size) if model.carry else None
        totals: dict[str, jax.Array] = {}
        for entry in source.plan(size, -(-settings.buckets // 2), None):
            sums, carry = judge(params, source.batch(entry), carry)
            totals = _add(totals, sums) if totals else sums
        return _ratios({name: float(value) for name, value in totals.items()})

    return Trainer(init, jax.jit(step, donate_argnums=0), evaluate, task, model)


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
      folder: where `config.toml`, `metrics.jsonl`, `checkpoints/` and `result.json` go.
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
        _same_config(config, folder)
        with Display(name, config.training.updates, console) as display:
            return _train(parts, config, folder, command, display)


def restore(config: Config, folder: Path) -> tuple[Trainer, State, dict[str, Any]]:
    """The trainer of a run, and its best state with the record of it (the last one without)."""
    parts = trainer(config)
    checkpoints = Checkpoints(folder / "checkpoints")
    like, best = jax.eval_shape(parts.init), checkpoints.best()
    if best is not None:
        return parts, checkpoints.restore(best, like), checkpoints.record(best)
    found = checkpoints.restore_last(like, print)
    if found is None:
        raise CheckpointError(f"{folder} has no checkpoint: train it first")
    return parts, *found


def _train(
    parts: Trainer, config: Config, folder: Path, command: str, display: Display
) -> dict[str, Any]:
    settings, began = config.training, time.perf_counter()
    source, metric = parts.task.splits["train"], parts.task.metric
    checkpoints = Checkpoints(folder / "checkpoints", settings.keep)
    records = folders.Records(folder / "metrics.jsonl")
    state, progress = jax.jit(parts.init)(), _Progress(0, 0, 0.0, None, 0)
    found = checkpoints.restore_last(state, display.say)
    if found is not None:
        state, record = found
        progress = _Progress(**record["progress"])
        display.say(f"{folder}: going on from update {record['update']}")
    update = int(state.update)
    records.rewind(update)
    events = _event_writer(folder) if settings.tensorboard else None

    def report(row: dict[str, Any]) -> None:
        records.append(row)
        display.advance(update, row)
        for key, value in row.items():
            if events and key != "update" and isinstance(value, int | float):
                events.add_scalar(key, value, update)

    before, tokens, since = progress.seconds, 0, time.perf_counter()
    epoch, plan = progress.epoch, _plan(source, config, progress.epoch)
    index, stopped = progress.position, ""
    try:
        while update < settings.updates and not stopped:
            if index == len(plan):
                epoch, index, plan = epoch + 1, 0, _plan(source, config, epoch + 1)
            if index == 0 and parts.model.carry:
                state = state._replace(carry=parts.model.carry(state.params, settings.batch))
            batch = source.batch(plan[index])
            tokens += _tokens(batch)
            numbers = source.numbers(plan[index]) if state.memory and source.numbers else None
            state = parts.step(state, batch, numbers)
            update, index = update + 1, index + 1
            if update % settings.log_every == 0 or update == settings.updates:
                totals = {key: float(value) for key, value in state.totals.items()}
                seconds = time.perf_counter() - since
                row = {"update": update, "epoch": epoch} | _ratios(totals)
                row |= {"skipped": int(state.optimiser.total_notfinite)}
                row |= {"tokens_per_second": tokens / seconds, "seconds": before + _past(began)}
                report(row)
                tokens, since = 0, time.perf_counter()
                state = state._replace(totals=jax.tree.map(jnp.zeros_like, state.totals))
                if int(state.optimiser.notfinite_count) >= settings.most_skipped:
                    stopped = _diagnosis(parts, state, batch, config)
            else:
                display.advance(update)
            if update % settings.evaluate_every == 0 or update == settings.updates or stopped:
                found_ = parts.evaluate(state, parts.task.splits["valid"])
                row = {f"valid_{key}": value for key, value in found_.items()}
                report({"update": update, "seconds": before + _past(began)} | row)
                score, best = found_[metric], progress.best
                better = math.isfinite(score) and (best is None or score < best)
                waited = 0 if better else progress.waited + 1
                progress = _Progress(
                    epoch, index, before + _past(began), score if better else best, waited
                )
                record = {"score": score, "metrics": found_, "progress": progress._asdict()}
                checkpoints.save(update, state, record)
                if not display.console.is_terminal:
                    display.say(f"{update:6d}/{settings.updates}  valid {summary(found_)}")
                if settings.patience and waited >= settings.patience:
                    display.say(f"stopped early: no better {metric} for {waited} evaluations")
                    break
                since, tokens = time.perf_counter(), 0
    except KeyboardInterrupt:
        progress = progress._replace(epoch=epoch, position=index, seconds=before + _past(began))
        checkpoints.save(update, state, {"progress": progress._asdict()})
        display.say(f"interrupted at update {update}; --resume goes on from there")
        raise
    if stopped:
        raise TrainingError(
            f"{stopped}\nthe last good state is in {checkpoints.folder} ({update:06d})"
        )
    seconds = before + _past(began)
    return _finish(config, parts, checkpoints, records, state, folder, command, seconds)


def _memory(states: Any, source: Source) -> Any:
    """Room for the states of every training example; NaN: not visited yet."""
    if not states or source.numbers is None:
        raise TrainingError("solver.warm needs a task of separate examples, and solved layers")
    return jax.tree.map(
        lambda leaf: jnp.full((*source.shape, *leaf.shape[2:]), jnp.nan, leaf.dtype), states
    )


class _Progress(NamedTuple):
    """Where a run is in its data, and what it has achieved."""

    epoch: int
    position: int
    seconds: float
    best: float | None
    waited: int


def _finish(
    config: Config,
    parts: Trainer,
    checkpoints: Checkpoints,
    records: folders.Records,
    state: State,
    folder: Path,
    command: str,
    seconds: float,
) -> dict[str, Any]:
    best = checkpoints.best()
    if best is not None:
        state = checkpoints.restore(best, state)
    found = parts.evaluate(state, parts.task.splits["test"])
    rows = [row for row in records.read() if "forward_steps" in row]
    content = folders.environment(command) | {
        "seconds": seconds,
        "updates": config.training.updates,
        "best_update": best,
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(state.params)),
        "skipped": int(state.optimiser.total_notfinite),
        "test": found,
        "valid": checkpoints.record(best).get("metrics") if best is not None else None,
        "config": config.table(),
    }
    if rows:
        tenth = max(len(rows) // 10, 1)
        for key in ("forward_steps", "backward_steps"):
            ends = (rows[:tenth], rows[-tenth:])
            content[key] = [sum(row[key] for row in end) / len(end) for end in ends]
        content["converged"] = sum(row["converged"] for row in rows) / len(rows)
    folders.write_json(folder / "result.json", content)
    return content


def _same_config(config: Config, folder: Path) -> None:
    """Writes the configuration, or refuses one that differs from what the folder was begun with."""
    path, text = folder / "config.toml", dump(config.table())
    if path.exists() and path.read_text() != text:
        old, new = path.read_text().splitlines(), text.splitlines()
        changed = sorted(set(new) - set(old)) or sorted(set(old) - set(new))
        raise folders.FolderError(
            f"{folder} was begun with another configuration ({'; '.join(changed[:3])}): "
            "choose another --output"
        )
    folders.write_text(path, text)


def _plan(source: Source, config: Config, epoch: int) -> list:
    settings = config.training
    return source.plan(settings.batch, settings.buckets, _rng(settings.seed, epoch))


def _rng(seed: int, epoch: int) -> np.random.Generator:
    return np.random.default_rng((seed, epoch))


def _tokens(batch: Any) -> int:
    length = getattr(batch, "length", None)
    return int(np.sum(length)) if length is not None else int(jax.tree.leaves(batch)[0].size)


def _past(began: float) -> float:
    return time.perf_counter() - began


_SOLVER_SUMS = (
    "solves", "forward_steps", "forward_most", "converged", "backward_steps", "backward_most",
)  # fmt: skip


def _solver_sums(info: Info | None, seen: Info | None, batch: Any) -> dict[str, jax.Array]:
    """What the solves of a batch add to the totals; sequences of length zero are not counted."""
    if info is None:
        return {}
    counted = jnp.broadcast_to(
        getattr(batch, "length", jnp.ones(info.steps.shape)), info.steps.shape
    )
    counted = counted > 0
    sums = {
        "solves": jnp.sum(counted),
        "forward_steps": jnp.sum(jnp.where(counted, info.steps, 0)),
        "forward_most": jnp.max(jnp.where(counted, info.steps, 0)),
        "converged": jnp.sum(counted & info.converged),
    }
    if seen is not None:
        sums |= {
            "backward_steps": jnp.sum(jnp.where(counted, seen.steps, 0)),
            "backward_most": jnp.max(jnp.where(counted, seen.steps, 0)),
        }
    return {name: value.astype(jnp.float32) for name, value in sums.items()}


def _add(totals: Mapping[str, jax.Array], sums: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    return {
        name: jnp.maximum(total, sums[name]) if name.endswith("_most") else total + sums[name]
        for name, total in totals.items()
    }


def _ratios(totals: Mapping[str, float]) -> dict[str, float]:
    """Metrics of the model, and means over the solves if there were any."""
    own = {key: value for key, value in totals.items() if key not in _SOLVER_SUMS}
    found = {key: float(value) for key, value in metrics(own).items()}
    for key in [key for key in _SOLVER_SUMS[1:] if key in totals]:
        found[key] = totals[key] / (1 if key.endswith("_most") else max(totals["solves"], 1))
    return found


def _diagnosis(parts: Trainer, state: State, batch: Any, config: Config) -> str:
    """Why updates are not finite: the first of inputs, loss and gradients that is not."""
    lines = [f"{int(state.optimiser.notfinite_count)} updates in a row were not finite"]
    for path, leaf in jax.tree_util.tree_leaves_with_path(batch):
        if not np.all(np.isfinite(leaf)):
            lines.append(
                f"the batch's {jax.tree_util.keystr(path)} is not finite: look at the data"
            )
    recipe: Recipe = config.solver

    def objective(params: Any) -> tuple[jax.Array, Outcome]:
        return parts.model.loss(params, batch, solve=recipe.settings(), carry=state.carry)

    (loss, outcome), gradient = jax.value_and_grad(objective, has_aux=True)(state.params)
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


def _event_writer(folder: Path) -> Any:
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        raise TrainingError(
            "training.tensorboard needs the package tensorboardX: pip install tensorboardX"
        ) from None
    return SummaryWriter(str(folder / "events"))
