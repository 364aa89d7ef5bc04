"""One training: steps of gradient descent with momentum, a rate and a momentum for every layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from implicit_rnn.cells.base import Params
from implicit_rnn.models.base import label_sums

PARTS = ("weights", "biases")
Layers = list[dict[str, jax.Array]]  # `weights` [in, out] and `biases` [out] of every layer


class Training(NamedTuple):
    """The state of an inner training."""

    weights: Layers
    velocity: Layers


def descend(
    params: Params,
    state: Training,
    order: jax.Array,
    inputs: jax.Array,
    labels: jax.Array,
    *,
    segment: int = 0,
) -> tuple[Training, jax.Array]:
    """Some steps of one training.

    Args:
      params: hyperparameters.
      state: where to begin.
      order: which examples every step sees, `[steps, mini-batch]`.
      inputs: all examples, `[examples, features]`.
      labels: `[examples]`.
      segment: as for `hyper_optimiser`.

    Returns:
      The state after the last step, and the loss before every step.
    """

    def one(state: Training, numbers: jax.Array) -> tuple[Training, jax.Array]:
        return step(params, state, *examples((inputs, labels), numbers))

    def several(state: Training, order: jax.Array) -> tuple[Training, jax.Array]:
        return lax.scan(one, state, order)

    if not segment:
        return several(state, order)
    whole = order.shape[0] // segment * segment
    grouped = order[:whole].reshape(-1, segment, order.shape[1])
    state, first = lax.scan(jax.checkpoint(several), state, grouped)
    state, rest = several(state, order[whole:])
    return state, jnp.concatenate([first.reshape(-1), rest])


_SCALES: dict[str, tuple[Callable, Callable]] = {
    "rate": (jnp.exp, jnp.log),
    "momentum": (jax.nn.sigmoid, jax.scipy.special.logit),
    "decay": (jnp.exp, jnp.log),
}  # from parameters to values, and back


def values(params: Params) -> Params:
    """Hyperparameters as they are used, from logarithms and log-odds."""
    return {name: jax.tree.map(_SCALES[name][0], part) for name, part in params.items()}


def by_name(found: Params) -> dict[str, jax.Array]:
    """Values one by one: `rate_weights_1`, ..."""
    return {
        f"{name}_{part}_{layer + 1}": column[layer]
        for name, parts in found.items()
        for part, column in parts.items()
        for layer in range(column.shape[0])
    }


def from_names(row: Mapping[str, float]) -> Params:
    """The parameters that `by_name` of their values gave: those of a line of `metrics.jsonl`."""
    found: Params = {}
    for name, (_, back) in _SCALES.items():
        layers = sum(key.startswith(f"{name}_weights_") for key in row)
        if layers:
            found[name] = {
                part: back(jnp.array([row[f"{name}_{part}_{n + 1}"] for n in range(layers)]))
                for part in PARTS
            }
    return found


def step(
    params: Params, state: Training, inputs: jax.Array, labels: jax.Array
) -> tuple[Training, jax.Array]:
    """`F`: one step of gradient descent with momentum, and the loss before it.

    Args:
      params: hyperparameters.
      state: weights and velocity.
      inputs: `[examples, features]`.
      labels: `[examples]`.
    """
    loss, gradient = jax.value_and_grad(cross_entropy)(state.weights, inputs, labels)
    found = values(params)
    weights: Layers = [{} for _ in gradient]
    velocity: Layers = [{} for _ in gradient]
    for layer, parts in enumerate(gradient):
        for part, slope in parts.items():
            old = state.weights[layer][part]
            keep, rate = found["momentum"][part][layer], found["rate"][part][layer]
            if "decay" in found:
                slope = slope + found["decay"][part][layer] * old
            speed = keep * state.velocity[layer][part] - (1 - keep) * slope
            velocity[layer][part], weights[layer][part] = speed, old + rate * speed
    return Training(weights, velocity), loss


def change(params: Params, state: Training) -> jax.Array:
    """By how much the last step has changed the weights, relative to their norm."""
    rates = values(params)["rate"]
    moved = [
        {part: rates[part][layer] * speed for part, speed in parts.items()}
        for layer, parts in enumerate(state.velocity)
    ]
    return optax.tree.norm(moved) / optax.tree.norm(state.weights)


def cross_entropy(weights: Layers, inputs: jax.Array, labels: jax.Array) -> jax.Array:
    """Mean over the examples."""
    return label_sums(scores(weights, inputs), labels, jnp.ones(labels.shape, bool))[0]


def scores(weights: Layers, inputs: jax.Array) -> jax.Array:
    """What the network gives each label: `[examples, labels]`."""
    for number, layer in enumerate(weights):
        if number:
            inputs = jnp.tanh(inputs)
        inputs = inputs @ layer["weights"] + layer["biases"]
    return inputs


def examples(data: tuple[jax.Array, jax.Array], numbers: jax.Array) -> tuple[jax.Array, ...]:
    """Those of given numbers, of all inputs and labels."""
    return tuple(jnp.take(leaf, numbers, axis=0, mode="clip") for leaf in data)
