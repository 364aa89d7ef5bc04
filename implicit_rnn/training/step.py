"""The compiled parts of a run: what one update does, and what an evaluation does."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import solvers
from implicit_rnn.models.base import Outcome
from implicit_rnn.training import totals
from implicit_rnn.training.optimiser import OptimiserSettings, optimiser_of, schedule
from implicit_rnn.training.precision import InPrecision
from implicit_rnn.training.protocols import Model, Split, Task
from implicit_rnn.training.recipe import Recipe
from implicit_rnn.training.settings import SettingsError, TrainingSettings
from solvers import Info

_MOST_SWEEPS = 30  # in an evaluation, before Newton's method takes over


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
      evaluate: `(state, split) -> dict` of metrics.
      usable: `state -> params` as a model is to be used with them: averaged, within bounds.
      rate: `state -> learning rate` of its latest update, or None where nothing tells it.
      loss: `(state, batch) -> (loss, Outcome, gradient)` as the next update would have them.
      begin: `state -> state` at the beginning of an epoch: a stateful model's carry is fresh.
      task, model, settings: what is trained, and how.
    """

    init: Callable[[], State]
    step: Callable[..., State]
    evaluate: Callable[[State, Split], dict[str, float]]
    usable: Callable[[State], Any]
    rate: Callable[[State], float | None]
    loss: Callable[[State, Any], tuple[jax.Array, Outcome, Any]]
    begin: Callable[[State], State]
    task: Any
    model: Any
    settings: TrainingSettings


def trainer(
    task: Task,
    model: Model,
    *,
    recipe: Recipe | None = None,
    optimiser: OptimiserSettings | optax.GradientTransformation | None = None,
    settings: TrainingSettings | None = None,
) -> Trainer:
    """The compiled parts of a run.

    Args:
      task, model: see `training/protocols.py`.
      recipe: how to solve and to update.
      optimiser: settings of one, or one of optax. The recipe puts its clip before it and its bounds
        behind it; the clip of settings takes the place of the recipe's.
      settings: how long, how often, how much at a time.
    """
    recipe, settings = recipe or Recipe(), settings or TrainingSettings()
    optimiser = OptimiserSettings() if optimiser is None else optimiser
    rates, ema = None, 0.0
    if isinstance(optimiser, OptimiserSettings):
        recipe = dataclasses.replace(recipe, clip=optimiser.clip or math.inf)
        rates, ema = schedule(optimiser, settings.updates), optimiser.ema
        optimiser = optimiser_of(optimiser, settings.updates)
    bounds = jax.tree.map(lambda bound: recipe.bound_scale * bound, getattr(model, "bounds", {}))
    if settings.dtype is not None:
        model = InPrecision(model, settings.dtype)
    program = _Program(
        task, model, recipe, recipe.optimiser(bounds, optimiser), bounds, ema, settings
    )
    start, go_on = jax.jit(program.init), jax.jit(program.step, donate_argnums=0)
    # An argument: runs of other seeds are the same programs, and a compilation cache knows them.
    seed = jnp.uint32(settings.seed)

    def rate(state: State) -> float | None:
        if rates is not None:
            taken = int(state.update) - int(state.optimiser.total_notfinite)
            return float(rates(max(taken - 1, 0)))
        # What `optax.inject_hyperparams` keeps, beside the state of its schedule.
        named = optax.tree_utils.tree_get_all_with_path(state.optimiser, "learning_rate")
        known = [value for _, value in named if isinstance(value, jax.Array)]
        return float(known[0]) if known else None

    return Trainer(
        lambda: start(seed),
        lambda state, batch, numbers=None: go_on(state, batch, numbers, seed),
        program.evaluator(),
        program.usable,
        rate,
        program.loss,
        program.begin,
        task,
        model,
        settings,
    )


class _Program(NamedTuple):
    """What the compiled functions close over, and the functions."""

    task: Task
    model: Model
    recipe: Recipe
    optimise: optax.GradientTransformation
    bounds: Any
    ema: float
    settings: TrainingSettings

    def init(self, seed: jax.Array) -> State:
        params = self.model.init(jax.random.key(seed))
        split = self.task.splits["train"]
        plan = split.plan(self.settings.batch, self.settings.buckets, np.random.default_rng(0))
        # With the recipe's settings: what they refuse is refused before the first update.
        seen = jax.eval_shape(
            lambda p, b: self.model.loss(p, b, **self.given(None))[1], params, split.batch(plan[0])
        )
        names = [*seen.sums, *totals.GRADIENTS, *(totals.SOLVES if self.solves else ())]
        return State(
            params=params,
            optimiser=self.optimise.init(params),
            average=jax.tree.map(jnp.array, params) if self.ema else None,
            carry=self.fresh(params, self.settings.batch),
            update=jnp.zeros((), jnp.int32),
            loss=jnp.ones((), jnp.float32),
            totals={name: jnp.zeros((), jnp.float32) for name in names},
            memory=_memory(seen.states, split) if self.recipe.warm else None,
        )

    def step(self, state: State, batch: Any, numbers: jax.Array | None, seed: jax.Array) -> State:
        key = jax.random.fold_in(jax.random.key(seed), state.update)
        size = jax.tree.leaves(batch)[0].shape[0]
        probe = solvers.adjoint_probe((self.solves, size)) if self.solves else None
        start = None
        if self.recipe.warm:
            time = batch.labels.shape[1]
            start = jax.tree.map(lambda leaf: leaf[numbers, :time], state.memory)

        def objective(params: Any, probe: Info | None) -> tuple[jax.Array, Outcome]:
            return self.model.loss(
                self.recipe.usable(params, self.bounds),
                batch,
                key=key,
                **self.given(state, probe, start),
            )

        (loss, outcome), (gradient, seen) = jax.value_and_grad(objective, (0, 1), has_aux=True)(
            state.params, probe
        )
        finite = jnp.isfinite(loss)
        # A loss that is not finite is a gradient that is not, the optimiser skips and counts it;
        # one leaf is enough to tell, and a pass over all of them is not free.
        leaves, structure = jax.tree.flatten(gradient)
        leaves[0] = jnp.where(finite, leaves[0], jnp.nan)
        gradient = jax.tree.unflatten(structure, leaves)
        changes, inner = self.optimise.update(gradient, state.optimiser, state.params)
        params, taken = optax.apply_updates(state.params, changes), inner.last_finite
        sums = {name: jnp.where(finite, value, 0) for name, value in outcome.sums.items()}
        sums |= totals.solver_sums(outcome.info, seen, batch)
        sums |= totals.gradient_sums(inner.norm, taken)
        return State(
            params=params,
            optimiser=inner,
            average=self.averaged(state, params, taken),
            carry=jax.tree.map(
                lambda new, old: jnp.where(taken, new, old), outcome.carry, state.carry
            ),
            update=state.update + 1,
            loss=jnp.where(finite, loss, state.loss).astype(jnp.float32),
            totals=totals.add(state.totals, sums),
            memory=jax.tree.map(
                lambda leaf, new: leaf.at[numbers, : new.shape[1]].set(
                    jnp.where(taken, new, jnp.nan)
                ),
                state.memory,
                outcome.states if self.recipe.warm else None,
            ),
        )

    def loss(self, state: State, batch: Any) -> tuple[jax.Array, Outcome, Any]:
        def objective(params: Any) -> tuple[jax.Array, Outcome]:
            return self.model.loss(params, batch, **self.given(state))

        (loss, outcome), gradient = jax.value_and_grad(objective, has_aux=True)(self.usable(state))
        return loss, outcome, gradient

    def evaluator(self) -> Callable[[State, Split], dict[str, float]]:
        exact = self.recipe.exact()
        # Newton's method takes most of the time that an exact solve needs to be compiled, and is
        # hardly ever needed: only a batch that sweeps do not solve is judged again with it.
        swept = dataclasses.replace(exact, method="banded", max_steps=_MOST_SWEEPS)

        @functools.partial(jax.jit, static_argnums=3)
        def judged(
            params: Any, batch: Any, carry: Any, recipe: Recipe
        ) -> tuple[dict[str, jax.Array], Any]:
            given = {"solve": recipe.settings()} if self.solved else {}
            given |= {"carry": carry} if self.carries else {}
            _, outcome = self.model.loss(params, batch, **given)
            return outcome.sums | totals.solver_sums(outcome.info, None, batch), outcome.carry

        def judge(params: Any, batch: Any, carry: Any) -> tuple[dict[str, jax.Array], Any]:
            found = judged(params, batch, carry, swept)
            if self.solves and found[0]["converged"] < found[0]["solves"]:
                return judged(params, batch, carry, exact)
            return found

        def evaluate(state: State, split: Split) -> dict[str, float]:
            params, settings = self.usable(state), self.settings
            size = settings.batch if self.carries else settings.evaluate_batch
            carry = self.fresh(params, size)
            found: dict[str, jax.Array] = {}
            try:
                plan = split.plan(size, -(-settings.buckets // 2), None)
            except ValueError as error:
                raise SettingsError(str(error)) from error
            for entry in plan:
                sums, carry = judge(params, split.batch(entry), carry)
                found = totals.add(found, sums) if found else sums
            return totals.ratios({name: float(value) for name, value in found.items()})

        return evaluate

    def given(self, state: State | None, probe: Info | None = None, start: Any = None) -> dict:
        """What the model's loss takes beyond parameters, batch and key."""
        found: dict[str, Any] = {}
        if self.solved:
            solve = self.recipe.settings(None if state is None else state.loss)
            found["solve"] = solve if start is None else solve | {"start": start}
            found["probe"] = probe
        if self.carries and state is not None:
            found["carry"] = state.carry
        return found

    def begin(self, state: State) -> State:
        if not self.carries:
            return state
        return state._replace(carry=self.fresh(state.params, self.settings.batch))

    def usable(self, state: State) -> Any:
        return self.recipe.usable(state.average if self.ema else state.params, self.bounds)

    def averaged(self, state: State, params: Any, taken: jax.Array) -> Any:
        if not self.ema:
            return state.average
        # Early on a short mean: the first parameters are not worth remembering.
        decay = jnp.minimum(self.ema, (1.0 + state.update) / (10.0 + state.update))
        decay = jnp.where(taken, decay, 1)
        return jax.tree.map(lambda a, p: decay * a + (1 - decay) * p, state.average, params)

    def fresh(self, params: Any, size: int) -> Any:
        carry = getattr(self.model, "carry", None)
        return carry(params, size) if carry else None

    @property
    def carries(self) -> bool:
        return bool(getattr(self.model, "carry", None))

    @property
    def solved(self) -> bool:
        return hasattr(self.model, "solves")

    @property
    def solves(self) -> int:
        return getattr(self.model, "solves", 0)


def _memory(states: Any, split: Any) -> Any:
    """Room for the states of every training example; NaN: not visited yet."""
    if not states or getattr(split, "numbers", None) is None:
        raise SettingsError(
            "warm starts (solver.warm) need a task of separate examples, and solved layers"
        )
    return jax.tree.map(
        lambda leaf: jnp.full((*split.shape, *leaf.shape[2:]), jnp.nan, leaf.dtype), states
    )
