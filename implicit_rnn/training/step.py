"""The compiled parts of a run: what one update does, and what an evaluation does."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from implicit_rnn.models.base import Outcome
from implicit_rnn.training.optimiser import (
    OptimiserSettings,
    left_of_rate,
    lowered,
    optimiser_of,
    schedule,
)
from implicit_rnn.training.parallel import Layout, ParallelSettings, layout_of
from implicit_rnn.training.precision import InPrecision
from implicit_rnn.training.program import Program, State
from implicit_rnn.training.protocols import Model, Task
from implicit_rnn.training.recipe import Recipe
from implicit_rnn.training.settings import TrainingSettings


class Trainer(NamedTuple):
    """A model with what is needed to train and to evaluate it.

    Attributes:
      init: `() -> State`, compiled.
      load: `(split, entry) -> batch`, where it belongs on the devices.
      step: `(state, batch, numbers) -> state`, compiled; the state that it is given is used up.
        The numbers of the examples matter only where solves start warm. Where an update takes
        several batches (`settings.accumulate`), it is given a tuple of them.
      evaluate: `(state, split, ended) -> dict` of metrics; none where `ended()` says so before the
        last batch (by default it never does).
      usable: `state -> params` as a model is to be used with them: averaged, within bounds.
      rate: `state -> learning rate` of its latest update, or None where nothing tells it.
      loss: `(state, batch) -> (loss, Outcome, gradient)` as the next update would have them.
      begin: `state -> state` at the beginning of an epoch: a stateful model's carry is fresh.
      waited: `(state, evaluations) -> state` after so many evaluations in a row without
        improvement: where the learning rate waits for a plateau, it is lowered.
      task, model, settings: what is trained, and how.
      layout: over which devices; None for one.
    """

    init: Callable[[], State]
    load: Callable[[Any, Any], Any]
    step: Callable[..., State]
    evaluate: Callable[..., dict[str, float]]
    usable: Callable[[State], Any]
    rate: Callable[[State], float | None]
    loss: Callable[[State, Any], tuple[jax.Array, Outcome, Any]]
    begin: Callable[[State], State]
    waited: Callable[[State, int], State]
    task: Any
    model: Any
    settings: TrainingSettings
    layout: Layout | None = None


def trainer(
    task: Task,
    model: Model,
    *,
    recipe: Recipe | None = None,
    optimiser: OptimiserSettings | optax.GradientTransformation | None = None,
    settings: TrainingSettings | None = None,
    parallel: ParallelSettings | Layout | None = None,
) -> Trainer:
    """The compiled parts of a run.

    Args:
      task, model: see `training/protocols.py`.
      recipe: how to solve and to update.
      optimiser: settings of one, or one of optax, which is given the loss, too, as `value`. The
        recipe puts its clip before it and its bounds behind it; the clip of settings takes the
        place of the recipe's.
      settings: how long, how often, how much at a time.
      parallel: over which devices, see `train`.
    """
    recipe, settings = recipe or Recipe(), settings or TrainingSettings()
    optimiser = OptimiserSettings() if optimiser is None else optimiser
    rates, ema, named = None, 0.0, None
    if isinstance(optimiser, OptimiserSettings):
        recipe = dataclasses.replace(recipe, clip=optimiser.clip or math.inf)
        rates, ema, named = schedule(optimiser, settings.updates), optimiser.ema, optimiser
        optimiser = optimiser_of(optimiser, settings.updates)
    bounds = jax.tree.map(lambda bound: recipe.bound_scale * bound, getattr(model, "bounds", {}))
    if settings.dtype is not None:
        model = InPrecision(model, settings.dtype)
    layout = layout_of(parallel, task.splits["train"], settings.batch, settings.buckets)
    program = Program(
        task, model, recipe, recipe.optimiser(bounds, optimiser), bounds, ema, settings, layout
    )
    start, step, begin = program.compiled()
    # An argument: runs of other seeds are the same programs, and a compilation cache knows them.
    # One of several processes would not take an array that is on a device of its own alone.
    seed = jnp.uint32(settings.seed) if layout is None else np.uint32(settings.seed)

    def rate(state: State) -> float | None:
        if rates is not None:
            taken = int(state.update) - int(state.optimiser.total_notfinite)
            return float(rates(max(taken - 1, 0))) * left_of_rate(state.optimiser)
        # What `optax.inject_hyperparams` keeps, beside the state of its schedule.
        found = optax.tree_utils.tree_get_all_with_path(state.optimiser, "learning_rate")
        known = [value for _, value in found if isinstance(value, jax.Array)]
        return float(known[0]) if known else None

    def waited(state: State, evaluations: int) -> State:
        if named is None:
            return state
        return state._replace(optimiser=lowered(named, state.optimiser, evaluations))

    return Trainer(
        lambda: start(seed),
        program.load,
        lambda state, batch, numbers=None: step(state, batch, numbers, seed),
        program.evaluator(),
        program.usable,
        rate,
        program.loss,
        begin,
        waited,
        task,
        model,
        settings,
        layout,
    )
