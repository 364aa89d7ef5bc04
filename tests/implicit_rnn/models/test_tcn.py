"""The temporal convolutional network: its sums by hand, what it sees, and what padding does."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from implicit_rnn.models import LabelledBatch, classifier, tcn
from tests.implicit_rnn.models.checks import assert_learns, begin, spoilt

TIME, WIDTH, INPUTS = 9, 4, 3
LENGTH = np.array([9, 0, 5, 1])
XS = np.random.default_rng(1).normal(size=(len(LENGTH), TIME, INPUTS)).astype(np.float32)


def by_hand(params, xs, kernel):
    """Features `[time, width]` of one sequence, sum by sum."""

    def convolved(own, xs, dilation):
        taps = np.split(own["direction"], kernel)
        norm = np.sqrt(sum((tap**2).sum(axis=0) for tap in taps))
        rows = []
        for t in range(len(xs)):
            total = own["bias"].copy()
            for j, tap in enumerate(taps):
                if t - j * dilation >= 0:
                    total += own["scale"] / norm * (xs[t - j * dilation] @ tap)
            rows.append(np.maximum(total, 0))
        return np.array(rows).reshape(len(xs), len(own["bias"]))

    for level, block in enumerate(params):
        inner = convolved(block["second"], convolved(block["first"], xs, 2**level), 2**level)
        if "skip" in block:
            xs = xs @ block["skip"]["weights"] + block["skip"]["bias"]
        xs = np.maximum(xs + inner, 0)
    return xs


@pytest.mark.parametrize(("kernel", "inputs"), [(2, INPUTS), (3, WIDTH), (1, INPUTS)])
def test_features_are_those_of_the_equations(kernel, inputs):
    made = tcn(WIDTH, levels=2, kernel=kernel)
    params = begin(made, inputs)
    assert ("skip" in params[0]) == (inputs != WIDTH)
    xs = np.resize(XS, (len(LENGTH), TIME, inputs))
    encoded = jax.jit(made.apply)(params, xs, LENGTH)
    for row, n in enumerate(LENGTH):
        expected = by_hand(params, xs[row, :n].astype(float), kernel).reshape(n, WIDTH)
        np.testing.assert_allclose(encoded.features[row, :n], expected, atol=1e-5)
        np.testing.assert_array_equal(encoded.features[row, n:], 0)
        last = expected[-1] if n else np.zeros(WIDTH)
        np.testing.assert_allclose(encoded.summary[row], last, atol=1e-5)
    assert made.causal
    assert (made.width, made.solves) == (WIDTH, 0)


def test_a_feature_sees_so_many_inputs_back_and_none_ahead():
    levels, kernel, time = 2, 3, 20
    made = tcn(6, levels=levels, kernel=kernel)
    params = begin(made, 2)
    xs = jnp.asarray(np.random.default_rng(0).normal(size=(time, 2)), jnp.float32)

    def features(xs):
        return made.apply(params, xs[None], jnp.array([time])).features[0]

    slopes = np.abs(jax.jit(jax.jacrev(features))(xs)).max(axis=(1, 3)) > 0
    back = np.arange(time)[:, None] - np.arange(time)
    reach = 1 + 2 * (kernel - 1) * (2**levels - 1)
    assert not np.any(slopes[(back < 0) | (back >= reach)])
    assert np.any(slopes[back == reach - 1])
    assert np.all(slopes[back == 0])


def test_padding_changes_nothing():
    made = tcn(WIDTH, levels=2, kernel=2)
    params = begin(made, INPUTS)

    @jax.jit
    def run(params, xs):
        def total(params, xs):
            encoded = made.apply(params, xs, LENGTH)
            values = encoded.features, encoded.summary
            return jnp.sum(jnp.sin(values[0])) + jnp.sum(jnp.cos(values[1])), values

        return jax.grad(total, (0, 1), has_aux=True)(params, xs)

    clean, dirty = run(params, XS), run(params, spoilt(XS, LENGTH, np.nan))
    chex.assert_trees_all_equal(clean, dirty)
    np.testing.assert_array_equal(spoilt(clean[0][1], LENGTH, 0), clean[0][1])


def test_the_first_scales_are_the_norms_of_the_directions():
    params = jax.jit(lambda key: tcn(WIDTH, levels=1, kernel=2).init(key, INPUTS))(
        jax.random.key(0)
    )
    for own in (params[0]["first"], params[0]["second"]):
        squares = np.asarray(own["direction"]) ** 2
        np.testing.assert_allclose(own["scale"], np.sqrt(squares.sum(axis=0)), rtol=1e-5)


def test_dropout_is_drawn_only_with_a_key():
    dropping, keeping = tcn(WIDTH, dropout=0.5, levels=1), tcn(WIDTH, levels=1)
    params = begin(keeping, INPUTS)

    def features(made, key=None):
        return jax.jit(made.apply)(params, XS, LENGTH, key=key).features

    key = jax.random.key(3)
    np.testing.assert_array_equal(features(dropping), features(keeping))
    np.testing.assert_array_equal(features(keeping, key), features(keeping))
    assert np.any(features(dropping, key) != features(dropping))


def test_a_classifier_stands_on_it():
    batch = LabelledBatch(XS, np.array([1, -1, 0, 1]), LENGTH)
    assert_learns(classifier(tcn(WIDTH, levels=2, kernel=2), INPUTS, 2, pooling="mean"), batch)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"levels": 0}, "levels must be at least 1"),
        ({"kernel": 0}, "kernel must be at least 1"),
        ({"dropout": 1.0}, "below 1, got 1"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        tcn(WIDTH, **options)
