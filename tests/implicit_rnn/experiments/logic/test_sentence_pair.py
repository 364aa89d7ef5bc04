"""The model of two sequences: by hand, and what every model must hold to."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import solvers
from implicit_rnn.experiments.logic.sentence_pair import SentencesBatch, sentence_pair
from implicit_rnn.models import encoder
from tests.implicit_rnn.models.checks import (
    assert_gradient,
    assert_learns,
    begin,
    log_softmax,
    lstm_by_hand,
    spoilt,
    value_and_gradient,
)

TIME, WIDTH, WORDS, LABELS = 4, 3, 5, 3


def example():
    keys = jax.random.split(jax.random.key(1))
    first, second = (jax.random.randint(key, (4, TIME), 0, WORDS) for key in keys)
    return SentencesBatch(
        first, jnp.array([4, 0, 2, 1]), second, jnp.array([1, 3, 0, 4]), jnp.array([1, 0, 2, -1])
    )


def model_of(name="lstm", **options):
    return sentence_pair(
        encoder(name, WIDTH), WORDS, LABELS, embedding_size=2, compare_size=4, **options
    )


def test_loss_by_hand_counts_no_empty_place():
    model = model_of()
    params, batch = begin(model), example()
    loss, outcome = jax.jit(model.loss)(params, batch)
    total = errors = 0
    for first, n, second, m, right in list(zip(*map(np.asarray, batch), strict=True))[:3]:
        u, v = (
            lstm_by_hand(params["encoder"][0], params["embedding"][tokens[:count]])[1]
            for tokens, count in ((first, n), (second, m))
        )
        seen = np.concatenate([u, v, u * v, np.abs(u - v)])
        hidden = seen @ params["compare"]["weights"] + params["compare"]["bias"]
        hidden = np.where(hidden > 0, hidden, np.exp(hidden) - 1)
        scores = hidden @ params["read"]["weights"] + params["read"]["bias"]
        total -= log_softmax(scores)[right]
        errors += np.argmax(scores) != right
    np.testing.assert_allclose(loss, total / 3, rtol=1e-5)
    sums = {name: float(value) for name, value in outcome.sums.items() if name != "loss"}
    assert sums == {"error": errors, "count": 3}


def test_padding_changes_nothing():
    model = model_of("bigru")
    params, batch = begin(model), example()
    dirty = batch._replace(
        first=spoilt(batch.first, batch.first_length, 10**6),
        second=spoilt(batch.second, batch.second_length, -7),
    )
    run = value_and_gradient(model)
    chex.assert_trees_all_equal(run(params, batch), run(params, dirty))


def test_gradient_is_that_of_finite_differences():
    model = model_of()
    with jax.enable_x64(True):
        params, batch = begin(model), example()
        assert_gradient(lambda params: model.loss(params, batch)[0], params)


def test_a_few_updates_lower_the_loss():
    assert_learns(model_of("gru"), example())


def test_dropout_needs_a_key():
    model, plain = model_of(dropout=0.5), model_of()
    params, batch = begin(model), example()
    run = jax.jit(lambda key: model.loss(params, batch, key=key)[0])
    assert run(jax.random.key(0)) != run(jax.random.key(1))
    assert model.loss(params, batch)[0] == plain.loss(params, batch)[0]


def test_solves_of_both_sequences_report_forwards_and_backwards():
    model = model_of("igru")
    params, batch = begin(model), example()
    settings = {"method": "banded", "adjoint": solvers.Sweeps(rtol=1e-3), "rtol": 1e-3}

    @jax.jit
    def run(params, probe):
        return jax.grad(
            lambda params, probe: model.loss(params, batch, probe=probe, solve=settings),
            argnums=1,
            has_aux=True,
        )(params, probe)

    backward, outcome = run(params, solvers.adjoint_probe((model.solves, 4)))
    for info in (backward, outcome.info):
        assert info.steps.shape == (2, 4) == (model.solves, 4)
    # The first sequences above, the second below; those of one step need no solving.
    for row, length in enumerate((batch.first_length, batch.second_length)):
        long = np.asarray(length) > 1
        np.testing.assert_array_equal(outcome.info.steps[row] > 1, long)
        assert np.all(np.asarray(backward.steps[row])[long & (batch.labels >= 0)] >= 1)


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="labels must be at least 2, got 1"):
        sentence_pair(encoder("gru", WIDTH), WORDS, 1)
    with pytest.raises(ValueError, match="vocabulary must be at least 1, got 0"):
        sentence_pair(encoder("gru", WIDTH), 0, LABELS)
