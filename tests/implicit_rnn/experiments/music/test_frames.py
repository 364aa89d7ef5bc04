"""The model of frames: its likelihood by hand, what it may see, what padding does."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from implicit_rnn.experiments.music.frames import FramesBatch, frames_model
from implicit_rnn.models import encoder, metrics, recalling, tcn
from tests.implicit_rnn.cells.equations import sigmoid
from tests.implicit_rnn.models.checks import (
    assert_gradient,
    assert_learns,
    begin,
    lstm_by_hand,
    spoilt,
    value_and_gradient,
)

TIME, WIDTH, KEYS = 5, 3, 4
LENGTH = np.array([5, 0, 3, 1])


def example(dtype=np.float32):
    played = np.random.default_rng(0).random((len(LENGTH), TIME + 1, KEYS)) < 0.4
    return FramesBatch(spoilt(played.astype(dtype), LENGTH + 1, 0).astype(dtype), LENGTH)


def test_the_loss_is_the_negative_log_likelihood_of_a_frame():
    """Summed over keys, in the mean over all predicted frames of all pieces."""
    model = frames_model(encoder("lstm", WIDTH), KEYS)
    params, batch = begin(model), example()
    loss, outcome = jax.jit(model.loss)(params, batch)
    total = 0.0
    for played, n in zip(batch.frames, LENGTH, strict=True):
        features, _, _ = lstm_by_hand(params["encoder"][0], played[:n])
        for before, after in zip(features, played[1 : n + 1], strict=True):
            p = sigmoid(before @ params["read"]["weights"] + params["read"]["bias"])
            total -= np.sum(np.log(np.where(after == 1, p, 1 - p)))
    np.testing.assert_allclose(loss, total / LENGTH.sum(), rtol=1e-5)
    assert outcome.sums["count"] == LENGTH.sum()
    np.testing.assert_allclose(metrics(outcome.sums)["nll"], total / LENGTH.sum(), rtol=1e-5)


def test_batches_add_up_whatever_they_hold():
    """A long piece counts for more than a short one: frames are averaged over, not pieces."""
    model = frames_model(encoder("gru", WIDTH), KEYS)
    params, batch = begin(model), example()
    run = jax.jit(lambda batch: model.loss(params, batch)[1].sums)
    one_by_one = [run(jax.tree.map(lambda leaf, i=i: leaf[i : i + 1], batch)) for i in range(4)]
    together = jax.tree.map(lambda *values: sum(values), *one_by_one)
    chex.assert_trees_all_close(together, run(batch), rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "place"), [("xrnn", None), ("tcn", None), ("gru", "before"), ("xrnn", "after")]
)
def test_a_prediction_does_not_see_its_frame_nor_later_ones(name, place):
    made = tcn(WIDTH, levels=2, kernel=2) if name == "tcn" else encoder(name, WIDTH, layers=2)
    model = frames_model(recalling(made, KEYS, heads=2, place=place) if place else made, KEYS)
    params, read = begin(model), example().frames[:1, :-1]
    scores = jax.jit(lambda frames: model.scores(params, frames, jnp.array([TIME]))[0][0])
    slopes = np.abs(jax.jacrev(scores)(read)[:, :, 0]).max(axis=(1, 3)) > 0
    # Score t is of frame t + 1, and frame t is the last that it may see.
    assert not np.any(np.triu(slopes, 1))
    assert np.all(np.diag(slopes))


@pytest.mark.parametrize("place", [None, "before", "after"])
def test_padding_changes_nothing(place):
    made = encoder("gru", WIDTH)
    model = frames_model(recalling(made, KEYS, place=place) if place else made, KEYS)
    params, batch = begin(model), example()
    dirty = batch._replace(frames=spoilt(batch.frames, LENGTH + 1, np.nan))
    run = value_and_gradient(model)
    chex.assert_trees_all_equal(run(params, batch), run(params, dirty))


@pytest.mark.parametrize("place", [None, "before", "after"])
def test_gradient_is_that_of_finite_differences(place):
    made = encoder("gru", WIDTH)
    model = frames_model(recalling(made, KEYS, heads=2, place=place) if place else made, KEYS)
    with jax.enable_x64(True):
        params, batch = jax.tree.map(np.float64, begin(model)), example(np.float64)
        assert_gradient(lambda params: model.loss(params, batch)[0], params)


def test_a_few_updates_lower_the_loss():
    assert_learns(frames_model(encoder("gru", WIDTH), KEYS), example(), rate=0.1)


def test_dropout_is_drawn_only_with_a_key():
    batch = example()
    dropping, keeping = (frames_model(encoder("rnn", WIDTH), KEYS, dropout=d) for d in (0.5, 0.0))
    params = begin(keeping)

    def loss(model, key=None):
        return jax.jit(lambda key: model.loss(params, batch, key=key)[0])(key)

    assert loss(dropping) == loss(keeping)
    assert loss(dropping, jax.random.key(0)) != loss(dropping)


@pytest.mark.parametrize(
    ("name", "options"), [("bilstm", {}), ("igru", {}), ("xrnn", {"recursion": "static"})]
)
def test_encoders_that_look_ahead_are_refused(name, options):
    with pytest.raises(ValueError, match=f"'{name}' sees the frames that are to be predicted"):
        frames_model(encoder(name, WIDTH, **options), KEYS)
    with pytest.raises(ValueError, match="keys must be at least 1"):
        frames_model(encoder("gru", WIDTH), 0)
