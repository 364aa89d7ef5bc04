"""The lecture's ice-cream store: from the weather alone, is there ice cream today?"""

from __future__ import annotations

import numpy as np

from implicit_rnn.experiments.task import Task
from implicit_rnn.training.sources import Examples, evaluated_alike, labelled

WEATHER = ("sunny", "cloudy", "rainy")  # what an input is one-hot of
LABELS = ("available", "run out")


def ice_cream(
    seed: int,
    count: int,
    days: int = 30,
    *,
    demand: tuple[int, ...] = (3, 2, 1),
    capacity: int = 8,
    reorder: int = 3,
    delay: int = 3,
    change: float = 0.5,
) -> Examples:
    """Days of weather, labelled by whether the store has run out by the evening.

    The owner's rule, of which a network sees nothing but its effect. The store opens with
    `capacity` litres and nothing on order. Every day, in this order:

    1. an order that was placed `delay` days ago arrives and fills the store up to `capacity`;
    2. the day's weather sells `demand` litres, or what is left; the label is 1 if nothing is left;
    3. if `reorder` litres or fewer are left and no order is under way, one is placed.

    The weather of the first day is any of the three kinds; each day after, with probability
    `change`, it is drawn anew, and else it stays.

    Args:
      seed: the same seed gives the same examples.
      count: how many stores.
      days: how long each is watched.
      demand: litres that a sunny, a cloudy and a rainy day sell.
      capacity: litres that the store holds.
      reorder: litres at which the owner orders.
      delay: days from an order to its arrival, at least 1.
      change: how restless the weather is, between 0 and 1.

    Returns:
      Examples with inputs `[count, days, 3]`, one-hot in the order of `WEATHER`, and labels that
      index `LABELS`.
    """
    if len(demand) != len(WEATHER) or min(demand) < 0:
        raise ValueError(f"demand must be {len(WEATHER)} numbers of litres, got {demand}")
    if delay < 1:
        raise ValueError(f"delay must be at least 1 day, got {delay}")
    if not 0 <= change <= 1:
        raise ValueError(f"change must lie between 0 and 1, got {change}")
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, len(WEATHER), (count, days))
    kept = rng.uniform(size=(count, days)) >= change
    weather = drawn.copy()
    for day in range(1, days):
        weather[:, day] = np.where(kept[:, day], weather[:, day - 1], drawn[:, day])

    stock, labels = np.full(count, capacity), np.zeros((count, days), np.int32)
    arrival = np.full(count, -1)  # the day on which an order comes; -1: none is under way
    for day in range(days):
        stock = np.where(arrival == day, capacity, stock)
        arrival = np.where(arrival == day, -1, arrival)
        stock = np.maximum(stock - np.asarray(demand)[weather[:, day]], 0)
        labels[:, day] = stock == 0
        arrival = np.where((stock <= reorder) & (arrival < 0), day + delay, arrival)
    inputs = np.eye(len(WEATHER), dtype=np.float32)[weather]
    return Examples(inputs, labels, np.full(count, days, np.int32))


def ice_cream_task(
    *,
    seed: int = 0,
    train: int = 5_000,
    valid: int = 500,
    test: int = 1_000,
    days: int = 30,
    demand: tuple[int, ...] = (3, 2, 1),
    capacity: int = 8,
    reorder: int = 3,
    delay: int = 3,
    change: float = 0.5,
) -> Task:
    """On which evenings a store has run out of ice cream, from the weather alone.

    Args:
      seed: of all three sets, which are drawn apart.
      train, valid, test: how many stores.
      days, demand, capacity, reorder, delay, change: as for `ice_cream`.
    """
    splits = {}
    for number, (name, count) in enumerate({"train": train, "valid": valid, "test": test}.items()):
        splits[name] = ice_cream(
            3 * seed + number,
            count,
            days,
            demand=demand,
            capacity=capacity,
            reorder=reorder,
            delay=delay,
            change=change,
        )
    return Task(
        "tagging",
        {"input_size": len(WEATHER), "labels": len(LABELS)},
        evaluated_alike({name: labelled(examples) for name, examples in splits.items()}),
        "error",
        {"examples": splits},
    )
