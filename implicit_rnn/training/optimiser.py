"""Optimisers and schedules of optax by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Literal

import optax

from implicit_rnn.training.ranges import DROPPED, NOT_NEGATIVE, POSITIVE, Range, check_settings

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
RANGES = {
    "rate": POSITIVE, "final": NOT_NEGATIVE, "warmup": NOT_NEGATIVE,
    "clip": Range(0, infinite=True), "momentum": DROPPED, "weight_decay": NOT_NEGATIVE,
    "l2": NOT_NEGATIVE, "ema": DROPPED,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class OptimiserSettings:
    """The `optimiser` table of a configuration.

    Attributes:
      name: one of `OPTIMISERS`.
      rate: learning rate; where a schedule starts, after the warm-up.
      schedule: of the rate over all updates: constant, cosine or linear to `final` times the rate,
        or exponential to it.
      final: see `schedule`.
      warmup: updates over which the rate rises from zero.
      clip: global norm that gradients are clipped to; 0, or infinite: they are not.
      momentum: of momentum and nesterov.
      weight_decay: of adamw, apart from its gradients.
      l2: this times the parameters is added to the gradients, once they are clipped: what
        minimising `l2 / 2 |params|^2` beside the loss does.
      ema: decay of a running mean of the parameters, which is then what is evaluated; 0: none.
    """

    name: Literal["adam", "adamw", "momentum", "nesterov", "radam", "rmsprop", "sgd"] = "adam"
    rate: float = 5e-3
    schedule: Literal["constant", "cosine", "linear", "exponential"] = "cosine"
    final: float = 0.0
    warmup: int = 0
    clip: float = 1.0
    momentum: float = 0.9
    weight_decay: float = 1e-4
    l2: float = 0.0
    ema: float = 0.0

    def __post_init__(self) -> None:
        check_settings(self, RANGES)
        if self.schedule == "exponential" and self.final <= 0:
            raise ValueError("an exponential schedule needs final > 0")


def schedule(settings: OptimiserSettings, updates: int) -> optax.Schedule:
    """The learning rate by update."""
    rate, rest = settings.rate, max(updates - settings.warmup, 1)
    after: optax.Schedule = {
        "constant": lambda: optax.constant_schedule(rate),
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
    if settings.name == "adamw":
        options = {"weight_decay": settings.weight_decay}
    made = OPTIMISERS[settings.name](schedule(settings, updates), **options)
    return optax.chain(optax.add_decayed_weights(settings.l2), made) if settings.l2 else made
