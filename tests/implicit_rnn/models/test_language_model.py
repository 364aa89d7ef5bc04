"""The language model: its loss by hand, streams in windows, and samples."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from implicit_rnn import cells, unroll
from implicit_rnn.models import TokenBatch, greedy, language_model
from implicit_rnn.models.base import label_sums
from tests.implicit_rnn.models.checks import (
    assert_gradient,
    assert_learns,
    begin,
    log_softmax,
    lstm_by_hand,
)

BATCH, TIME, WIDTH, VOCABULARY = 3, 5, 4, 6
TOKENS = np.random.default_rng(1).integers(0, VOCABULARY, (BATCH, TIME + 1), np.int32)
KINDS = {
    "one-hot": {},
    "embedded": {"embedding_size": 3},
    "tied": {"embedding_size": WIDTH, "tied": True},
}


def model_of(kind="one-hot", layers=2, **settings):
    return language_model([cells.lstm(WIDTH)] * layers, VOCABULARY, **KINDS[kind], **settings)


@pytest.mark.parametrize("kind", KINDS)
def test_loss_by_hand(kind):
    model = model_of(kind)
    params = begin(model)
    loss, outcome = jax.jit(model.loss)(params, TokenBatch(TOKENS))
    embedding = params.get("embedding", np.eye(VOCABULARY))
    weights = embedding.T if kind == "tied" else params["read"]["weights"]
    total = errors = 0
    for stream in np.asarray(TOKENS):
        xs = np.asarray(embedding)[stream[:-1]]
        for own in params["layers"]:
            xs, _, _ = lstm_by_hand(own, xs)
        scores = xs @ weights + params["read"]["bias"]
        total -= sum(log_softmax(scores)[np.arange(TIME), stream[1:]])
        errors += np.sum(np.argmax(scores, axis=1) != stream[1:])
    np.testing.assert_allclose(loss, total / (BATCH * TIME), rtol=1e-5)
    np.testing.assert_allclose(outcome.sums["loss"], total, rtol=1e-5)
    assert outcome.sums["error"] == errors
    assert outcome.sums["count"] == BATCH * TIME


def test_windows_that_carry_their_states_are_one_stream():
    model = model_of()
    params = begin(model)
    run = jax.jit(model.loss)
    whole, end = run(params, TokenBatch(TOKENS))
    carry, total = model.carry(params, BATCH), 0.0
    for first, last in ((0, 2), (2, 5)):
        window = TokenBatch(TOKENS[:, first : last + 1])
        _, outcome = run(params, window, carry=carry)
        carry, total = outcome.carry, total + outcome.sums["loss"]
    np.testing.assert_allclose(total, whole * BATCH * TIME, rtol=1e-5)
    chex.assert_trees_all_close(carry, end.carry, atol=1e-6)


def test_no_gradient_reaches_what_is_carried():
    model = model_of(layers=1)
    params = begin(model)

    @jax.jit
    def loss(carry):
        return model.loss(params, TokenBatch(TOKENS), carry=carry)[0]

    carry = model.carry(params, BATCH)
    for leaf in jax.tree.leaves(jax.grad(loss)(carry)):
        np.testing.assert_array_equal(leaf, 0)
    assert loss(jax.tree.map(lambda leaf: leaf + 1, carry)) != loss(carry)


def test_truncation_is_a_carry_inside_the_window():
    model, cut = model_of(), model_of(truncate=2)
    params = begin(model)

    def in_windows(params):
        carry, total = None, 0.0
        for first in (0, 2, 4):
            window = TokenBatch(TOKENS[:, first : min(first + 2, TIME) + 1])
            _, outcome = model.loss(params, window, carry=carry)
            carry, total = outcome.carry, total + outcome.sums["loss"]
        return total / (BATCH * TIME)

    expected = jax.jit(jax.value_and_grad(in_windows))(params)
    found = jax.jit(jax.value_and_grad(lambda p: cut.loss(p, TokenBatch(TOKENS))[0]))(params)
    chex.assert_trees_all_close(found, expected, atol=1e-5)


@pytest.mark.parametrize("name", sorted(n for n, f in cells.CELLS.items() if f(2).stencil == (-1,)))
def test_any_causal_cell_runs_a_whole_batch_at_once(name):
    cell = cells.CELLS[name](WIDTH)
    model = language_model([cell], VOCABULARY)
    params = begin(model)
    found, _ = jax.jit(model.scores)(params, TOKENS)
    inputs = np.eye(VOCABULARY, dtype=np.float32)[TOKENS]
    run = jax.jit(jax.vmap(lambda xs: unroll(cell, params["layers"][0], xs)[0]))
    expected = np.asarray(run(inputs)) @ params["read"]["weights"] + params["read"]["bias"]
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_gradient_is_that_of_finite_differences():
    model = model_of("tied")
    with jax.enable_x64(True):
        params = begin(model)
        assert_gradient(lambda params: model.loss(params, TokenBatch(TOKENS))[0], params)


def test_a_few_updates_lower_the_loss():
    model = model_of(layers=1)
    assert_learns(model, TokenBatch(TOKENS))


def test_dropout_only_with_a_key():
    model = model_of(dropout=0.5)
    params = begin(model)
    batch = TokenBatch(TOKENS)
    plain = jax.jit(model_of().loss)(params, batch)[0]
    run = jax.jit(model.loss)
    np.testing.assert_array_equal(run(params, batch)[0], plain)
    assert run(params, batch, key=jax.random.key(1))[0] != plain


def test_samples_are_as_likely_as_the_loss_says():
    model = model_of("embedded")
    params = begin(model)
    prompt, count = TOKENS[0, :3], 4
    sample = jax.jit(model.sample, static_argnums=3)
    cold = sample(params, jax.random.key(0), prompt, count, 0.0)
    np.testing.assert_array_equal(
        jax.jit(lambda p: model.sample(params, None, p, count, 0))(prompt), cold
    )
    text = np.concatenate([prompt, cold])
    score = jax.jit(model.scores)
    scores, _ = score(params, text[None, :-1])
    np.testing.assert_array_equal(np.argmax(scores[0, 2:], axis=-1), cold)

    @jax.jit
    def by_steps(params, prompt):
        states = model.start(params)
        for token in prompt[:-1]:
            _, states = model.step(params, states, token)
        return greedy(lambda s, t: model.step(params, s, t), states, prompt[-1], -1, count)

    found = by_steps(params, prompt)
    np.testing.assert_array_equal(found.tokens, cold)
    part = score(params, prompt[None, :-1])[1]
    _, outcome = jax.jit(model.loss)(params, TokenBatch(text[None, 2:]), carry=part)
    np.testing.assert_allclose(-found.score, outcome.sums["loss"], rtol=1e-5)

    warm = sample(params, jax.random.key(0), prompt, count, 5.0)
    assert warm.shape == (count,)
    assert np.any(warm != cold)
    np.testing.assert_array_equal(warm, sample(params, jax.random.key(0), prompt, count, 5.0))


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="at least one cell"):
        language_model([], VOCABULARY)
    with pytest.raises(ValueError, match="causal cells; implicit"):
        language_model([cells.implicit(cells.gru(WIDTH))], VOCABULARY)
    with pytest.raises(ValueError, match="embedding_size must be 4, got None"):
        language_model([cells.gru(WIDTH)], VOCABULARY, tied=True)
    with pytest.raises(ValueError, match="below 1, got 1"):
        model_of(dropout=1.0)
    with pytest.raises(ValueError, match="truncate must be at least 1"):
        model_of(truncate=0)
    model = model_of(layers=1)
    params = begin(model)
    with pytest.raises(ValueError, match="one or more tokens"):
        model.sample(params, jax.random.key(0), jnp.zeros(0, int), 3)
    with pytest.raises(ValueError, match="pass a key"):
        model.sample(params, None, jnp.zeros(1, int), 3)


def test_cells_that_do_all_steps_at_once_are_let_to():
    """With the scores, carries and gradients of one step after the other."""
    cell = cells.mingru(WIDTH)
    at_once = language_model([cell] * 2, VOCABULARY)
    by_steps = language_model([cell._replace(run=None)] * 2, VOCABULARY)
    params, batch = begin(at_once), TokenBatch(TOKENS)
    carry = jax.tree.map(lambda leaf: leaf + 0.3, at_once.carry(params, BATCH))

    def program(model):
        loss = lambda params: model.loss(params, batch, carry=carry)  # noqa: E731
        return jax.value_and_grad(loss, has_aux=True)

    chex.assert_trees_all_close(
        jax.jit(program(at_once))(params), jax.jit(program(by_steps))(params), atol=1e-6
    )
    assert "while" not in str(jax.make_jaxpr(program(at_once))(params))


def test_counts_in_half_precision_are_exact():
    scores, labels = jnp.zeros((1001, 2), jnp.bfloat16), jnp.ones(1001, jnp.int32)
    _, sums = label_sums(scores, labels, jnp.ones(1001, bool))
    assert sums["count"] == 1001
    assert sums["error"] == 1001
