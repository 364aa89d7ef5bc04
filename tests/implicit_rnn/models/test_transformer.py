"""The Transformer and its blocks: by hand, causal, safe with padding, the same step by step."""

from __future__ import annotations

import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from implicit_rnn.models import PairBatch, feed_forward, linear, recursive, transformer
from tests.implicit_rnn.models.checks import (
    assert_gradient,
    assert_learns,
    begin,
    log_softmax,
    sigmoid,
    spoilt,
    value_and_gradient,
)

WIDTH, HEADS, SOURCE, TARGET = 4, 2, 5, 3


def example():
    keys = jax.random.split(jax.random.key(1))
    return PairBatch(
        jax.random.randint(keys[0], (3, 4), 0, SOURCE),
        jnp.array([4, 0, 2]),
        jax.random.randint(keys[1], (3, 3), 0, TARGET),
        jnp.array([2, 3, 0]),
    )


def model_of(layers=1, **options):
    return transformer(SOURCE, TARGET, width=WIDTH, heads=HEADS, layers=layers, **options)


# Equations in numpy, one vector at a time.


def affine(p, x):
    return x @ p["weights"] + p["bias"]


def perceptron(p, x):
    return affine(p["out"], np.maximum(affine(p["into"], x), 0))


def recursive_by_hand(p, x, alpha=None, skip=False):
    f, o, z = np.split(affine(p["base"], x), 3)
    if "forget" in p:
        weights = affine(p["recursion"], x) if alpha is None else np.full(2, alpha)
        below = [recursive_by_hand(p[child], x, alpha, skip) for child in ("forget", "output")]
        f = weights[0] * below[0] + (1 - weights[0]) * f
        o = weights[1] * below[1] + (1 - weights[1]) * o
    h = sigmoid(f) * x + sigmoid(o) * np.tanh(z)
    return h + x if skip else h


def norm(p, x):
    return p["scale"] * (x - x.mean()) / np.sqrt(x.var() + 1e-6) + p["bias"]


def position(t):
    return np.array([np.sin(t), np.sin(t / 100), np.cos(t), np.cos(t / 100)])


def attention(p, x, memory, aggregate):
    """What one step finds among the steps of a memory."""
    size = WIDTH // HEADS
    query, both = affine(p["query"], x), [affine(p["memory"], step) for step in memory]
    found = []
    for head in range(HEADS):
        part = slice(head * size, (head + 1) * size)
        scores = np.array([query[part] @ step[:WIDTH][part] for step in both]) / np.sqrt(size)
        weights = np.exp(scores) / np.exp(scores).sum()
        found.append(sum(w * step[WIDTH:][part] for w, step in zip(weights, both, strict=True)))
    return aggregate(p["aggregate"], np.concatenate(found))


def scores_by_hand(params, source, target, block=perceptron, aggregate=affine):
    """Scores of every step, each layer step by step over lists of vectors."""

    def placed(table, tokens):
        return [table[token] * np.sqrt(WIDTH) + position(t) for t, token in enumerate(tokens)]

    xs = placed(params["source"], source)
    for own in params["encoder"]["layers"]:
        near = [norm(own["attend"]["norm"], x) for x in xs]
        xs = [x + attention(own["attend"], near[t], near, aggregate) for t, x in enumerate(xs)]
        xs = [x + block(own["block"]["own"], norm(own["block"]["norm"], x)) for x in xs]
    memory = [norm(params["encoder"]["norm"], x) for x in xs]
    ys = placed(params["target"], [TARGET, *target])
    for own in params["decoder"]["layers"]:
        near = [norm(own["attend"]["norm"], y) for y in ys]
        ys = [
            y + attention(own["attend"], near[t], near[: t + 1], aggregate)
            for t, y in enumerate(ys)
        ]
        ys = [
            y + attention(own["look"], norm(own["look"]["norm"], y), memory, aggregate) for y in ys
        ]
        ys = [y + block(own["block"]["own"], norm(own["block"]["norm"], y)) for y in ys]
    return [norm(params["decoder"]["norm"], y) @ params["target"].T for y in ys]


@pytest.mark.parametrize("kind", ["feed_forward", "recursive"])
def test_loss_by_hand(kind):
    options, blocks = {}, ()
    if kind == "recursive":
        options = {"block": recursive(depth=2), "aggregate": recursive(depth=1)}
        blocks = (recursive_by_hand, recursive_by_hand)
    model = model_of(2, **options)
    params, batch = jax.tree.map(np.asarray, begin(model)), example()
    # A source without steps leaves nothing to look at, and is not what these equations tell.
    batch = batch._replace(source_length=jnp.array([4, 1, 2]))
    loss, outcome = jax.jit(model.loss)(params, batch)
    total, errors, exact = 0.0, 0, 0
    for source, n, target, m in zip(*map(np.asarray, batch), strict=True):
        said, wrong = [*target[:m], TARGET], 0
        found = scores_by_hand(params, source[:n], target[:m], *blocks)
        for scores, right in zip(found, said, strict=True):
            total -= log_softmax(scores)[right]
            wrong += np.argmax(scores) != right
        errors += wrong
        exact += not wrong
    np.testing.assert_allclose(loss, total / 8, rtol=1e-4)
    sums = {name: float(value) for name, value in outcome.sums.items() if name != "loss"}
    assert sums == {"error": errors, "count": 8, "exact": exact, "count_exact": 3}


def test_padding_changes_nothing():
    model = model_of(block=recursive())
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
    chex.assert_trees_all_close(run(params, batch), run(params, wider), rtol=1e-5, atol=1e-6)


def test_a_step_sees_no_later_target():
    model = model_of(block=recursive())
    params, batch = begin(model), example()
    batch = batch._replace(target_length=jnp.array([3, 3, 3]))
    run = jax.jit(model.scores)
    other = batch._replace(target=batch.target.at[:, 1].set((batch.target[:, 1] + 1) % TARGET))
    before, after = run(params, batch), run(params, other)
    np.testing.assert_array_equal(before[:, :2], after[:, :2])
    assert np.all(np.any(before[:, 2:] != after[:, 2:], axis=(1, 2)))


def test_gradient_is_that_of_finite_differences():
    model = model_of(block=recursive(), smoothing=0.1)
    with jax.enable_x64(True):
        params, batch = begin(model), example()
        key = jax.random.key(0)  # for smoothing; nothing is dropped
        assert_gradient(lambda params: model.loss(params, batch, key=key)[0], params)


def test_a_few_updates_lower_the_loss():
    assert_learns(model_of(block=recursive()), example(), rate=0.02)


def test_dropout_and_smoothing_need_a_key():
    batch, plain = example(), model_of()
    params, key = begin(plain), jax.random.key(0)
    exact = plain.loss(params, batch)[0]
    for options in ({"dropout": 0.5}, {"smoothing": 0.25}):
        model = model_of(**options)
        assert model.loss(params, batch)[0] == exact
        assert model.loss(params, batch, key=key)[0] != exact
    # The share of the loss that wants all tokens alike; the sums are of the loss itself.
    _, outcome = model.loss(params, batch, key=key)
    np.testing.assert_allclose(outcome.sums["loss"] / outcome.sums["count"], exact, rtol=1e-6)
    logs = jax.nn.log_softmax(plain.scores(params, batch))
    mask = np.arange(4) <= np.asarray(batch.target_length)[:, None]
    even = -np.mean(np.asarray(logs)[mask])
    expected = 0.75 * exact + 0.25 * even
    np.testing.assert_allclose(model.loss(params, batch, key=key)[0], expected, rtol=1e-5)


def test_what_is_decoded_step_by_step_is_as_likely_as_the_loss_says():
    model = model_of(2, block=recursive())
    params, batch = begin(model), example()
    limit, width = 4, 3
    at = (params, batch.source, batch.source_length, limit)
    greedy = jax.tree.map(np.asarray, jax.jit(model.greedy, static_argnums=3)(*at))
    search = jax.jit(model.beam, static_argnums=(3, 4))
    beams = jax.tree.map(np.asarray, search(*at, width, 0.0))
    np.testing.assert_array_equal(search(*at, 1).tokens[:, 0], greedy.tokens)
    assert np.all(np.diff(beams.score, axis=1) <= 0)
    score = jax.jit(lambda one: model.scores(params, one))
    for row in range(3):
        found = [tuple(leaf[row] for leaf in greedy)]
        found += [tuple(leaf[row, k] for leaf in beams) for k in range(width)]
        read = batch.source[row][None], batch.source_length[row][None]
        for tokens, length, told in found:
            one = PairBatch(*read, tokens[None], np.array([limit]))
            logs = jax.nn.log_softmax(score(one))[0]
            said = [*tokens[:length], TARGET][:limit]
            total = sum(float(logs[t, token]) for t, token in enumerate(said))
            np.testing.assert_allclose(told, total, rtol=1e-4)


@pytest.mark.parametrize("penalty", [0.0, 0.6])
def test_a_wide_beam_ranks_all_sequences_there_are(penalty):
    """Every sequence scored by itself, given the right tokens before each of its own."""
    model, limit = model_of(aggregate=recursive()), 3
    params, batch = begin(model), example()
    ended = [(*t, TARGET) for n in range(limit) for t in itertools.product(range(TARGET), repeat=n)]
    everything = [*ended, *itertools.product(range(TARGET), repeat=limit)]
    target = np.array([[*tokens, *[0] * limit][:limit] for tokens in everything])
    count = len(everything)
    read = [np.repeat(np.asarray(leaf)[:1], count, axis=0) for leaf in batch[:2]]
    scores = jax.jit(model.scores)(params, PairBatch(*read, target, np.full(count, limit)))
    logs = log_softmax(np.asarray(scores, np.float64))
    ranks = {
        tokens: sum(logs[row, t, token] for t, token in enumerate(tokens))
        / ((5 + len(tokens)) / 6) ** penalty
        for row, tokens in enumerate(everything)
    }
    search = jax.jit(model.beam, static_argnums=(3, 4))
    found = search(params, batch.source[:1], batch.source_length[:1], limit, count, penalty)
    best = sorted(ranks, key=ranks.get, reverse=True)
    written = [
        tuple(int(token) for token in tokens[: min(length + 1, limit)])
        for tokens, length in zip(found.tokens[0], found.length[0], strict=True)
    ]
    assert written == best
    np.testing.assert_allclose(found.score[0], [ranks[tokens] for tokens in best], rtol=1e-4)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_recursive_block_is_its_equations(depth):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 3, WIDTH))
    with jax.enable_x64(True):
        for options in ({}, {"recursion": 0.3, "skip": True}):
            block = recursive(depth=depth, **options)
            params = begin(block, WIDTH)
            units, inner = 2**depth - 1, 2 ** (depth - 1) - 1
            weights = 0 if options else 2 * (WIDTH + 1)
            count = sum(leaf.size for leaf in jax.tree.leaves(params))
            assert count == units * 3 * WIDTH * (WIDTH + 1) + inner * weights
            found = jax.jit(block.apply)(params, x)
            for place in np.ndindex(2, 3):
                by_hand = recursive_by_hand(
                    params, x[place], options.get("recursion"), options.get("skip", False)
                )
                np.testing.assert_allclose(found[place], by_hand, atol=1e-12)


def test_every_block_sees_one_vector_at_a_time():
    x = np.random.default_rng(0).normal(size=(3, WIDTH)).astype(np.float32)
    for block in (linear(), feed_forward(5), recursive(recursion="scalar", squash=True)):
        params = begin(block, WIDTH)
        alone = np.stack([block.apply(params, row) for row in x])
        np.testing.assert_allclose(block.apply(params, x), alone, atol=1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: recursive(recursion="static"), "a block sees one vector"),
        (lambda: recursive(depth=0), "depth must be an integer of at least 1"),
        (lambda: feed_forward(0), "hidden_size must be at least 1, got 0"),
        (lambda: transformer(3, 3, width=6, heads=4), "multiple of heads, got 6 and 4"),
        (lambda: transformer(3, 3, width=3, heads=1), "width must be even"),
        (lambda: transformer(3, 0), "at least 1, got 3, 0 and 2"),
        (lambda: transformer(3, 3, dropout=1.0), "dropout must be at least 0 and below 1, got 1.0"),
    ],
)
def test_bad_arguments_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
