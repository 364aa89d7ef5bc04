"""Searches over a Markov chain of three tokens, against all sequences there are."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from implicit_rnn.models import Decoded, beam, greedy, sample

END, LONGEST = 2, 4
# The probability of the next token given the last; the state counts steps, and bends the chances.
TABLE = jnp.array([[0.2, 0.7, 0.1], [0.5, 0.2, 0.3], [0.55, 0.35, 0.1]])


def step(state, token):
    return jax.nn.log_softmax(jnp.log(TABLE[token]) * (1 + 0.3 * state)), state + 1


def chance(sequence):
    """Log-probability in numpy: the start token is the end token."""
    total, last = 0.0, END
    for time, token in enumerate(sequence):
        powers = np.asarray(TABLE, np.float64)[last] ** (1 + 0.3 * time)
        total += np.log(powers[token] / powers.sum())
        last = token
    return total


def every_sequence():
    """All that end within the limit, and all that are cut off there."""
    for n in range(LONGEST):
        for tokens in itertools.product([0, 1], repeat=n):
            yield (*tokens, END)
    yield from itertools.product([0, 1], repeat=LONGEST)


def words(decoded):
    """Sequences as the enumeration has them: with the end, where there is one."""
    return [
        tuple(int(t) for t in tokens[: min(int(n) + 1, LONGEST)])
        for tokens, n in zip(*map(np.asarray, decoded[:2]), strict=True)
    ]


@pytest.mark.parametrize("penalty", [0.0, 0.6, 2.0])
def test_a_beam_wide_enough_finds_all_sequences_in_order(penalty):
    everything = {
        found: chance(found) / ((5 + len(found)) / 6) ** penalty for found in every_sequence()
    }
    width = len(everything) + 2
    found = jax.jit(lambda state: beam(step, state, END, END, LONGEST, width, penalty))(0.0)
    ranked = sorted(everything, key=everything.get, reverse=True)
    assert words(found)[:-2] == ranked
    np.testing.assert_allclose(found.score[:-2], [everything[w] for w in ranked], rtol=1e-5)
    np.testing.assert_array_equal(found.score[-2:], -np.inf)
    past = np.arange(LONGEST) >= found.length[:, None]
    assert np.all(np.asarray(found.tokens)[past] == END)


def by_hand(width, penalty):
    """Beam search in numpy: all continuations compete, those that ended as they are."""
    beams = [()]

    def score(found):
        return chance(found) / ((5 + len(found)) / 6) ** penalty

    for _ in range(LONGEST):
        ended = [found for found in beams if found and found[-1] == END]
        alive = [(*found, t) for found in beams if found not in ended for t in range(3)]
        beams = sorted([*ended, *alive], key=score, reverse=True)[:width]
    return beams


@pytest.mark.parametrize("width", [1, 2, 3])
def test_a_narrow_beam_drops_what_a_beam_search_drops(width):
    states = jnp.zeros(2)
    search = jax.jit(jax.vmap(lambda state: beam(step, state, END, END, LONGEST, width)))
    found = jax.tree.map(np.asarray, search(states))
    for one in zip(*found, strict=True):
        assert words(Decoded(*one)) == by_hand(width, 0.6)


def test_greedy_takes_the_likeliest_and_stops_at_the_end():
    found = greedy(step, 0.0, END, END, LONGEST)
    expected, last = (), END
    for time in range(LONGEST):
        last = int(np.argmax(TABLE[last] ** (1 + 0.3 * time)))
        expected = (*expected, last)
        if last == END:
            break
    assert words(jax.tree.map(lambda leaf: leaf[None], found)) == [expected]
    np.testing.assert_allclose(found.score, chance(expected), rtol=1e-5)
    cold = sample(step, 0.0, END, END, LONGEST, jax.random.key(0), 0.0)
    np.testing.assert_array_equal(cold.tokens, found.tokens)
    assert greedy(step, 0.0, END, END, 0).tokens.shape == (0,)


def test_draws_follow_the_model_and_say_how_likely_they_were():
    keys = jax.random.split(jax.random.key(0), 4000)
    found = jax.jit(jax.vmap(lambda key: sample(step, 0.0, END, END, LONGEST, key)))(keys)
    drawn = words(found)
    np.testing.assert_allclose(found.score[:20], [chance(w) for w in drawn[:20]], rtol=1e-4)
    for sequence in every_sequence():
        share = drawn.count(sequence) / len(drawn)
        expected = np.exp(chance(sequence))
        assert abs(share - expected) < 5 * np.sqrt(expected / len(drawn)), sequence


def test_temperature_sharpens():
    keys = jax.random.split(jax.random.key(0), 2000)
    draw = jax.jit(jax.vmap(lambda key: sample(step, 0.0, END, END, 1, key, 0.5)))
    first = draw(keys).tokens[:, 0]
    powers = np.asarray(TABLE[END]) ** 2
    shares = np.bincount(first, minlength=3) / len(keys)
    np.testing.assert_allclose(shares, powers / powers.sum(), atol=0.04)


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="width must be at least 1"):
        beam(step, 0.0, END, END, LONGEST, 0)


def test_small_unsigned_tokens_start_a_sequence():
    found = greedy(step, jnp.float32(0), jnp.uint8(END), END, LONGEST)
    expected = greedy(step, jnp.float32(0), END, END, LONGEST)
    np.testing.assert_array_equal(found.tokens, expected.tokens)
