"""The captioner: both models of length and all ways of giving a context, by hand."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from implicit_rnn import cells
from implicit_rnn.models import CaptionBatch, captioner
from tests.implicit_rnn.models.checks import (
    assert_gradient,
    assert_learns,
    begin,
    log_softmax,
    lstm_by_hand,
    spoilt,
    value_and_gradient,
)

WIDTH, CONTEXT, VOCABULARY, LONGEST = 3, 2, 4, 3
KINDS = [("end", "input"), ("end", "state"), ("direct", "both")]


def example():
    context = jax.random.normal(jax.random.key(1), (3, CONTEXT))
    tokens = jnp.array([[1, 3, 0], [2, 0, 0], [0, 0, 0]])
    return CaptionBatch(context, tokens, jnp.array([3, 1, 0]))


def model_of(length_model="end", context="both"):
    return captioner(
        cells.lstm(WIDTH),
        CONTEXT,
        VOCABULARY,
        longest=LONGEST,
        embedding_size=2,
        context=context,
        length_model=length_model,
    )


@pytest.mark.parametrize(("length_model", "context"), KINDS)
def test_loss_by_hand(length_model, context):
    model = model_of(length_model, context)
    params, batch = jax.tree.map(np.asarray, begin(model)), example()
    loss, outcome = jax.jit(model.loss)(params, batch)
    own, total, errors = params["decoder"], 0.0, 0
    for vector, tokens, n in zip(*map(np.asarray, batch), strict=True):
        said = [*tokens[:n]] if length_model == "direct" else [*tokens[:n], VOCABULARY]
        xs = []
        for t, token in enumerate([VOCABULARY, *tokens[:n]][: len(said)]):
            parts = [own["embedding"][token]]
            if length_model == "direct":
                parts.append([(n - t) / LONGEST])
            if context != "state":
                parts.append(vector)
            xs.append(np.concatenate(parts))
        h = c = None
        if context != "input":
            h, c = (np.tanh(vector @ leaf["weights"] + leaf["bias"]) for leaf in own["start"])
        outputs, _, _ = lstm_by_hand(own["cell"], xs, h, c)
        for output, token in zip(outputs, said, strict=True):
            scores = output @ own["read"]["weights"] + own["read"]["bias"]
            total -= log_softmax(scores)[token]
            errors += np.argmax(scores) != token
        if length_model == "direct":
            scores = vector @ params["length"]["weights"] + params["length"]["bias"]
            total -= log_softmax(scores)[n]
            errors += np.argmax(scores) != n
    np.testing.assert_allclose(loss, total / 7, rtol=1e-5)
    assert outcome.sums["count"] == 7  # four tokens, and an end or a length for each of three
    assert outcome.sums["error"] == errors


@pytest.mark.parametrize("length_model", ["end", "direct"])
def test_padding_changes_nothing(length_model):
    model = model_of(length_model)
    params, batch = begin(model), example()
    dirty = batch._replace(tokens=spoilt(batch.tokens, batch.length, -(10**6)))
    run = value_and_gradient(model)
    chex.assert_trees_all_equal(run(params, batch), run(params, dirty))


def test_gradient_is_that_of_finite_differences():
    model = model_of("direct")
    with jax.enable_x64(True):
        params, batch = begin(model), example()
        assert_gradient(lambda params: model.loss(params, batch)[0], params)


def test_a_few_updates_lower_the_loss():
    model = model_of()
    assert_learns(model, example())


@pytest.mark.parametrize("length_model", ["end", "direct"])
@pytest.mark.parametrize("key", [None, 5])
def test_captions_are_as_likely_as_the_loss_says(length_model, key):
    model = model_of(length_model)
    params = begin(model)
    if length_model == "end":
        params["decoder"]["read"]["bias"][-1] += 1  # or few would end
    context = np.random.default_rng(2).normal(size=(6, CONTEXT)).astype(np.float32)
    key = None if key is None else jax.random.key(key)
    found = jax.tree.map(np.asarray, jax.jit(model.generate)(params, context, key=key))
    run = jax.jit(model.loss)
    assert np.all(found.tokens[np.arange(LONGEST + 1) >= found.length[:, None]] == VOCABULARY)
    complete = found.length <= LONGEST
    assert np.sum(complete) >= 3
    for row in np.flatnonzero(complete):
        caption = CaptionBatch(context[row][None], found.tokens[row][None], found.length[row][None])
        loss = run(params, caption)[1].sums["loss"]
        np.testing.assert_allclose(found.score[row], -loss, rtol=1e-4)
    if length_model == "direct":
        assert np.all(complete)


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match='"end" or "direct", got \'both\''):
        model_of("both")
    with pytest.raises(ValueError, match='"input", "state" or "both", got \'none\''):
        model_of("end", "none")
    with pytest.raises(ValueError, match="causal cell; implicit"):
        captioner(cells.implicit(cells.gru(WIDTH)), CONTEXT, VOCABULARY, longest=LONGEST)
    with pytest.raises(ValueError, match="longest must be at least 0"):
        captioner(cells.gru(WIDTH), CONTEXT, VOCABULARY, longest=-1)
    with pytest.raises(ValueError, match="vocabulary must be at least 1"):
        captioner(cells.gru(WIDTH), CONTEXT, 0, longest=1)
