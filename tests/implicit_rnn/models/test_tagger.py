"""The tagger: its loss by hand, and what every model must hold to."""

from __future__ import annotations

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import solvers
from implicit_rnn.models import encoder, metrics, tagger
from tests.implicit_rnn.models.checks import (
    assert_gradient,
    assert_learns,
    begin,
    log_softmax,
    lstm_by_hand,
    spoilt,
    value_and_gradient,
)

TIME, WIDTH, INPUTS = 4, 3, 2


class Batch(NamedTuple):
    inputs: jax.Array
    labels: jax.Array
    length: jax.Array


def example(labels):
    keys = jax.random.split(jax.random.key(1))
    length = jnp.array([4, 0, 2])
    return Batch(
        jax.random.normal(keys[0], (3, TIME, INPUTS)),
        jax.random.randint(keys[1], (3, TIME), 0, labels),
        length,
    )


@pytest.mark.parametrize("labels", [2, 3])
def test_loss_by_hand(labels):
    model = tagger(encoder("lstm", WIDTH), INPUTS, labels)
    params, batch = begin(model), example(labels)
    loss, outcome = jax.jit(model.loss)(params, batch)
    total = errors = 0
    for x, right, n in zip(*map(np.asarray, batch), strict=True):
        outputs, _, _ = lstm_by_hand(params["encoder"][0], np.asarray(x)[:n])
        scores = outputs @ params["read"]["weights"] + params["read"]["bias"]
        if labels == 2:
            scores = np.concatenate([0 * scores, scores], axis=1)
        for t in range(n):
            total -= log_softmax(scores[t])[right[t]]
            errors += np.argmax(scores[t]) != right[t]
    np.testing.assert_allclose(loss, total / 6, rtol=1e-5)
    assert outcome.sums["count"] == 6
    assert outcome.sums["error"] == errors
    assert set(metrics(outcome.sums)) == {"loss", "error"}


@pytest.mark.parametrize("labels", [2, 3])
def test_padding_changes_nothing(labels):
    model = tagger(encoder("lstm", WIDTH), INPUTS, labels)
    params, batch = begin(model), example(labels)
    run = value_and_gradient(model)
    dirty = Batch(
        spoilt(batch.inputs, batch.length, np.nan),
        spoilt(batch.labels, batch.length, 10**6),
        batch.length,
    )
    chex.assert_trees_all_equal(run(params, batch), run(params, dirty))


def test_gradient_through_a_solve():
    settings = {
        "method": "banded", "adjoint": solvers.Sweeps(rtol=1e-12), "rtol": 1e-12,
    }  # fmt: skip
    model = tagger(encoder("igru", WIDTH), INPUTS, 3)
    with jax.enable_x64(True):
        params, batch = begin(model), example(3)
        assert_gradient(lambda params: model.loss(params, batch, solve=settings)[0], params)


def test_a_few_updates_lower_the_loss():
    model = tagger(encoder("gru", WIDTH), INPUTS, 3)
    assert_learns(model, example(3), rate=0.1)


def test_dropout_only_with_a_key():
    model = tagger(encoder("gru", WIDTH), INPUTS, 3, dropout=0.5)
    params, batch = begin(model), example(3)
    plain = jax.jit(tagger(encoder("gru", WIDTH), INPUTS, 3).loss)(params, batch)[0]
    assert jax.jit(model.loss)(params, batch)[0] == plain
    assert jax.jit(model.loss)(params, batch, key=jax.random.key(1))[0] != plain


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="labels must be at least 2"):
        tagger(encoder("gru", WIDTH), INPUTS, 1)


def test_a_sum_is_divided_by_its_own_count_where_it_has_one():
    sums = {"loss": 6.0, "count": 3.0, "exact": 1.0, "count_exact": 4.0}
    assert metrics(sums) == {"loss": 2.0, "exact": 0.25}
    assert metrics({"loss": 0.0, "count": 0.0}) == {"loss": 0.0}
