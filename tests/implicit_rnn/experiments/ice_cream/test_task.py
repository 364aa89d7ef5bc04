"""The ice-cream store: labels follow the stated policy, and a small recurrent network learns it."""

from __future__ import annotations

import numpy as np
import pytest

from implicit_rnn.experiments.config import resolve
from implicit_rnn.experiments.ice_cream.task import ice_cream
from implicit_rnn.experiments.registry import TASKS
from implicit_rnn.experiments.train import trainer_of


def evenings(weather, demand=(3, 2, 1), capacity=8, reorder=3, delay=3):
    """The policy told as a diary of one store: what is on the road, day by day."""
    litres, road = capacity, []
    for kind in weather:
        road = [days - 1 for days in road]
        if 0 in road:
            road.remove(0)
            litres = capacity
        litres -= min(litres, demand[kind])
        yield int(litres == 0)
        if not road and litres <= reorder:
            road.append(delay)


@pytest.mark.parametrize(
    "policy",
    [
        {},
        {"delay": 1, "reorder": 0},
        {"reorder": 0, "delay": 5},
        {"demand": (4, 0, 1), "capacity": 5, "reorder": 2, "delay": 2},
    ],
)
def test_labels_are_those_of_the_policy(policy):
    examples = ice_cream(0, 40, 50, **policy)
    assert examples.inputs.shape == (40, 50, 3)
    assert examples.inputs.dtype == np.float32
    assert np.all(examples.length == 50)
    assert np.all(np.sort(examples.inputs, axis=-1) == [0, 0, 1])
    for inputs, labels in zip(examples.inputs, examples.labels, strict=True):
        assert list(labels) == list(evenings(inputs.argmax(axis=-1), **policy))
    assert 0 < examples.labels.mean() < 1, "both answers occur"


def test_in_steady_sunshine_the_store_is_empty_from_the_third_day_until_the_order_comes():
    # 8 litres, then 5, then 2 and an order, nothing, nothing, and 8 come in the morning.
    examples = ice_cream(0, 20, 7, change=0.0)
    sunny = examples.labels[examples.inputs[:, 0, 0] == 1]
    assert len(sunny) > 0
    assert np.all(sunny == [0, 0, 1, 1, 0, 0, 1])


def test_seed_decides_everything():
    a, b, c = (ice_cream(seed, 9, 12) for seed in (3, 3, 4))
    np.testing.assert_array_equal(a.inputs, b.inputs)
    np.testing.assert_array_equal(a.labels, b.labels)
    assert np.any(a.inputs != c.inputs)
    splits = TASKS["ice_cream"](train=9, valid=9, test=9, days=12).details["examples"]
    assert np.any(splits["train"].inputs != splits["test"].inputs)


@pytest.mark.parametrize(
    ("option", "message"),
    [({"delay": 0}, "delay"), ({"demand": (1, 2)}, "demand"), ({"change": 1.5}, "change")],
)
def test_a_store_that_cannot_be_is_refused(option, message):
    with pytest.raises(ValueError, match=message):
        ice_cream(0, 1, **option)


def test_a_small_recurrent_network_learns_the_policy_from_the_weather():
    content = {
        "task": {"name": "ice_cream", "train": 1600, "valid": 50, "test": 200, "days": 20},
        "model": {"name": "tagger", "encoder": "rnn", "hidden": 16},
        "optimiser": {"rate": 0.02},
        "training": {"updates": 200, "buckets": 1, "evaluate_batch": 200},
    }
    trainer = trainer_of(resolve(content, "small.toml").runs[""])
    train, state = trainer.task.splits["train"], trainer.init()
    for epoch in range(4):
        for entry in train.plan(32, 1, np.random.default_rng(epoch)):
            state = trainer.step(state, train.batch(entry))
    error = trainer.evaluate(state, trainer.task.splits["test"])["error"]
    majority = trainer.task.details["examples"]["test"].labels.mean()
    assert majority > 0.25
    assert error < 0.2 * majority
