"""Optimisers and schedules of optax by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from implicit_rnn.training.ranges import (
    COUNT,
    DROPPED,
    NOT_NEGATIVE,
    POSITIVE,
    Range,
    check_settings,
)

OPTIMISERS: dict[str, Callable[..., optax.GradientTransformation]] = {
    "adam": optax.adam,
    "adamw": optax.adamw,
    "momentum": lambda rate, momentum: optax.sgd(rate, momentum),
    "nesterov": lambda rate, momentum: optax.sgd(rate, momentum, nesterov=True),
    "radam": optax.radam,
    "rmsprop": optax.rmsprop,
    "sgd": optax.sgd,
}
_MOMENTUM = ("momentum", "nesterov")
_FACTOR, _WAIT = 0.5, 3  # of a plateau, where settings leave them open
_MOMENTS = ("adam", "adamw", "radam")
RANGES = {
    "rate": POSITIVE, "final": NOT_NEGATIVE, "warmup": NOT_NEGATIVE,
    "clip": Range(0, infinite=True), "momentum": DROPPED, "weight_decay": NOT_NEGATIVE,
    "l2": NOT_NEGATIVE, "ema": DROPPED, "beta1": DROPPED, "beta2": DROPPED, "epsilon": POSITIVE,
    "factor": Range(0, 1, least_open=True, most_open=True), "wait": COUNT,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class OptimiserSettings:
    """The `optimiser` table of a configuration.

    Attributes:
      name: one of `OPTIMISERS`.
      rate: learning rate; where a schedule starts, after the warm-up.
      schedule: of the rate over all updates: constant, cosine or linear to `final` times the rate,
        or exponential to it; `"plateau"`: constant but for `factor` and `wait`.
      final: see `schedule`.
      warmup: updates over which the rate rises from zero.
      clip: global norm that gradients are clipped to; 0, or infinite: they are not.
      momentum: of momentum and nesterov.
      beta1, beta2: decay of the means of gradients and of their squares, of adam, adamw and radam;
        None: .9 and .999.
      epsilon: of these three, added to the root of the squares' mean; None: 1e-8.
      factor, wait: of a plateau: the rate is multiplied by `factor` (None: one half) after every
        `wait` (None: three) evaluations on the validation set in a row without improvement.
      weight_decay: of adamw, apart from its gradients.
      l2: this times the parameters is added to the gradients, once they are clipped: what
        minimising `l2 / 2 |params|^2` beside the loss does.
      ema: decay of a running mean of the parameters, which is then what is evaluated; 0: none.
    """

    name: Literal["adam", "adamw", "momentum", "nesterov", "radam", "rmsprop", "sgd"] = "adam"
    rate: float = 5e-3
    schedule: Literal["constant", "cosine", "linear", "exponential", "plateau"] = "cosine"
    final: float = 0.0
    warmup: int = 0
    clip: float = 1.0
    momentum: float = 0.9
    weight_decay: float = 1e-4
    l2: float = 0.0
    ema: float = 0.0
    beta1: float | None = None
    beta2: float | None = None
    epsilon: float | None = None
    factor: float | None = None
    wait: int | None = None

    def __post_init__(self) -> None:
        check_settings(self, RANGES)
        if self.schedule == "exponential" and self.final <= 0:
            raise ValueError("an exponential schedule needs final > 0")


def schedule(settings: OptimiserSettings, updates: int) -> optax.Schedule:
    """The learning rate by update; on a plateau it is lowered beside this (`lowered`)."""
    rate, rest = settings.rate, max(updates - settings.warmup, 1)
    after: optax.Schedule = {
        "constant": lambda: optax.constant_schedule(rate),
        "plateau": lambda: optax.constant_schedule(rate),
        "cosine": lambda: optax.cosine_decay_schedule(rate, rest, settings.final),
        "linear": lambda: optax.linear_schedule(rate, rate * settings.final, rest),
        "exponential": lambda: optax.exponential_decay(rate, rest, settings.final),
    }[settings.schedule]()
    if not settings.warmup:
        return after
    rise = optax.linear_schedule(0.0, rate, settings.warmup)
    return optax.join_schedules([rise, after], [settings.warmup])


def optimiser_of(settings: OptimiserSettings, updates: int) -> optax.GradientTransformation:
    """The optimiser alone; clipping and bounds are the recipe's (`Recipe.optimiser`)."""
    options = {"momentum": settings.momentum} if settings.name in _MOMENTUM else {}
    if settings.name in _MOMENTS:
        given = {"b1": settings.beta1, "b2": settings.beta2, "eps": settings.epsilon}
        options = {name: value for name, value in given.items() if value is not None}
    if settings.name == "adamw":
        options |= {"weight_decay": settings.weight_decay}
    links = [optax.add_decayed_weights(settings.l2)] if settings.l2 else []
    links.append(OPTIMISERS[settings.name](schedule(settings, updates), **options))
    if settings.schedule == "plateau":
        links.append(optax.GradientTransformation(_whole, _lowered))
    return optax.chain(*links) if len(links) > 1 else links[0]


class Plateau(NamedTuple):
    """What is left of the learning rate."""

    lowered: jax.Array


def lowered(settings: OptimiserSettings, state: Any, waited: int) -> Any:
    """The state of an optimiser after so many evaluations in a row without improvement."""
    factor, wait = settings.factor or _FACTOR, settings.wait or _WAIT
    if settings.schedule != "plateau" or not waited or waited % wait:
        return state
    left = optax.tree_utils.tree_get(state, "lowered")
    return optax.tree_utils.tree_set(state, lowered=factor * left)


def left_of_rate(state: Any) -> float:
    """What plateaus have left of the learning rate, of 1."""
    left = optax.tree_utils.tree_get(state, "lowered")
    return 1.0 if left is None else float(left)


def _whole(params: Any) -> Plateau:
    return Plateau(jnp.ones(()))


def _lowered(changes: Any, state: Plateau, params: Any = None) -> tuple[Any, Plateau]:
    return jax.tree.map(lambda leaf: leaf * state.lowered.astype(leaf.dtype), changes), state
