"""Output recurrence: teacher forcing by hand, scheduled sampling, and its own outputs."""

from __future__ import annotations

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from implicit_rnn import cells
from implicit_rnn.models import output_recurrence
from tests.implicit_rnn.models.checks import (
    assert_gradient,
    assert_learns,
    begin,
    log_softmax,
    lstm_by_hand,
    spoilt,
    value_and_gradient,
)

TIME, WIDTH, INPUTS, LABELS = 4, 3, 2, 3


class Batch(NamedTuple):
    inputs: jax.Array
    labels: jax.Array
    length: jax.Array


def example():
    keys = jax.random.split(jax.random.key(1))
    inputs = jax.random.normal(keys[0], (4, TIME, INPUTS))
    labels = jax.random.randint(keys[1], (4, TIME), 0, LABELS)
    return Batch(inputs, labels, jnp.array([4, 0, 2, 1]))


def model_of(sampling=0.0):
    return output_recurrence(cells.lstm(WIDTH), INPUTS, LABELS, sampling=sampling)


def nats_by_hand(params, x, labels):
    """`-log p(labels | x)`, every step given the right label before it."""
    before = np.concatenate([np.zeros((1, LABELS)), np.eye(LABELS)[labels]])[: len(x)]
    outputs, _, _ = lstm_by_hand(params["cell"], np.concatenate([x, before], axis=1))
    scores = outputs @ np.asarray(params["read"]["weights"]) + params["read"]["bias"]
    return -np.sum(log_softmax(scores)[np.arange(len(x)), labels])


def test_teacher_forcing_by_hand():
    model = model_of()
    params, batch = begin(model), example()
    loss, outcome = jax.jit(model.loss)(params, batch)
    total = sum(
        nats_by_hand(params, x[:n], labels[:n])
        for x, labels, n in zip(*map(np.asarray, batch), strict=True)
        if n
    )
    np.testing.assert_allclose(loss, total / 7, rtol=1e-5)
    assert outcome.sums["count"] == 7


@pytest.mark.parametrize("sampling", [0.0, 0.5])
def test_padding_changes_nothing(sampling):
    model = model_of(sampling)
    params, batch = begin(model), example()
    dirty = Batch(
        spoilt(batch.inputs, batch.length, np.nan),
        spoilt(batch.labels, batch.length, 10**6),
        batch.length,
    )
    run = value_and_gradient(model, key=jax.random.key(3))
    chex.assert_trees_all_equal(run(params, batch), run(params, dirty))


def test_a_schedule_runs_from_teacher_forcing_to_its_own_samples():
    model = model_of(1.0)
    params, batch = begin(model), example()
    run = jax.jit(lambda chance, key: model.loss(params, batch, key=key, sampling=chance)[0])
    own = jax.jit(model.loss)
    forced = own(params, batch)[0]  # without a key nothing is drawn
    key = jax.random.key(3)
    np.testing.assert_allclose(run(0.0, key), forced, rtol=1e-6)
    np.testing.assert_allclose(run(1.0, key), own(params, batch, key=key)[0], rtol=1e-6)
    assert run(1.0, key) != forced
    assert run(1.0, key) != run(1.0, jax.random.key(4))


def test_steps_after_a_sample_are_given_the_sample():
    """With the model's own samples alone, the right labels are not an input at all."""
    model = model_of(1.0)
    params, batch = begin(model), example()

    @jax.jit
    def last_step(labels):
        length = jnp.full(4, TIME)
        before = model.loss(params, Batch(batch.inputs, labels, length - 1), key=jax.random.key(3))
        whole = model.loss(params, Batch(batch.inputs, labels, length), key=jax.random.key(3))
        return whole[1].sums["loss"] - before[1].sums["loss"]

    others = batch.labels.at[:, :-1].set((batch.labels[:, :-1] + 1) % LABELS)
    np.testing.assert_allclose(last_step(batch.labels), last_step(others), rtol=1e-4)


@pytest.mark.parametrize("sampling", [0.0, pytest.param(0.5, marks=pytest.mark.slow)])
def test_gradient_is_that_of_finite_differences(sampling):
    model = model_of(sampling)
    with jax.enable_x64(True):
        params, batch = begin(model), example()
        key = jax.random.key(3)
        assert_gradient(lambda params: model.loss(params, batch, key=key)[0], params)


def test_a_few_updates_lower_the_loss():
    model = model_of()
    assert_learns(model, example(), rate=0.1)


@pytest.mark.parametrize("key", [None, 5])
def test_generated_labels_are_as_likely_as_the_loss_says(key):
    model = model_of()
    params, batch = begin(model), example()
    key = None if key is None else jax.random.key(key)
    dirty = spoilt(batch.inputs, batch.length, np.nan)
    labels, chance = jax.jit(model.generate)(params, dirty, batch.length, key=key)
    np.testing.assert_array_equal(spoilt(labels, batch.length, 0), labels)
    rows = map(np.asarray, (batch.inputs, labels, batch.length, chance))
    for x, found, n, told in zip(*rows, strict=True):
        expected = -nats_by_hand(params, x[:n], found[:n]) if n else 0.0
        np.testing.assert_allclose(told, expected, rtol=1e-5)
    if key is None:  # each is the likeliest given those before it
        _, outcome = jax.jit(model.loss)(params, Batch(batch.inputs, labels, batch.length))
        assert outcome.sums["error"] == 0


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="looks ahead: use a tagger"):
        output_recurrence(cells.implicit(cells.gru(WIDTH)), INPUTS, LABELS)
    with pytest.raises(ValueError, match="labels must be at least 2"):
        output_recurrence(cells.gru(WIDTH), INPUTS, 1)
    with pytest.raises(ValueError, match="at most 1, got 2"):
        model_of(2)
