"""What a training by gradients of its hyperparameters keeps, begins with and refuses."""

from __future__ import annotations

import itertools
import math

import jax
import numpy as np
import pytest

from implicit_rnn.experiments.hyper.descent import values
from tests.implicit_rnn.experiments.hyper.test_model import WIDTHS, drawn, made


def temporary(rule, steps, **settings):
    """Bytes that a gradient needs beside what it is given."""
    model, batch = made(rule, 4, **settings), drawn(steps, minibatch=5, dtype=np.float32)
    params = model.init(jax.random.key(0))
    lowered = jax.jit(jax.grad(lambda p, b: model.loss(p, b)[0])).lower(params, batch)
    return lowered.compile().memory_analysis().temp_size_in_bytes


@pytest.mark.slow
def test_memory_at_the_state_does_not_grow_with_the_training():
    short, long = temporary("neumann", 20), temporary("neumann", 2000)
    # Only the order itself, which a program may copy.
    assert long - short < 2000 * 5 * 4 + 1000
    state = 4 * 2 * sum((a + 1) * b for a, b in itertools.pairwise(WIDTHS))
    back, segmented = temporary("bptt", 2000), temporary("bptt", 2000, segment=40)
    assert back > 2000 * state
    assert segmented < back / 10


def test_hyperparameters_begin_where_they_should():
    model = made("neumann", 1, rate=math.exp(-1), momentum=0.5, decay=0.0)
    found = values(model.init(jax.random.key(0)))
    assert set(found) == {"rate", "momentum"}
    assert sum(leaf.size for leaf in jax.tree.leaves(found)) == 4 * (len(WIDTHS) - 1)
    np.testing.assert_allclose(found["rate"]["weights"], math.exp(-1), rtol=1e-6)
    np.testing.assert_allclose(found["momentum"]["biases"], 0.5, rtol=1e-6)


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"momentum": 1.0}, "momentum"), ({"rate": 0.0}, "rate"), ({"averaged": 0}, "averaged"),
        ({"truncation": 0}, "truncation"), ({"segment": -1}, "segment"), ({"rule": "sgd"}, "rule"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_are_refused(settings, word):
    with pytest.raises(ValueError, match=word):
        made(**({"rule": "neumann", "truncation": 3} | settings))


def test_more_mini_batches_than_steps_are_refused():
    model = made("neumann", 1, averaged=4)
    with pytest.raises(ValueError, match=r"at most the number of steps, 3"):
        model.loss(model.init(jax.random.key(0)), drawn(3, dtype=np.float32))
