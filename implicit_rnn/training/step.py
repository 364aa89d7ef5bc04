"""The compiled parts of a run: what one update does, and what an evaluation does."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import solvers
from implicit_rnn.experiments.config import Config, ConfigError
from implicit_rnn.experiments.registry import build
from implicit_rnn.experiments.task import Task
from implicit_rnn.models.base import Model, Outcome, metrics
from implicit_rnn.training.checkpoint import CheckpointError, Checkpoints
from implicit_rnn.training.optimiser import optimiser
from implicit_rnn.training.sources import Source
from solvers import Info


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
      init: `() -> State`, compiled.
      step: `(state, batch, numbers) -> state`, compiled; the state that it is given is used up.
        The numbers of the examples matter only where solves start warm.
      evaluate: `(state, source) -> dict` of metrics.
      usable: `state -> params` as a model is to be used with them: averaged, within bounds.
      task: what is learnt.
      model: what learns it.
    """

    init: Callable[[], State]
    step: Callable[..., State]
    evaluate: Callable[[State, Source], dict[str, float]]
    usable: Callable[[State], Any]
    task: Task
    model: Model


def trainer(config: Config) -> Trainer:
    """The compiled parts of a run."""
    try:
        task, model = build(config.task, config.model)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return trainer_of(task, model, config)


def trainer_of(task: Task, model: Model, config: Config) -> Trainer:
    """The same for a task and a model that are there already."""
    settings, ema = config.training, config.optimiser.ema
    recipe = dataclasses.replace(config.solver, clip=config.optimiser.clip or math.inf)
    bounds = jax.tree.map(lambda bound: recipe.bound_scale * bound, model.bounds)
    optimise = recipe.optimiser(bounds, optimiser(config.optimiser, settings.updates))

    def init(seed: jax.Array) -> State:
        params = model.init(jax.random.key(seed))
        carry = model.carry(params, settings.batch) if model.carry else None
        source = task.splits["train"]
        batch = source.batch(source.plan(settings.batch, settings.buckets, _fixed())[0])
        # With the recipe's settings: what they refuse is refused before the first update.
        told = jax.eval_shape(
            lambda p, b: model.loss(p, b, solve=recipe.settings())[1], params, batch
        )
        names = [*told.sums, *(_SOLVER_SUMS if model.solves else ())]
        totals = {name: jnp.zeros((), jnp.float32) for name in names}
        return State(
            params, optimise.init(params), jax.tree.map(jnp.array, params) if ema else None, carry,
            jnp.zeros((), jnp.int32), jnp.ones((), jnp.float32), totals,
            _memory(told.states, source) if recipe.warm else None,
        )  # fmt: skip

    def step(state: State, batch: Any, numbers: jax.Array | None, seed: jax.Array) -> State:
        key = jax.random.fold_in(jax.random.key(seed), state.update)
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
        # A loss that is not finite is a gradient that is not, the optimiser skips and counts it;
        # one leaf is enough to tell, and a pass over all of them is not free.
        leaves, structure = jax.tree.flatten(gradient)
        leaves[0] = jnp.where(finite, leaves[0], jnp.nan)
        gradient = jax.tree.unflatten(structure, leaves)
        changes, inner = optimise.update(gradient, state.optimiser, state.params)
        params = optax.apply_updates(state.params, changes)
        taken = inner.last_finite
        average = state.average
        if ema:
            # Early on a short mean: the first parameters are not worth remembering.
            decay = jnp.minimum(ema, (1.0 + state.update) / (10.0 + state.update))
            decay = jnp.where(taken, decay, 1)
            average = jax.tree.map(lambda a, p: decay * a + (1 - decay) * p, average, params)
        carry = jax.tree.map(
            lambda new, old: jnp.where(taken, new, old), outcome.carry, state.carry
        )
        good = {name: jnp.where(finite, value, 0) for name, value in outcome.sums.items()}
        totals = _add(state.totals, good | _solver_sums(outcome.info, seen, batch))
        loss = jnp.where(finite, loss, state.loss).astype(jnp.float32)
        memory = jax.tree.map(
            lambda leaf, new: leaf.at[numbers, : new.shape[1]].set(jnp.where(taken, new, jnp.nan)),
            state.memory, outcome.states if recipe.warm else None,
        )  # fmt: skip
        return State(params, inner, average, carry, state.update + 1, loss, totals, memory)

    @jax.jit
    def judge(params: Any, batch: Any, carry: Any) -> tuple[dict[str, jax.Array], Any]:
        _, outcome = model.loss(params, batch, solve=recipe.exact().settings(), carry=carry)
        return outcome.sums | _solver_sums(outcome.info, None, batch), outcome.carry

    def usable(state: State) -> Any:
        return recipe.usable(state.average if ema else state.params, bounds)

    def evaluate(state: State, source: Source) -> dict[str, float]:
        params = usable(state)
        size = settings.batch if model.carry else settings.evaluate_batch
        carry = model.carry(params, size) if model.carry else None
        totals: dict[str, jax.Array] = {}
        for entry in source.plan(size, -(-settings.buckets // 2), None):
            sums, carry = judge(params, source.batch(entry), carry)
            totals = _add(totals, sums) if totals else sums
        return ratios({name: float(value) for name, value in totals.items()})

    begin, go_on = jax.jit(init), jax.jit(step, donate_argnums=0)
    # An argument: runs of other seeds are the same programs, and a compilation cache knows them.
    seed = jnp.uint32(settings.seed)
    return Trainer(
        lambda: begin(seed), lambda state, batch, numbers=None: go_on(state, batch, numbers, seed),
        evaluate, usable, task, model,
    )  # fmt: skip


def averaged(states: Sequence[State]) -> State:
    """The last of several states, with the means of their parameters (checkpoint averaging)."""

    def mean(*leaves: jax.Array) -> jax.Array:
        return jnp.mean(jnp.stack(leaves), axis=0)

    params, average = (
        jax.tree.map(mean, *(getattr(state, name) for state in states))
        for name in ("params", "average")
    )
    return states[-1]._replace(params=params, average=average)


def chosen_state(
    kept: Checkpoints, like: Any, say: Callable[[str], None], average: int = 0
) -> tuple[State, dict[str, Any]]:
    """The state that a trained model is used with, and its record.

    Args:
      kept: checkpoints of the run.
      like: a state of its shapes.
      say: prints what is wrong with checkpoints that are passed over.
      average: the mean of so many checkpoints, the last ones; 0: the best, or the last without
        a best.
    """
    if average:
        return averaged(kept.restore_several(average, like)), kept.record(kept.updates()[-1])
    found = kept.restore_best(like, say)
    if found is None:
        raise CheckpointError(f"{kept.folder.parent} has no checkpoint: train it first")
    return found


def _fixed() -> np.random.Generator:
    return np.random.default_rng(0)


def _memory(states: Any, source: Source) -> Any:
    """Room for the states of every training example; NaN: not visited yet."""
    if not states or source.numbers is None:
        raise ConfigError("solver.warm needs a task of separate examples, and solved layers")
    return jax.tree.map(
        lambda leaf: jnp.full((*source.shape, *leaf.shape[2:]), jnp.nan, leaf.dtype), states
    )


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


def ratios(totals: Mapping[str, float]) -> dict[str, float]:
    """Metrics of the model, and means over the solves if there were any."""
    own = {key: value for key, value in totals.items() if key not in _SOLVER_SUMS}
    found = {key: float(value) for key, value in metrics(own).items()}
    for key in [key for key in _SOLVER_SUMS[1:] if key in totals]:
        found[key] = totals[key] / (1 if key.endswith("_most") else max(totals["solves"], 1))
    return found
