"""The encoder-decoder: by hand with and without attention, and what its searches find."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import solvers
from implicit_rnn import cells
from implicit_rnn.models import PairBatch, encoder, metrics, seq2seq
from implicit_rnn.models.seq2seq import target_sums
from tests.implicit_rnn.models.checks import (
    assert_gradient,
    assert_learns,
    begin,
    log_softmax,
    lstm_by_hand,
    spoilt,
    value_and_gradient,
)

WIDTH, SOURCE, TARGET = 3, 5, 3
ATTENTIONS = [None, "additive", "bilinear", "dot"]


def example():
    keys = jax.random.split(jax.random.key(1))
    return PairBatch(
        jax.random.randint(keys[0], (3, 4), 0, SOURCE),
        jnp.array([4, 0, 2]),
        jax.random.randint(keys[1], (3, 3), 0, TARGET),
        jnp.array([2, 3, 0]),
    )


def model_of(attention=None, name="lstm", context="both", **options):
    return seq2seq(
        encoder(name, WIDTH),
        cells.lstm(WIDTH),
        SOURCE,
        TARGET,
        embedding_size=2,
        context=context,
        attention=attention,
        **options,
    )


def weights_by_hand(attention, params, memory, query):
    if attention == "additive":
        keys = memory @ params["memory"] + params["bias"] + query @ params["query"]
        scores = np.tanh(keys) @ params["score"]
    else:
        matrix = params["weights"] if attention == "bilinear" else np.eye(WIDTH)
        scores = memory @ matrix @ query / np.sqrt(WIDTH)
    return np.exp(scores) / np.exp(scores).sum()


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_loss_by_hand(attention):
    model = model_of(attention)
    params, batch = jax.tree.map(np.asarray, begin(model)), example()
    loss, outcome = jax.jit(model.loss)(params, batch)
    own, total, errors, exact = params["decoder"], 0.0, 0, 0
    for source, n, target, m in zip(*map(np.asarray, batch), strict=True):
        memory, summary, _ = lstm_by_hand(params["encoder"][0], params["embedding"][source[:n]])
        h, c = (np.tanh(summary @ leaf["weights"] + leaf["bias"]) for leaf in own["start"])
        given, said = [TARGET, *target[:m]], [*target[:m], TARGET]
        wrong = 0
        for token, right in zip(given, said, strict=True):
            context = summary
            if attention is not None:
                context = np.zeros(WIDTH)
                if n:
                    context = weights_by_hand(attention, own["attention"], memory, h) @ memory
            x = np.concatenate([own["embedding"][token], context])
            _, h, c = lstm_by_hand(own["cell"], [x], h, c)
            seen = h if attention is None else np.concatenate([h, context])
            scores = seen @ own["read"]["weights"] + own["read"]["bias"]
            total -= log_softmax(scores)[right]
            wrong += np.argmax(scores) != right
        errors += wrong
        exact += not wrong
    np.testing.assert_allclose(loss, total / 8, rtol=1e-5)
    sums = {name: float(value) for name, value in outcome.sums.items() if name != "loss"}
    assert sums == {"error": errors, "count": 8, "exact": exact, "count_exact": 3}
    np.testing.assert_allclose(metrics(outcome.sums)["exact"], exact / 3)


def test_what_was_seen_is_fed_to_the_next_step_by_hand():
    model = model_of("bilinear", context="input", feeding=True)
    params, batch = jax.tree.map(np.asarray, begin(model)), example()
    scores, weights, _ = jax.jit(model.scores)(params, batch)
    own, end = params["decoder"], TARGET
    for row, source, n, target, m in zip(scores, *map(np.asarray, batch), strict=True):
        memory, _, _ = lstm_by_hand(params["encoder"][0], params["embedding"][source[:n]])
        h, c, seen = np.zeros((3, WIDTH))
        for token, found in zip([end, *target[:m]], row, strict=False):
            x = np.concatenate([own["embedding"][token], seen])
            _, h, c = lstm_by_hand(own["cell"], [x], h, c)
            context = np.zeros(WIDTH)
            if n:
                context = weights_by_hand("bilinear", own["attention"], memory, h) @ memory
            both = np.concatenate([h, context])
            seen = np.tanh(both @ own["seen"]["weights"] + own["seen"]["bias"])
            expected = seen @ own["read"]["weights"] + own["read"]["bias"]
            np.testing.assert_allclose(found, expected, atol=1e-5)
    np.testing.assert_allclose(weights.sum(axis=-1)[:, 0], [1, 0, 1], atol=1e-6)
    with pytest.raises(ValueError, match="choose an attention"):
        model_of(None, feeding=True)


def test_label_smoothing_mixes_in_the_loss_of_all_tokens_alike_where_there_is_a_key():
    plain, soft = model_of("dot"), model_of("dot", smoothing=0.2)
    params, batch = begin(plain), example()
    scores = np.asarray(jax.jit(plain.scores)(params, batch)[0], float)
    rows = [row[: m + 1] for row, m in zip(scores, batch.target_length, strict=True)]
    even = np.mean([-np.mean(log_softmax(row)) for row in np.concatenate(rows)])
    loss, key = float(jax.jit(plain.loss)(params, batch)[0]), jax.random.key(0)
    np.testing.assert_allclose(jax.jit(soft.loss)(params, batch)[0], loss, rtol=1e-6)
    found, outcome = jax.jit(soft.loss)(params, batch, key=key)
    np.testing.assert_allclose(found, 0.8 * loss + 0.2 * even, rtol=1e-5)
    np.testing.assert_allclose(metrics(outcome.sums)["loss"], loss, rtol=1e-5)
    with pytest.raises(ValueError, match="smoothing must be"):
        model_of(smoothing=1.0)


@pytest.mark.parametrize("attention", [pytest.param(None, marks=pytest.mark.slow), "additive"])
def test_padding_changes_nothing(attention):
    model = model_of(attention, "bilstm", feeding=attention is not None)
    params, batch = begin(model), example()
    dirty = batch._replace(
        source=spoilt(batch.source, batch.source_length, 10**6),
        target=spoilt(batch.target, batch.target_length, -5),
    )
    run = value_and_gradient(model)
    chex.assert_trees_all_equal(run(params, batch), run(params, dirty))
    wider = jax.tree.map(
        lambda leaf: np.pad(leaf, ((0, 0), (0, 2)), constant_values=9) if leaf.ndim > 1 else leaf,
        batch,
    )
    chex.assert_trees_all_close(run(params, batch), run(params, wider), atol=1e-6)


@pytest.mark.parametrize(
    ("attention", "feeding"),
    [("additive", False), ("dot", True), pytest.param("bilinear", False, marks=pytest.mark.slow)],
)
def test_gradient_is_that_of_finite_differences(attention, feeding):
    model = model_of(attention, context="input", feeding=feeding)
    with jax.enable_x64(True):
        params, batch = begin(model), example()
        assert_gradient(lambda params: model.loss(params, batch)[0], params)


@pytest.mark.slow
def test_a_few_updates_lower_the_loss_also_of_an_implicit_encoder():
    model = model_of("bilinear", "igru")
    settings = {"method": "banded", "adjoint": solvers.Sweeps(steps=3), "rtol": 1e-3}
    solved = model._replace(loss=lambda p, b: model.loss(p, b, solve=settings))
    params = begin(model)
    assert_learns(solved, example())
    _, outcome = jax.jit(solved.loss)(params, example())
    assert outcome.info.steps.shape == (model.solves, 3) == (1, 3)
    assert "encoder" in model.bounds


@pytest.mark.parametrize("attention", [pytest.param(None, marks=pytest.mark.slow), "dot"])
def test_what_is_decoded_is_as_likely_as_the_loss_says(attention):
    model = model_of(attention, context="both", feeding=attention is not None)
    params, batch = begin(model), example()
    params["decoder"]["read"]["bias"][-1] += 2  # or few would end
    limit, width = 4, 3
    greedy = jax.jit(model.greedy, static_argnums=3)(
        params, batch.source, batch.source_length, limit
    )
    beams = jax.jit(model.beam, static_argnums=(3, 4))(
        params, batch.source, batch.source_length, limit, width, 0.0
    )
    narrow = jax.jit(model.beam, static_argnums=(3, 4))(
        params, batch.source, batch.source_length, limit, 1
    )
    greedy, beams = jax.tree.map(np.asarray, (greedy, beams))
    np.testing.assert_array_equal(narrow.tokens[:, 0], greedy.tokens)
    assert np.all(np.diff(beams.score, axis=1) <= 0)

    def nats(row, tokens, length):
        one = jax.tree.map(lambda leaf: np.asarray(leaf)[row][None], batch)
        one = one._replace(target=tokens[None], target_length=length[None])
        return score(params, one)

    score = jax.jit(lambda params, one: model.loss(params, one)[1].sums["loss"])
    checked = 0
    for row in range(3):
        found = [tuple(leaf[row] for leaf in greedy)]
        found += [tuple(leaf[row, k] for leaf in beams) for k in range(width)]
        for tokens, length, told in found:
            if length < limit:  # it came to an end
                np.testing.assert_allclose(-told, nats(row, tokens, length), rtol=1e-4)
                checked += 1
    assert checked >= 3


def test_exact_are_the_targets_that_greedy_decoding_finds():
    """What it finds for some sources is made their target; other targets are another's."""
    model = model_of("additive")
    params, rng = begin(model), np.random.default_rng(3)
    params["decoder"]["read"]["bias"][-1] += 1  # or few would end
    source, length = rng.integers(0, SOURCE, (12, 4)), rng.integers(1, 5, 12)
    limit = 4
    found = jax.jit(model.greedy, static_argnums=3)(params, source, length, limit)
    ended = np.asarray(found.length) < limit
    target, written = np.array(found.tokens), np.array(found.length)
    target[::3, 0] = (target[::3, 0] + 1) % TARGET
    written[::3] = np.maximum(written[::3], 1)
    expected = ended & (np.arange(12) % 3 > 0)
    assert 0 < expected.sum() < 12
    batch = PairBatch(source, length, target[:, : limit - 1], np.minimum(written, limit - 1))
    sums = jax.jit(lambda batch: model.loss(params, batch)[1].sums)(batch)
    assert (sums["exact"], sums["count_exact"]) == (expected.sum(), 12)


def test_a_target_that_cannot_be_written_is_never_exact():
    """Whatever is the likeliest in its place."""
    target = np.array([[1, -1, 0]])
    batch = PairBatch(np.zeros((1, 1), int), np.array([1]), target, np.array([3]))
    for token in range(TARGET + 1):
        said = np.array([[1, token, 0, TARGET]])
        mean, sums = target_sums(5.0 * np.eye(TARGET + 1)[said], batch, TARGET)
        assert (sums["exact"], sums["error"], sums["count_exact"]) == (0, 1, 1)
        assert np.isfinite(mean)


def test_dropout_needs_a_key():
    batch, plain = example(), model_of("additive")
    params = begin(plain)
    dropped = seq2seq(
        encoder("lstm", WIDTH),
        cells.lstm(WIDTH),
        SOURCE,
        TARGET,
        embedding_size=2,
        attention="additive",
        dropout=0.5,
    )
    run = jax.jit(lambda key: dropped.loss(params, batch, key=key)[0])
    exact = jax.jit(lambda: plain.loss(params, batch)[0])()
    np.testing.assert_allclose(jax.jit(lambda: dropped.loss(params, batch)[0])(), exact, rtol=1e-6)
    draws = [float(run(jax.random.key(seed))) for seed in (0, 1, 0)]
    assert draws[0] == draws[2]
    assert len({float(exact), *draws}) == 3


def test_a_place_without_a_pair_counts_nowhere():
    model = model_of("dot")
    params, batch = begin(model), example()
    run = value_and_gradient(model)
    more = jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf[:2]]), batch)
    more = more._replace(
        source_length=more.source_length.at[3:].set(0),
        target_length=more.target_length.at[3:].set(-1),
    )
    chex.assert_trees_all_close(run(params, batch), run(params, more), rtol=1e-5, atol=1e-6)


def test_attention_looks_at_the_source_alone():
    model = model_of("additive")
    params, batch = begin(model), example()
    _, weights, _ = jax.jit(model.scores)(params, batch)
    past = np.arange(4) >= np.asarray(batch.source_length)[:, None, None]
    assert np.all(np.where(past, weights, 0) == 0)
    np.testing.assert_allclose(np.sum(np.asarray(weights), axis=-1)[[0, 2]], 1, rtol=1e-5)
    np.testing.assert_array_equal(weights[1], 0)  # there is nothing to look at


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match=r"'additive', 'bilinear', 'dot'.*got 'cosine'"):
        model_of("cosine")
    with pytest.raises(ValueError, match="with attention the context is an input"):
        model_of("dot", context="state")
    with pytest.raises(ValueError, match="one size, got 3 and 6"):
        begin(model_of("dot", "bilstm"))
    with pytest.raises(ValueError, match="dropout must be at least 0 and below 1, got 1"):
        seq2seq(encoder("gru", WIDTH), cells.gru(WIDTH), SOURCE, TARGET, dropout=1)
    with pytest.raises(ValueError, match=r"this xrnn depends on the whole sequence.*\"dynamic\""):
        seq2seq(encoder("gru", WIDTH), cells.xrnn(WIDTH, recursion="static"), SOURCE, TARGET)
    with pytest.raises(ValueError, match="source_vocabulary must be at least 1"):
        seq2seq(encoder("gru", WIDTH), cells.gru(WIDTH), 0, TARGET)
