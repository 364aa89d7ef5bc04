"""The contractive cell keeps the promises of its docstring, whatever its weights."""

from __future__ import annotations

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

import implicit_rnn
from implicit_rnn import cells
from implicit_rnn.sequence.equation import equation_of, equation_sweep
from solvers.bands import splitting_inverse

TIME, WIDTH, INPUTS, RATE = 12, 5, 3, 0.8
CELL = cells.contractive(WIDTH, rate=RATE)


@jax.jit
def swept(params, xs, states):
    """One splitting sweep from `states`, and one of Picard."""
    equation = equation_of(CELL, params, xs)
    image, bands = equation_sweep(CELL)(equation, states)
    return states + splitting_inverse(bands)(image - states), image


def problem(seed, scale):
    keys = jax.random.split(jax.random.key(seed), 3)
    params = jax.tree.map(lambda leaf: scale * leaf, CELL.init(keys[0], INPUTS))
    return params, jax.random.normal(keys[1], (TIME, INPUTS)), keys[2]


@given(st.integers(0, 10**6), st.sampled_from([0.1, 1.0, 10.0]))
def test_any_two_sequences_of_states_come_closer_by_the_rate(seed, scale):
    params, xs, key = problem(seed, scale)
    a, b = jax.random.normal(key, (2, TIME, WIDTH))
    distance = jnp.abs(a - b).max()
    (sweep_a, image_a), (sweep_b, image_b) = swept(params, xs, a), swept(params, xs, b)
    assert jnp.abs(sweep_a - sweep_b).max() <= RATE * distance * (1 + 1e-4)
    assert jnp.abs(image_a - image_b).max() < distance * (1 + 1e-6)


@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_sweeps_reach_the_tolerance_in_as_many_steps_as_the_rate_says(scale):
    with jax.enable_x64(True):
        params, xs, _ = problem(0, scale)

        @jax.jit
        def solve(start):
            return implicit_rnn.implicit(CELL, params, xs, method="banded", rtol=1e-10, start=start)

        states, info = solve(jnp.zeros((TIME, WIDTH)))
        assert info.converged
        # The residual is measured in another norm than the rate.
        most = np.log(1e-10 / np.sqrt(TIME * WIDTH)) / np.log(RATE)
        assert info.steps <= most
        again, _ = solve(5 * jnp.ones((TIME, WIDTH)))
        np.testing.assert_allclose(again, states, atol=1e-7)


def test_bad_settings_are_named():
    with pytest.raises(ValueError, match="rate"):
        cells.contractive(3, rate=1.0)
    with pytest.raises(ValueError, match="boundary"):
        cells.contractive(3, boundary="none")


def test_saturated_gates_leave_an_equation():
    """Neighbours that copy each other with gates rounded to zero, in float32."""
    params = jax.tree.map(jnp.zeros_like, CELL.init(jax.random.key(0), 1))
    params["input"] = params["input"].at[:, :WIDTH].set(300.0)
    params["bias"] = params["bias"].at[WIDTH : 2 * WIDTH].set(-300.0).at[3 * WIDTH :].set(1.0)
    xs = jnp.where(jnp.arange(TIME) % 2, 1.0, -1.0)[:, None]
    states, info = jax.jit(
        lambda xs: implicit_rnn.implicit(CELL, params, xs, method="banded", rtol=1e-4)
    )(xs)
    assert info.converged
    assert np.all(np.isfinite(states))
