"""A label for every step, each given the labels before it (figure 10.10): trained by teacher
forcing or scheduled sampling."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from implicit_rnn import sequence
from implicit_rnn.cells.base import Cell, Params, State
from implicit_rnn.models.base import NO_SETTINGS, Outcome, inside, label_sums
from implicit_rnn.models.decoding import perturbed
from implicit_rnn.models.readout import init_read, read
from solvers import Info


class OutputRecurrence(NamedTuple):
    """A `Model` of sequences of labels given sequences of inputs.

    Attributes:
      init, loss, bounds, solves, carry: as for every `Network`; a batch has `inputs`
        `[batch, time, features]`, `labels` `[batch, time]` and `length` `[batch]`; sums are `loss`,
        `error` (wrong labels, given right ones before them) and `count` (steps). `loss` also takes
        `sampling=`, in place of the model's own, for a schedule; without a key it is 0.
      generate: `(params, inputs, length, *, key=None, temperature=1) -> (labels [batch, time],
        log-probability [batch])`: fed with its own outputs, the likeliest at each step or with a
        key drawn ones; zero past the length.
    """

    init: Callable[[jax.Array], Params]
    loss: Callable[..., tuple[jax.Array, Outcome]]
    bounds: Any
    solves: int
    generate: Callable[..., tuple[jax.Array, jax.Array]]
    carry: None = None


def output_recurrence(
    cell: Cell, input_size: int, labels: int, *, sampling: float = 0.0
) -> OutputRecurrence:
    """A causal cell that is given the label before beside the input:

        p(y_1 ... y_T | x) = prod_t softmax(V output_t + c)[y_t],    state_t from [x_t, y_{t-1}],

    the label one-hot, and zero before the first.

    Args:
      cell: any causal one.
      input_size: width of the inputs.
      labels: how many.
      sampling: chance that a step of training is given a label drawn from the model's own
        distribution in place of the right one (Bengio et al., 2015). 0 is teacher forcing: all
        steps are known beforehand, and nothing is random.

    Parameters: `cell`, and `read` with `weights` `[width, labels]` and `bias`.
    """
    if not cell.causal:
        raise ValueError(f"labels come one after the other; {cell.name} looks ahead: use a tagger")
    if labels < 2:
        raise ValueError(f"labels must be at least 2, got {labels}")
    if not 0 <= sampling <= 1:
        raise ValueError(f"sampling must be at least 0 and at most 1, got {sampling}")
    default = sampling

    parts = _FedBack(cell=cell, input_size=input_size, labels=labels, default=default)
    return OutputRecurrence(parts.init, parts.loss, {}, 0, parts.generate)


@dataclasses.dataclass(frozen=True, eq=False)
class _FedBack:
    """What the model does."""

    cell: Cell
    input_size: int
    labels: int
    default: float

    def init(self, key: jax.Array) -> Params:
        keys = jax.random.split(key)
        return {
            "cell": self.cell.init(keys[0], self.input_size + self.labels),
            "read": init_read(keys[1], self.cell.hidden_size, self.labels),
        }

    def given(self, x: jax.Array, previous: jax.Array) -> jax.Array:
        return jnp.concatenate([x, jax.nn.one_hot(previous, self.labels, dtype=x.dtype)], axis=-1)

    def forced(
        self, params: Params, x: jax.Array, right: jax.Array, length: jax.Array
    ) -> jax.Array:
        """Scores `[time, labels]` where every step is given the right label before it."""
        previous = jnp.concatenate([jnp.full_like(right, -1, shape=1), right[:-1]])
        outputs, _ = sequence.unroll(
            self.cell, params["cell"], self.given(x, previous), length=length
        )
        return read(params["read"], outputs)

    def fed(
        self,
        params: Params,
        x: jax.Array,
        length: jax.Array,
        pick: Callable[[jax.Array, jax.Array], jax.Array],
    ) -> tuple[jax.Array, jax.Array]:
        """Scores, and the labels that `pick(time, scores)` feeds back."""

        def body(carried: tuple, row: tuple) -> tuple[tuple, tuple]:
            state, previous = carried
            time, x = row
            state = self.cell.step(
                params["cell"], self.cell.project(params["cell"], self.given(x, previous)), state
            )
            scores = read(params["read"], self.cell.output(state))
            picked = pick(time, scores).astype(jnp.int32)
            return (state, picked), (scores, picked)

        times = jnp.arange(x.shape[0])
        x = jnp.where((times < length)[:, None], x, 0)
        start: tuple[State, jax.Array] = self.cell.initial_state(params["cell"]), jnp.int32(-1)
        return lax.scan(body, start, (times, x))[1]

    def loss(
        self,
        params: Params,
        batch: Any,
        *,
        key: jax.Array | None = None,
        probe: Info | None = None,
        solve: Mapping[str, Any] = NO_SETTINGS,
        carry: None = None,
        sampling: float | jax.Array | None = None,
    ) -> tuple[jax.Array, Outcome]:
        chance = self.default if sampling is None else sampling
        mask = inside(batch.length, batch.inputs.shape[1])
        right = jnp.where(mask, batch.labels, 0)

        def sampled(x: jax.Array, right: jax.Array, length: jax.Array, key: jax.Array) -> jax.Array:
            def pick(time: jax.Array, scores: jax.Array) -> jax.Array:
                keys = jax.random.split(jax.random.fold_in(key, time))
                drawn = jax.random.categorical(keys[0], scores)
                return jnp.where(jax.random.bernoulli(keys[1], chance), drawn, right[time])

            return self.fed(params, x, length, pick)[0]

        if key is None or (isinstance(chance, int | float) and chance == 0):
            found = jax.vmap(lambda *one: self.forced(params, *one))(
                batch.inputs, right, batch.length
            )
        else:
            keys = jax.random.split(key, batch.inputs.shape[0])
            found = jax.vmap(sampled)(batch.inputs, right, batch.length, keys)
        mean, sums = label_sums(found, right, mask)
        return mean, Outcome(sums)

    def generate(
        self,
        params: Params,
        inputs: jax.Array,
        length: jax.Array,
        *,
        key: jax.Array | None = None,
        temperature: float | jax.Array = 1.0,
    ) -> tuple[jax.Array, jax.Array]:
        def one(
            x: jax.Array, length: jax.Array, key: jax.Array | None
        ) -> tuple[jax.Array, jax.Array]:
            def pick(time: jax.Array, scores: jax.Array) -> jax.Array:
                own = None if key is None else jax.random.fold_in(key, time)
                return jnp.argmax(perturbed(own, scores, temperature))

            scores, picked = self.fed(params, x, length, pick)
            mask = jnp.arange(x.shape[0]) < length
            chances = jnp.take_along_axis(jax.nn.log_softmax(scores), picked[:, None], axis=-1)
            return jnp.where(mask, picked, 0), jnp.sum(jnp.where(mask, chances[:, 0], 0))

        if key is None:
            return jax.vmap(lambda x, n: one(x, n, None))(inputs, length)
        return jax.vmap(one)(inputs, length, jax.random.split(key, inputs.shape[0]))
