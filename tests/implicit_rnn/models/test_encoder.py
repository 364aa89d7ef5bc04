"""Encoders: the values of the pure sequence functions, in layers, whatever the padding."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import implicit_rnn
import solvers
from implicit_rnn import cells
from implicit_rnn.models import encoder
from tests.implicit_rnn.models.checks import begin, spoilt

TIME, WIDTH, INPUTS = 5, 4, 4
LENGTH = np.array([5, 0, 3, 1])
XS = np.random.default_rng(1).normal(size=(len(LENGTH), TIME, INPUTS)).astype(np.float32)
SOLVE = {"method": "banded", "adjoint": solvers.Sweeps(rtol=1e-6), "rtol": 1e-6}


def test_causal_layers_are_unrolled_one_after_the_other():
    made = encoder("gru", WIDTH, layers=2, residual=True)
    params = begin(made, INPUTS)
    encoded = jax.jit(made.apply)(params, XS, LENGTH)
    cell = cells.gru(WIDTH)

    @jax.jit
    def by_hand(x):
        first = x + implicit_rnn.unroll(cell, params[0], x)[0]
        return first + implicit_rnn.unroll(cell, params[1], first)[0]

    for row, n in enumerate(LENGTH):
        xs = by_hand(XS[row, :n])
        np.testing.assert_allclose(encoded.features[row, :n], xs, atol=1e-6)
        np.testing.assert_array_equal(encoded.features[row, n:], 0)
        last = xs[-1] if n else np.zeros(WIDTH)
        np.testing.assert_allclose(encoded.summary[row], last, atol=1e-6)
    assert encoded.info is None
    assert made.causal
    assert (made.width, made.solves) == (WIDTH, 0)


def test_two_directions_are_summarised_by_the_last_output_of_each():
    made = encoder("bilstm", WIDTH)
    params = begin(made, INPUTS)
    encoded = jax.jit(made.apply)(params, XS, LENGTH)
    cell = cells.lstm(WIDTH)
    by_hand = jax.jit(lambda x: implicit_rnn.bidirectional(cell, cell, params[0], x))
    for row, n in enumerate(LENGTH):
        ys, states = by_hand(XS[row, :n])
        np.testing.assert_allclose(encoded.features[row, :n], ys, atol=1e-6)
        ends = np.concatenate([state.h for state in states])
        np.testing.assert_allclose(encoded.summary[row], ends, atol=1e-6)
    assert not made.causal
    assert made.width == 2 * WIDTH


def test_implicit_layers_are_solved_and_each_reports():
    made = encoder("igru", WIDTH, layers=2)
    params = begin(made, INPUTS)

    def total(params, probe):
        encoded = made.apply(params, XS, LENGTH, probe=probe, solve=SOLVE)
        return jnp.sum(jnp.sin(encoded.features)), encoded

    probe = solvers.adjoint_probe((made.solves, len(LENGTH)))
    (_, seen), encoded = jax.jit(jax.grad(total, (0, 1), has_aux=True))(params, probe)
    layers = [cells.igru(WIDTH)] * 2
    run = jax.jit(lambda xs: implicit_rnn.stack(layers, params, xs, length=LENGTH, **SOLVE)[0])
    expected = run(XS)
    np.testing.assert_allclose(encoded.features, expected, atol=1e-5)
    means = np.sum(expected, axis=1) / np.maximum(LENGTH, 1)[:, None]
    np.testing.assert_allclose(encoded.summary, means, atol=1e-5)
    for report in (encoded.info, seen):
        assert report.steps.shape == (2, len(LENGTH))
    assert np.all(encoded.info.converged)
    assert np.all(np.asarray(seen.steps)[:, 0] > 0)
    chex.assert_trees_all_equal_structs(made.bounds, [layers[0].bounds] * 2)


@pytest.mark.parametrize("name", [pytest.param("lstm", marks=pytest.mark.slow), "bigru", "igru"])
def test_padding_changes_nothing(name):
    made = encoder(name, WIDTH, residual=True, normalise=name == "bigru")
    params = begin(made, INPUTS)
    settings = {"solve": SOLVE} if made.solves else {}

    @jax.jit
    def run(params, xs):
        def total(params, xs):
            encoded = made.apply(params, xs, LENGTH, **settings)
            values = encoded.features, encoded.summary
            return jnp.sum(jnp.sin(values[0])) + jnp.sum(jnp.cos(values[1])), values

        return jax.grad(total, (0, 1), has_aux=True)(params, xs)

    clean, dirty = run(params, XS), run(params, spoilt(XS, LENGTH, np.nan))
    chex.assert_trees_all_equal(clean, dirty)
    np.testing.assert_array_equal(spoilt(clean[1][0], LENGTH, 0), clean[1][0])


def test_normalised_layers_are_standardised_over_their_width():
    made = encoder("gru", WIDTH, layers=2, residual=True, normalise=True)
    params = begin(made, INPUTS)
    encoded = jax.jit(made.apply)(params, XS, LENGTH)
    run = jax.jit(lambda own, x: implicit_rnn.unroll(cells.gru(WIDTH), own, x)[0])
    for row, n in enumerate(LENGTH):
        xs = XS[row, :n]
        for own in params:
            added = xs + np.asarray(run(own, xs))
            xs = (added - added.mean(axis=1)[:, None]) / added.std(axis=1)[:, None]
        np.testing.assert_allclose(encoded.features[row, :n], xs, atol=1e-4)
        np.testing.assert_array_equal(encoded.features[row, n:], 0)


def test_dropout_is_between_layers_and_only_with_a_key():
    def features(layers, dropout, key=None):
        made = encoder("gru", WIDTH, layers=layers, dropout=dropout)
        params = begin(made, INPUTS)
        return jax.jit(made.apply)(params, XS, LENGTH, key=key).features

    key = jax.random.key(3)
    np.testing.assert_array_equal(features(2, 0.5), features(2, 0.0))
    np.testing.assert_array_equal(features(1, 0.5, key), features(1, 0.5))
    assert np.any(features(2, 0.5, key) != features(2, 0.5))
    np.testing.assert_array_equal(features(2, 0.5, key), features(2, 0.5, key))


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="unknown encoder 'lstn'"):
        encoder("lstn", WIDTH)
    with pytest.raises(ValueError, match="both ways by itself"):
        encoder("biigru", WIDTH)
    with pytest.raises(ValueError, match="layers must be at least 1"):
        encoder("lstm", WIDTH, layers=0)
    with pytest.raises(ValueError, match="below 1, got 1"):
        encoder("lstm", WIDTH, dropout=1.0)


def test_an_encoder_takes_cells_as_well_as_names():
    def features(encoder):
        params = encoder.init(jax.random.key(0), 2)
        run = jax.jit(lambda xs, length: encoder.apply(params, xs, length).features)
        return run(jnp.ones((2, 4, 2)), jnp.array([4, 2]))

    for made, named in (
        (encoder(cells.gru(3)), encoder("gru", 3)),
        (encoder((cells.gru(3), cells.gru(3))), encoder("bigru", 3)),
    ):
        np.testing.assert_array_equal(features(made), features(named))
    assert features(encoder((cells.gru(3), cells.mgu(2)))).shape == (2, 4, 5)
    assert encoder(cells.implicit(cells.mgu(3))).solves == 1
    with pytest.raises(ValueError, match="hidden_size: a cell that is made already takes none"):
        encoder(cells.gru(3), 3)
    with pytest.raises(ValueError, match="needs hidden_size"):
        encoder("gru")
