"""Where gates begin: lengths of memories, and the side to which a channel listens."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import implicit_rnn
from implicit_rnn import cells, models

KEY = jax.random.key(0)


def silent(params):
    """The parameters with all but the biases zero."""
    return jax.tree.map_with_path(lambda path, leaf: leaf * (path[-1].key == "bias"), params)


@pytest.mark.parametrize(
    "make", [cells.gru, cells.lstm, cells.mgu, cells.mingru, cells.qrnn, cells.sru]
)
def test_a_channel_keeps_what_its_length_says(make):
    cell = cells.remembering(make(200), (2.0, 30.0))
    params = silent(cell.init(KEY, 3))
    state, ones = cell.initial_state(params), jnp.ones(200)
    state = state._replace(c=ones) if hasattr(state, "c") else ones
    for _ in range(2):
        state = cell.step(params, cell.project(params, jnp.zeros(3)), state)
    memory = state.c if hasattr(state, "c") else state
    kept = np.sort(np.sqrt(np.asarray(memory, np.float64)))
    lengths = kept / (1 - kept)
    # Log-uniform: the quantiles of the logarithm lie on a line.
    line = np.log(2) + (np.arange(200) + 0.5) / 200 * np.log(15)
    np.testing.assert_allclose(np.log(lengths), line, atol=0.02)


@pytest.mark.parametrize("stencil", [(-1, 1), (-2, -1, 1)])
def test_channels_take_turns_at_listening_to_one_neighbour(stencil):
    cell = cells.implicit(cells.gru(6), stencil=stencil)
    params = silent(cell.init(KEY, 3))
    xs = jnp.ones((5, 3))
    states, _ = implicit_rnn.implicit(cell, params, xs)
    shares = np.asarray(implicit_rnn.switch(cell, params, xs, states))
    listened = shares.argmax(1)
    np.testing.assert_array_equal(listened, np.tile(np.arange(6) % len(stencil), (5, 1)))
    assert shares.max(1).min() > 0.96


def test_a_split_channel_reaches_farther_than_a_mean_of_neighbours():
    def reach(split):
        """How much of a disturbance at the first step is left at the tenth."""
        cell = cells.igru(2, update_bias=-2.0, split=split)
        params = silent(cell.init(KEY, 2))
        pulse = jnp.eye(20, 2).at[:, 1].set(0)
        params["cell"]["input"] = params["cell"]["input"].at[0, -2:].set(1.0)
        states, _ = implicit_rnn.implicit(cell, params, pulse, rtol=1e-6)
        return float(jnp.abs(states[9, 0]) / jnp.abs(states[0, 0]))

    assert reach(4.0) > 5 * reach(0.0) > 0


def test_one_bias_for_all_takes_the_place_of_spread_memories():
    bias = cells.igru(4, update_bias=-2.0).init(KEY, 3)["cell"]["bias"][:4]
    np.testing.assert_array_equal(bias, np.full(4, -2.0, np.float32))
    spread = cells.ilstm(50).init(KEY, 3)["cell"]["bias"]
    np.testing.assert_allclose(spread[:50], -spread[50:100])
    assert float(spread[50:100].min()) >= 0
    assert float(spread[50:100].max()) <= np.log(40) + 1e-5


def test_baselines_can_begin_with_spread_memories():
    encoder = models.encoder("bilstm", 50, memory=(1.0, 40.0))
    forward, backward = encoder.init(KEY, 3)[0]
    assert float(jnp.std(forward["bias"][50:100])) > 0.9
    assert not np.array_equal(forward["bias"], backward["bias"])


@pytest.mark.parametrize("memory", [(0, 3), (4, 2), (1, float("nan")), 3, (1, 2, 3)])
def test_what_is_no_range_of_lengths_is_refused(memory):
    with pytest.raises(ValueError, match="memory must be a pair"):
        cells.remembering(cells.gru(3), memory)


def test_a_cell_without_such_a_gate_is_refused():
    with pytest.raises(ValueError, match="rnn has no gate"):
        cells.remembering(cells.rnn(3))
