"""Hyperparameters learnt by gradients: the training of a network is itself a recurrent network.

Its state are weights and velocity `h = (w, v)`, its parameters `theta` a learning rate and a
momentum for the weights and for the biases of every layer, its inputs the mini-batches. One step
`h <- F(theta, h, B)`, in the form of Maclaurin, Duvenaud and Adams (2015), is

    v <- momentum v - (1 - momentum) (grad L_B(w) + decay w),    w <- w + rate v.

What is minimised is the meta-loss, that of the weights after `T` steps. Its value is the same for
every rule. Its gradient is, by rule and truncation `K`,

* `bptt`: exact, back through all `T` steps, each with its own mini-batch;
* `tbptt`: back through the last `K` of them, `theta` held fixed in those before;
* any other: as if the state `h` before the last step had settled under the mean of the steps on
  the last `averaged` mini-batches (which is the step on all their examples together). With `J` and
  `dF/dtheta` of that mean at `h`, and `c` the gradient of the meta-loss at the last state,
  `(I - J^T) z = c` is solved by `K` steps of the rule, and `theta` receives `(dF/dtheta)^T z`.

The rules of the third kind keep nothing of the `T` steps: memory depends neither on `T` nor, but
for gmres, on `K`. They are exact where the state has settled; but there the velocity is zero, and
rates and momenta have no influence (only decays have). Before, what they see is how the latest
steps would go on.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

import solvers
from implicit_rnn.cells.base import Params
from implicit_rnn.experiments.hyper.descent import (
    PARTS,
    Training,
    by_name,
    change,
    descend,
    examples,
    scores,
    step,
    values,
)
from implicit_rnn.experiments.task import Task
from implicit_rnn.models.base import NO_SETTINGS, Outcome, label_sums, layer_probe, stacked
from implicit_rnn.sequence.equilibrium import RULES, learning_rule
from solvers import Info


class HyperOptimiser(NamedTuple):
    """A `Model` whose parameters are the hyperparameters of a training.

    Attributes:
      init, loss, bounds, solves, carry: as for every `Network`. A batch are trainings: `order`
        `[trainings, steps, mini-batch]`, which examples every step sees; the examples `inputs`
        `[examples, features]` and `labels`; those of the meta-loss, `meta_inputs` and
        `meta_labels`. Sums are `loss` (the meta-loss), `wrong` (share of the meta-examples that
        are misclassified), `step_loss` (that of the last mini-batch), `change` (of the weights in
        the last step, relative), every hyperparameter by name, and `count` (trainings).
      start: the state that every training begins with.
    """

    init: Callable[[jax.Array], Params]
    loss: Callable[..., tuple[jax.Array, Outcome]]
    bounds: Any
    solves: int
    start: Callable[[], Training]
    carry: None = None
    settles: bool = False  # a training takes the steps that it is given


def hyper_optimiser(
    task: Task,
    *,
    hidden: tuple[int, ...] = (50, 50, 50),
    rule: str = "neumann",
    truncation: int = 50,
    averaged: int = 5,
    uniform: bool = False,
    segment: int = 0,
    rate: float = math.exp(-1),
    momentum: float = 0.5,
    decay: float = 0.0,
    scale: float = math.exp(-3),
    seed: int = 0,
) -> HyperOptimiser:
    """Learns how to train a fully connected network of tanh neurons that classifies.

    Args:
      task: says the width of its inputs, and how many labels there are.
      hidden: neurons of the layers between.
      rule: how the gradient is found, one of `sequence.equilibrium.RULES`; the top of this file
        says what each differentiates.
      truncation: steps that it takes; of no meaning for `bptt`.
      averaged: mini-batches, the last ones, whose steps the other rules take the mean of. One
        alone may have directions in which its loss falls for ever: there the series grows.
      uniform: start `rbp` from draws in [0, 1].
      segment: back through time keep only every so many-th state, and compute the steps between
        again; 0: keep what every step needs.
      rate, momentum: where they begin.
      decay: where weight decays, one for each rate, begin; 0: there are none, and none are learnt.
      scale: deviation of the network's first weights and biases.
      seed: of these; every training begins with the same.

    Parameters: `rate` (logarithms), `momentum` (log-odds) and, if wanted, `decay` (logarithms),
    each with `weights` `[layers]` and `biases` `[layers]`.
    """
    if rule not in RULES:
        raise ValueError(f"unknown rule {rule!r}; choose from {', '.join(RULES)}")
    if truncation < 1 or averaged < 1 or segment < 0:
        raise ValueError(
            "truncation and averaged must be at least 1 and segment at least 0, got "
            f"{truncation}, {averaged} and {segment}"
        )
    if not (rate > 0 and 0 < momentum < 1 and decay >= 0):
        raise ValueError(
            "rate must be positive, momentum between 0 and 1 and decay not negative, got "
            f"{rate}, {momentum} and {decay}"
        )
    widths = (task.sizes["input_size"], *hidden, task.sizes["labels"])
    unrolled = rule in ("bptt", "tbptt")

    parts = _Trainings(
        rate=rate,
        momentum=momentum,
        decay=decay,
        widths=widths,
        seed=seed,
        scale=scale,
        truncation=truncation,
        rule=rule,
        unrolled=unrolled,
        segment=segment,
        averaged=averaged,
        uniform=uniform,
    )
    return HyperOptimiser(parts.init, parts.loss, (), 0 if unrolled else 1, parts.start)


@dataclasses.dataclass(frozen=True, eq=False)
class _Trainings:
    """What the model does."""

    rate: float
    momentum: float
    decay: float
    widths: tuple[int, ...]
    seed: int
    scale: float
    truncation: int
    rule: str
    unrolled: bool
    segment: int
    averaged: int
    uniform: bool

    def init(self, key: jax.Array) -> Params:
        first = {
            "rate": math.log(self.rate),
            "momentum": math.log(self.momentum / (1 - self.momentum)),
        }
        if self.decay:
            first["decay"] = math.log(self.decay)
        layers = len(self.widths) - 1
        return {
            name: {part: jnp.full(layers, value) for part in PARTS} for name, value in first.items()
        }

    def start(self) -> Training:
        keys = jax.random.split(jax.random.key(self.seed), 2 * (len(self.widths) - 1))
        weights = [
            {
                "weights": self.scale * jax.random.normal(keys[2 * n], self.widths[n : n + 2]),
                "biases": self.scale
                * jax.random.normal(keys[2 * n + 1], self.widths[n + 1 : n + 2]),
            }
            for n in range(len(self.widths) - 1)
        ]
        return Training(weights, jax.tree.map(jnp.zeros_like, weights))

    def train(
        self,
        params: Params,
        batch: Any,
        order: jax.Array,
        key: jax.Array | None,
        probe: Info | None,
    ) -> tuple[Training, jax.Array, Info | None]:
        """The last state, with the derivative of the rule; the last loss; what the rule met."""
        data, steps = (batch.inputs, batch.labels), order.shape[0]
        back = {"bptt": steps, "tbptt": min(self.truncation, steps)}.get(self.rule, 1)
        state, frozen = self.start(), lax.stop_gradient(params)
        if back < steps:
            state, _ = descend(frozen, state, order[:-back], *data)
        if self.unrolled:
            last, losses = descend(params, state, order[-back:], *data, segment=self.segment)
            return last, losses[-1], None
        last, step_loss = step(frozen, state, *examples(data, order[-1]))
        together = examples(data, order[-self.averaged :].reshape(-1))
        # No step at all: only the derivative is wanted, at a state that is there.
        settled, info = solvers.fixed_point(
            lambda theta, state: step(theta[0], state, *theta[1])[0],
            (params, together),
            state,
            method="picard",
            max_steps=0,
            probe=probe,
            adjoint=learning_rule(
                self.rule, self.truncation, uniform=self.uniform and self.rule == "rbp", key=key
            ),
        )
        last = jax.tree.map(lambda new, old: new + (old - lax.stop_gradient(old)), last, settled)
        return last, step_loss, info._replace(steps=jnp.full((), steps, jnp.int32))

    def loss(
        self,
        params: Params,
        batch: Any,
        *,
        key: jax.Array | None = None,
        probe: Info | None = None,
        solve: Mapping[str, Any] = NO_SETTINGS,
        carry: None = None,
    ) -> tuple[jax.Array, Outcome]:
        if self.averaged > batch.order.shape[1] and not self.unrolled:
            raise ValueError(
                f"averaged must be at most the number of steps, {batch.order.shape[1]}, "
                f"got {self.averaged}"
            )

        def one(order: jax.Array, probe: Info | None) -> tuple:
            last, step_loss, info = self.train(params, batch, order, key, probe)
            meta, sums = label_sums(
                scores(last.weights, batch.meta_inputs),
                batch.meta_labels,
                jnp.ones(batch.meta_labels.shape, bool),
            )
            wrong = sums["error"] / sums["count"]
            told = {"wrong": wrong, "step_loss": step_loss, "change": change(params, last)}
            return meta, told, info

        losses, told, info = jax.vmap(one)(batch.order, layer_probe(probe, 0))
        count = jnp.asarray(losses.shape[0], losses.dtype)
        named = {name: count * value for name, value in by_name(values(params)).items()}
        sums = jax.tree.map(jnp.sum, {"loss": losses, **told})
        return jnp.mean(losses), Outcome(
            lax.stop_gradient({**sums, **named, "count": count}),
            stacked([info] if info is not None else []),
        )
