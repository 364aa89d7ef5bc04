"""The tagger of words: its loss by hand, rare and unknown words, and laws of every model."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import solvers
from implicit_rnn.experiments.tagging import Words
from implicit_rnn.experiments.tagging.words import word_tagger
from implicit_rnn.models import encoder, metrics
from tests.implicit_rnn.models.checks import (
    assert_gradient,
    assert_learns,
    begin,
    log_softmax,
    lstm_by_hand,
    spoilt,
    value_and_gradient,
)

TIME, WIDTH, LABELS = 4, 3, 3
SIZES = {
    "words": 6, "affixes": 5, "affix_kinds": 2, "flags": 1, "word_size": 3, "affix_size": 2,
    "rare": 4,
}  # fmt: skip


def model_of(name: str = "lstm", **options):
    return word_tagger(lambda width: encoder(name, WIDTH), LABELS, **{**SIZES, **options})


def example() -> Words:
    rng = np.random.default_rng(0)
    words = rng.integers(1, 6, (3, TIME))
    words[0, 1] = words[2, 0] = 0
    return Words(
        words,
        rng.integers(0, 5, (3, TIME, 2)),
        rng.random((3, TIME, 1)) < 0.5,
        rng.integers(0, LABELS, (3, TIME)),
        np.array([4, 0, 2]),
    )


def test_loss_by_hand():
    model, batch = model_of(), example()
    batch.labels[2, 0] = -1  # an unknown word with an unseen tag
    params = begin(model)
    loss, outcome = jax.jit(model.loss)(params, batch)
    total, errors, unknown = 0.0, 0, 0
    for b, n in enumerate(batch.length):
        rows = [
            np.concatenate(
                [
                    params["words"][batch.words[b, t]],
                    *params["affixes"][batch.affixes[b, t]],
                    batch.flags[b, t],
                ]
            )
            for t in range(n)
        ]
        outputs, _, _ = lstm_by_hand(params["encoder"][0], rows)
        scores = outputs @ params["read"]["weights"] + params["read"]["bias"]
        for t in range(n):
            right = batch.labels[b, t]
            wrong = np.argmax(scores[t]) != right
            total -= log_softmax(scores[t])[right] if right >= 0 else 0
            errors += wrong
            unknown += wrong and batch.words[b, t] == 0
    np.testing.assert_allclose(loss, total / 5, rtol=1e-5)  # of the tags that can be right
    sums = outcome.sums
    assert (sums["count"], sums["count_unknown"]) == (6, 2)
    assert (sums["error"], sums["unknown"]) == (errors, unknown)
    assert set(metrics(sums)) == {"loss", "error", "unknown"}


def test_padding_changes_nothing():
    model, batch = model_of(), example()
    params, run = begin(model), value_and_gradient(model)
    dirty = Words(*(spoilt(part, batch.length, 10**6) for part in batch[:-1]), batch.length)
    dirty = dirty._replace(flags=dirty.flags.astype(bool))
    chex.assert_trees_all_equal(run(params, batch), run(params, dirty))


def test_gradient_through_a_solve_reaches_the_vectors():
    settings = {
        "method": "banded", "adjoint": solvers.Sweeps(rtol=1e-12), "rtol": 1e-12,
    }  # fmt: skip
    model, batch = model_of("igru"), example()
    with jax.enable_x64(True):
        params = begin(model)
        assert_gradient(lambda params: model.loss(params, batch, solve=settings)[0], params)


def test_a_few_updates_lower_the_loss():
    assert_learns(model_of("gru"), example(), rate=0.1)


def test_words_alone_need_no_affixes_and_no_flags():
    model = model_of(affix_kinds=0, flags=0)
    batch = example()._replace(affixes=np.zeros((3, TIME, 0), int), flags=np.zeros((3, TIME, 0)))
    params = begin(model)
    assert "affixes" not in params
    assert params["encoder"][0]["input"].shape[0] == SIZES["word_size"]
    assert jnp.isfinite(model.loss(params, batch)[0])


def test_rare_words_are_hidden_by_key_and_others_never():
    model, batch = model_of(word_dropout=0.5), example()
    params = begin(model)
    plain = model.embed(params, batch)
    seen = np.zeros((3, TIME), bool)
    for seed in range(20):
        changed = np.any(model.embed(params, batch, jax.random.key(seed)) != plain, axis=-1)
        seen |= changed
    counted = np.arange(TIME) < batch.length[:, None]
    np.testing.assert_array_equal(seen, counted & (batch.words >= SIZES["rare"]))
    assert model.loss(params, batch)[0] == model_of().loss(params, batch)[0]


def test_given_vectors_are_where_the_words_begin():
    given = (np.array([1, 3]), np.full((2, 3), 7.0, np.float32))
    table = model_of(vectors=given).init(jax.random.key(0))["words"]
    np.testing.assert_array_equal(table[given[0]], given[1])
    assert np.all(np.abs(table[jnp.array([0, 2, 4, 5])]) < 7)


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="word_dropout must be"):
        model_of(word_dropout=1.0)
    with pytest.raises(ValueError, match="have 2 numbers, but word_size is 3"):
        model_of(vectors=(np.array([1]), np.zeros((1, 2))))
