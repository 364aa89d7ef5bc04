"""What the compiled functions of a run are made of: an update, and an evaluation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import solvers
from implicit_rnn.models.base import Outcome
from implicit_rnn.training import totals
from implicit_rnn.training.accumulate import accumulated, counted, mean, times
from implicit_rnn.training.compiling import once
from implicit_rnn.training.dealing import load
from implicit_rnn.training.parallel import Graded, Layout
from implicit_rnn.training.protocols import Model, Split, Task, require_outcome
from implicit_rnn.training.recipe import Recipe
from implicit_rnn.training.settings import SettingsError, TrainingSettings
from solvers import Info
from solvers.mesh import vary_like


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


class Program(NamedTuple):
    """What the compiled functions close over, and the functions."""

    task: Task
    model: Model
    recipe: Recipe
    optimise: optax.GradientTransformationExtraArgs
    bounds: Any
    ema: float
    settings: TrainingSettings
    layout: Layout | None

    def compiled(self) -> tuple[Callable, Callable, Callable]:
        """`init`, `step` and `begin`, with their states where the layout has them."""
        if self.layout is None:
            return once(self.init), self.stepper(donate_argnums=0), self.begin
        if self.recipe.warm:
            raise SettingsError(
                "warm starts (solver.warm) are kept on one device: leave them out, or set "
                "parallel.shape = [1]"
            )
        # As a constant: what is traced inside has no devices yet.
        places = self.layout.shardings(jax.eval_shape(self.init, np.uint32(0)))
        return (
            once(self.init, out_shardings=places),
            self.stepper(donate_argnums=0, out_shardings=places),
            jax.jit(self.begin, out_shardings=places),
        )

    def stepper(self, **how: Any) -> Callable[..., State]:
        """`(state, batch, numbers, seed) -> state`, or with a tuple of batches; compiled `how`."""
        if self.settings.accumulate == 1:
            return jax.jit(self.step, **how)
        if self.recipe.warm:
            raise SettingsError(
                "warm starts (solver.warm) need one batch an update: set training.accumulate = 1"
            )
        summed, update = accumulated(self.weighed), jax.jit(self.settled, **how)
        fold = jax.jit(lambda seed, update: jax.random.fold_in(jax.random.key(seed), update))

        def step(state: State, batches: Any, numbers: None, seed: jax.Array) -> State:
            key = fold(seed, state.update)
            return update(state, summed(state.params, batches, state.carry, key, state.loss))

        return step

    def load(self, split: Split, entry: Any) -> Any:
        if self.layout is None:
            return split.batch(entry)
        return load(split, entry, self.layout.rows, ordered=self.carries)

    def init(self, seed: jax.Array) -> State:
        params = self.model.init(jax.random.key(seed))
        split = self.task.splits["train"]
        plan = split.plan(self.settings.batch, self.settings.buckets, np.random.default_rng(0))
        # With the recipe's settings: what they refuse is refused before the first update.
        found = jax.eval_shape(
            lambda p, b: self.model.loss(p, b, **self.given()), params, split.batch(plan[0])
        )
        further = totals.SOLVES if self.solves else ()
        seen = require_outcome(found, self.task.metric, further)
        names = [*seen.sums, *totals.GRADIENTS, *further]
        state = State(
            params=params,
            optimiser=self.optimise.init(params),
            average=jax.tree.map(jnp.array, params) if self.ema else None,
            carry=self.fresh(params, self.settings.batch),
            update=jnp.zeros((), jnp.int32),
            loss=jnp.ones((), jnp.float32),
            totals={name: jnp.zeros((), jnp.float32) for name in names},
            memory=_memory(seen.states, split) if self.recipe.warm else None,
        )
        # A weak type would be a strong one after the first update: every program compiled twice.
        return jax.tree.map(lambda leaf: jax.lax.convert_element_type(leaf, leaf.dtype), state)

    def step(self, state: State, batch: Any, numbers: jax.Array | None, seed: jax.Array) -> State:
        key = jax.random.fold_in(jax.random.key(seed), state.update)
        if self.layout is not None:
            found = self.weighed(state.params, batch, state.carry, key, state.loss)
            return self.settled(state, found)
        start = None
        if self.recipe.warm:
            time = batch.labels.shape[1]
            start = jax.tree.map(lambda leaf: leaf[numbers, :time], state.memory)
        found = self.graded(state.params, None, batch, state.carry, key, state.loss, start)
        new = self.updated(state, found)
        memory = jax.tree.map(
            lambda leaf, new_states: leaf.at[numbers, : new_states.shape[1]].set(
                jnp.where(new.optimiser.last_finite, new_states, jnp.nan)
            ),
            state.memory,
            found.states if self.recipe.warm else None,
        )
        return new._replace(memory=memory)

    def weighed(
        self, params: Any, batch: Any, carry: Any, key: jax.Array, latest: jax.Array
    ) -> Graded:
        """Loss and gradient on a batch, times what they are means over; of all devices."""
        if self.layout is not None:
            return self.layout.spread(self.graded, params)(params, batch, carry, key, latest)
        found = self.graded(params, None, batch, carry, key, latest)
        return times(found, counted(found.sums))._replace(states=None)

    def settled(self, state: State, total: Graded) -> State:
        """The state after an update by what `weighed` gave, or by the sum of several."""
        return self.updated(state, mean(total, state.params))

    def graded(
        self,
        params: Any,
        whole: Callable[[Any], Any] | None,
        batch: Any,
        carry: Any,
        key: jax.Array,
        latest: jax.Array,
        start: Any = None,
    ) -> Graded:
        """Loss and gradient on a batch; of a device's share of one, times what they are means over.

        Args:
          params: parameters; their shards, if there is `whole`, which puts these together.
          batch, carry, key: as for the model's loss.
          latest: the loss before.
          start: states that solves start from.
        """
        size = jax.tree.leaves(batch)[0].shape[0]
        probe = solvers.adjoint_probe((self.solves, size)) if self.solves else None
        probe = vary_like(probe, params)

        def objective(params: Any, probe: Info | None) -> tuple[jax.Array, Outcome]:
            if whole is not None:
                params = whole(params)
            loss, outcome = self.model.loss(
                self.recipe.usable(params, self.bounds),
                batch,
                key=key,
                **self.given(latest, carry, probe, start),
            )
            if whole is not None:
                loss = loss * jax.lax.stop_gradient(counted(outcome.sums)).astype(loss.dtype)
            return loss, outcome

        (loss, outcome), (gradient, seen) = jax.value_and_grad(objective, (0, 1), has_aux=True)(
            params, probe
        )
        sums = outcome.sums | totals.solver_sums(outcome.info, seen, batch)
        return Graded(loss, gradient, sums, outcome.carry, outcome.states)

    def updated(self, state: State, found: Graded) -> State:
        """The state after an update by these gradients."""
        finite = jnp.isfinite(found.loss)
        # A loss that is not finite is a gradient that is not, the optimiser skips and counts it;
        # one leaf is enough to tell, and a pass over all of them is not free.
        leaves, structure = jax.tree.flatten(found.gradient)
        leaves[0] = jnp.where(finite, leaves[0], jnp.nan)
        gradient = jax.tree.unflatten(structure, leaves)
        changes, inner = self.optimise.update(
            gradient, state.optimiser, state.params, value=found.loss
        )
        params, taken = optax.apply_updates(state.params, changes), inner.last_finite
        sums = {
            name: value if name in totals.SOLVES else jnp.where(finite, value, 0)
            for name, value in found.sums.items()
        }
        sums |= totals.gradient_sums(inner.norm, taken)
        return State(
            params=params,
            optimiser=inner,
            average=self.averaged(state, params, taken),
            carry=jax.tree.map(
                lambda new, old: jnp.where(taken, new, old), found.carry, state.carry
            ),
            update=state.update + 1,
            loss=jnp.where(finite, found.loss, state.loss).astype(jnp.float32),
            totals=totals.add(state.totals, sums),
            memory=state.memory,
        )

    def loss(self, state: State, batch: Any) -> tuple[jax.Array, Outcome, Any]:
        def objective(params: Any) -> tuple[jax.Array, Outcome]:
            return self.model.loss(params, batch, **self.given(state.loss, state.carry))

        (loss, outcome), gradient = jax.value_and_grad(objective, has_aux=True)(self.usable(state))
        return loss, outcome, gradient

    def evaluator(self) -> Callable[..., dict[str, float]]:
        layout = self.layout

        def compiled(recipe: Recipe) -> Callable:
            def judge(params: Any, batch: Any, carry: Any) -> tuple[dict[str, jax.Array], Any]:
                given = {"solve": recipe.settings()} if self.solved else {}
                given |= {"carry": carry} if self.carries else {}
                _, outcome = self.model.loss(params, batch, **given)
                return outcome.sums | totals.solver_sums(outcome.info, None, batch), outcome.carry

            return jax.jit(judge) if layout is None else layout.judged(judge)

        swept, solved = compiled(self.recipe.swept()), compiled(self.recipe.exact())
        settle = self.usable if layout is None else jax.jit(self.usable)

        def judged(params: Any, batch: Any, carry: Any) -> tuple[dict[str, jax.Array], Any]:
            found = swept(params, batch, carry)
            if self.solves and found[0]["converged"] < found[0]["solves"]:
                return solved(params, batch, carry)
            return found

        def evaluate(
            state: State, split: Split, ended: Callable[[], bool] = lambda: False
        ) -> dict[str, float]:
            params, settings = settle(state), self.settings
            size = settings.batch if self.carries else settings.evaluate_batch
            if layout is not None:
                size += -size % layout.mesh.size
            carry = self.fresh(params, size)
            found: dict[str, jax.Array] = {}
            try:
                plan = split.plan(size, -(-settings.buckets // 2), None)
            except ValueError as error:
                raise SettingsError(str(error)) from error
            for entry in plan:
                if ended():
                    return {}
                sums, carry = judged(params, self.load(split, entry), carry)
                found = totals.add(found, sums) if found else sums
            return totals.ratios(totals.numbers(found))

        return evaluate

    def given(
        self, latest: Any = None, carry: Any = None, probe: Info | None = None, start: Any = None
    ) -> dict:
        """What the model's loss takes beyond parameters, batch and key."""
        found: dict[str, Any] = {}
        if self.solved:
            solve = self.recipe.settings(latest)
            found["solve"] = solve if start is None else solve | {"start": start}
            found["probe"] = probe
        if self.carries and carry is not None:
            found["carry"] = carry
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
        if not carry:
            return None
        if self.layout is None or isinstance(jax.tree.leaves(params)[0], jax.core.Tracer):
            return carry(params, size)
        return jax.jit(carry, static_argnums=1, out_shardings=self.layout.rows)(params, size)

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
