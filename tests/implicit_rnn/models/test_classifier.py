"""The classifier: every way of pooling by hand, and what every model must hold to."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import solvers
from implicit_rnn.models import LabelledBatch, classifier, encoder
from tests.implicit_rnn.models.checks import (
    assert_gradient,
    assert_learns,
    begin,
    log_softmax,
    lstm_by_hand,
    spoilt,
    value_and_gradient,
)

TIME, WIDTH, INPUTS, LABELS = 4, 3, 2, 2
POOLINGS = ["last", "mean", "max", "attention"]


def example():
    inputs = jax.random.normal(jax.random.key(1), (4, TIME, INPUTS))
    return LabelledBatch(inputs, jnp.array([1, 0, 1, 0]), jnp.array([4, 0, 2, 1]))


def model_of(pooling, name="lstm"):
    return classifier(encoder(name, WIDTH), INPUTS, LABELS, pooling=pooling)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_loss_by_hand(pooling):
    model = model_of(pooling)
    params, batch = begin(model), example()
    loss, outcome = jax.jit(model.loss)(params, batch)
    total = errors = 0
    for x, right, n in zip(*map(np.asarray, batch), strict=True):
        features, _, _ = lstm_by_hand(params["encoder"][0], np.asarray(x)[:n])
        if not n:
            vector = np.zeros(WIDTH)
        elif pooling == "last":
            vector = features[-1]
        elif pooling == "max":
            vector = np.max(features, axis=0)
        else:
            query = params["query"] if pooling == "attention" else np.zeros(WIDTH)
            weights = np.exp(features @ query / np.sqrt(WIDTH))
            vector = weights @ features / weights.sum()
        scores = vector @ params["read"]["weights"] + params["read"]["bias"]
        total -= log_softmax(scores)[right]
        errors += np.argmax(scores) != right
    np.testing.assert_allclose(loss, total / 4, rtol=1e-5)
    assert outcome.sums["error"] == errors
    assert outcome.sums["count"] == 4


@pytest.mark.parametrize(
    "pooling", [*(pytest.param(p, marks=pytest.mark.slow) for p in POOLINGS[:3]), "attention"]
)
def test_padding_changes_nothing(pooling):
    model = model_of(pooling)
    params, batch = begin(model), example()
    dirty = batch._replace(inputs=spoilt(batch.inputs, batch.length, np.nan))
    run = value_and_gradient(model)
    chex.assert_trees_all_equal(run(params, batch), run(params, dirty))


def test_a_label_below_zero_counts_nowhere():
    model = model_of("last")
    params, batch = begin(model), example()
    run = value_and_gradient(model)
    more = jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf[:1]]), batch)
    more = more._replace(labels=more.labels.at[4].set(-1))
    chex.assert_trees_all_close(run(params, batch), run(params, more), rtol=1e-5, atol=1e-6)


def test_gradient_is_that_of_finite_differences():
    model = model_of("attention")
    with jax.enable_x64(True):
        params, batch = begin(model), example()
        assert_gradient(lambda params: model.loss(params, batch)[0], params)


def test_a_few_updates_lower_the_loss():
    model = model_of("attention", "bigru")
    assert_learns(model, example())


def test_implicit_encoders_report_their_solves():
    model = classifier(encoder("igru", WIDTH), INPUTS, LABELS)
    params, batch = begin(model), example()
    settings = {"method": "banded", "adjoint": solvers.Sweeps(rtol=1e-4)}
    _, outcome = jax.jit(lambda p: model.loss(p, batch, solve=settings))(params)
    assert outcome.info.steps.shape == (model.solves, 4) == (1, 4)


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="labels must be at least 2"):
        classifier(encoder("gru", WIDTH), INPUTS, 1)
    with pytest.raises(ValueError, match='"max" or "attention", got \'sum\''):
        classifier(encoder("gru", WIDTH), INPUTS, 2, pooling="sum")
