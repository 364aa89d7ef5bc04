"""Looking back: the formula by hand, what a repeated passage gives, what is refused."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from implicit_rnn.models import encoder, recalling
from tests.implicit_rnn.models.checks import begin, lstm_by_hand

TIME, INPUTS, WIDTH, SIZE, HEADS = 6, 3, 4, 2, 2


def unit(vector):
    return vector / np.sqrt(np.sum(vector**2) + 1e-6)


def recalled_by_hand(params, states, xs):
    rows = []
    for t, state in enumerate(states):
        found = []
        for head in range(HEADS):
            own = slice(head * SIZE, (head + 1) * SIZE)
            query = unit(state @ params["query"][:, own])
            weight, mean = np.exp(params["nothing"][head]), np.zeros(INPUTS)
            for j in range(t):
                near = query @ unit(states[j] @ params["key"][:, own])
                share = np.exp(params["sharpness"][head] * near)
                weight, mean = weight + share, mean + share * xs[j + 1]
            found.append(mean / weight)
        rows.append(np.concatenate(found))
    return np.array(rows)


@pytest.mark.parametrize("place", ["before", "after"])
def test_what_came_after_like_steps_by_hand(place):
    made = recalling(encoder("lstm", WIDTH), INPUTS, size=SIZE, heads=HEADS, place=place)
    params = begin(made, INPUTS)
    xs = np.random.default_rng(1).normal(size=(2, TIME, INPUTS)).astype(np.float32)
    length = np.array([TIME, 4])
    found = jax.jit(made.apply)(params, xs, length)
    for row, summary, x, n in zip(found.features, found.summary, xs, length, strict=True):
        x = x[:n]
        if place == "before":
            x = np.concatenate([x, recalled_by_hand(params, x, x)], axis=1)
            expected, _, _ = lstm_by_hand(params["encoder"][0], x)
        else:
            states, _, _ = lstm_by_hand(params["encoder"][0], x)
            expected = np.concatenate([states, recalled_by_hand(params, states, x)], axis=1)
        np.testing.assert_allclose(row[:n], expected, atol=1e-5)
        assert not np.any(row[n:])
        np.testing.assert_allclose(summary, expected[-1], atol=1e-5)
    assert found.features.shape[-1] == made.width


def test_a_passage_that_comes_again_is_continued_before_anything_is_learnt():
    passage = np.eye(INPUTS, dtype=np.float32)[[0, 1, 2, 1, 0, 2]]
    made = recalling(encoder("gru", 16), INPUTS, size=16)
    params = made.init(jax.random.key(0), INPUTS)
    params["sharpness"] = jnp.array([60.0])
    xs = np.concatenate([passage, passage])[None]
    found = jax.jit(made.apply)(params, xs, np.array([12])).features[0, :, 16:]
    # From the passage's second step on, again: the likeliest is what followed the first time.
    assert np.array_equal(np.argmax(found[8:11], axis=1), np.argmax(passage[3:], axis=1))
    assert not np.any(found[0]), "nothing came before the first step"


def test_what_cannot_be_recalled_is_refused():
    with pytest.raises(ValueError, match="'bigru' looks ahead"):
        recalling(encoder("bigru", 2), 3)
    for wrong in ({"heads": 0}, {"size": 0}, {"place": "between"}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            recalling(encoder("gru", 2), 3, **wrong)
    with pytest.raises(ValueError, match="inputs are 4 wide, recalling was told 3"):
        recalling(encoder("gru", 2), 3).init(jax.random.key(0), 4)
