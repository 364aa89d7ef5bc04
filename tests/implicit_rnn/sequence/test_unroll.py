"""Cells run step by step: chunks, truncation, both directions, layers, windows of a stream."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import implicit_rnn
from implicit_rnn import cells

TIME, WIDTH, INPUTS = 7, 3, 2
CELL = cells.lstm(WIDTH)


def example(cell=CELL, time=TIME):
    params = cell.init(jax.random.key(0), INPUTS)
    return params, jax.random.normal(jax.random.key(1), (time, INPUTS))


def program(run):
    """Outputs, last state, and the gradient of a loss of both, compiled."""

    def loss(params, xs):
        ys, last = run(params, xs)
        weights = jnp.arange(1.0, 1 + ys.size).reshape(ys.shape)
        total = sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(last))
        return jnp.sum(weights * jnp.sin(ys)) + total, (ys, last)

    return jax.jit(jax.grad(loss, (0, 1), has_aux=True))


def lstm_by_hand(params, xs):
    """Outputs of an LSTM over `xs`, in numpy."""
    p = jax.tree.map(np.asarray, params)
    h = c = np.zeros(p["recurrent"].shape[0], xs.dtype)
    ys = np.zeros((len(xs), len(h)), xs.dtype)
    for t, x in enumerate(np.asarray(xs)):
        i, f, g, o = np.split(x @ p["input"] + h @ p["recurrent"] + p["bias"], 4)
        i, f, o = (1 / (1 + np.exp(-gate)) for gate in (i, f, o))
        c = f * c + i * np.tanh(g)
        h = ys[t] = o * np.tanh(c)
    return ys, h


@pytest.mark.parametrize(
    ("chunk", "reverse", "length"), [(3, True, 5), (1, False, 0), (20, False, None)]
)
def test_chunks_change_neither_values_nor_gradients(chunk, reverse, length):
    with jax.enable_x64(True):
        params, xs = example()

        def run(chunk):
            return program(
                lambda params, xs: implicit_rnn.unroll(
                    CELL, params, xs, reverse=reverse, length=length, chunk=chunk
                )
            )(params, xs)

        chex.assert_trees_all_close(run(chunk), run(None), atol=1e-12)


def test_the_first_arguments_may_go_without_names():
    params, xs = example()
    named = implicit_rnn.unroll(CELL, params, xs, length=3, state=None, reverse=True)
    chex.assert_trees_all_equal(implicit_rnn.unroll(CELL, params, xs, 3, None, True), named)
    both = implicit_rnn.init_bidirectional(CELL, CELL, jax.random.key(0), xs.shape[-1])
    named = implicit_rnn.bidirectional(CELL, CELL, both, xs, length=3)
    chex.assert_trees_all_equal(implicit_rnn.bidirectional(CELL, CELL, both, xs, 3), named)
    cell = cells.igru(4)
    params = cell.init(jax.random.key(0), xs.shape[-1])
    named = implicit_rnn.implicit(cell, params, xs, length=3, start="zeros", method="banded")
    unnamed = implicit_rnn.implicit(cell, params, xs, 3, "zeros", "banded")
    chex.assert_trees_all_equal(unnamed, named)


def test_chunks_need_less_memory():
    params, xs = example(time=1024)

    def peak(chunk):
        run = program(lambda params, xs: implicit_rnn.unroll(CELL, params, xs, chunk=chunk))
        return run.lower(params, xs).compile().memory_analysis().temp_size_in_bytes

    assert peak(32) < 0.7 * peak(None)


@pytest.mark.parametrize(("reverse", "chunk"), [(False, 3), (True, None)])
def test_truncation_cuts_gradients_between_windows_and_keeps_values(reverse, chunk):
    """Against windows run one by one, the state between them held constant."""
    with jax.enable_x64(True):
        params, xs = example()
        length, window = 5, 2

        def by_hand(params, xs):
            inputs = xs[:length][::-1] if reverse else xs[:length]
            state, outputs = CELL.initial_state(params), []
            for t, x in enumerate(inputs):
                if t and t % window == 0:
                    state = lax.stop_gradient(state)
                state = CELL.step(params, CELL.project(params, x), state)
                outputs.append(state.h)
            ys = jnp.stack(outputs[::-1] if reverse else outputs)
            return jnp.pad(ys, ((0, TIME - length), (0, 0))), state

        def truncated(params, xs):
            return implicit_rnn.unroll(
                CELL, params, xs, length=length, reverse=reverse, truncate=window, chunk=chunk
            )

        # The last state is that of step 4: the boundary after step 5, in the padding, cuts nothing.
        garbage = xs.at[length:].set(jnp.nan)
        chex.assert_trees_all_close(
            program(truncated)(params, garbage), program(by_hand)(params, xs), atol=1e-12
        )


@pytest.mark.parametrize("name", ["chunk", "truncate"])
@pytest.mark.parametrize("value", [0, -1, 2.0])
def test_bad_chunks_and_truncations_are_named(name, value):
    params, xs = example()
    with pytest.raises(ValueError, match=f"{name} must be an integer of at least 1"):
        implicit_rnn.unroll(CELL, params, xs, **{name: value})


def test_backward_direction_starts_at_each_examples_own_end():
    """Two leading batch axes, every length, garbage past it; numpy reverses by hand."""
    with jax.enable_x64(True):
        params = implicit_rnn.init_bidirectional(CELL, CELL, jax.random.key(0), INPUTS)
        lengths = np.array([[0, 1, TIME], [2, 5, 3]])
        xs = np.random.default_rng(0).standard_normal((2, 3, TIME, INPUTS))
        past = np.arange(TIME)[:, None] >= lengths[..., None, None]

        def run(x, n):
            return implicit_rnn.bidirectional(CELL, CELL, params, x, length=n)

        both = jax.jit(jax.vmap(jax.vmap(run)))
        ys, (last, first) = both(jnp.where(past, jnp.nan, xs), lengths)
        for i, j in np.ndindex(lengths.shape):
            inputs, n = xs[i, j, : lengths[i, j]], lengths[i, j]
            ahead, final = lstm_by_hand(params[0], inputs)
            back, beginning = lstm_by_hand(params[1], inputs[::-1])
            expected = np.concatenate([ahead, back[::-1]], axis=1)
            np.testing.assert_allclose(ys[i, j, :n], expected, atol=1e-12)
            np.testing.assert_array_equal(ys[i, j, n:], 0)
            np.testing.assert_allclose(last.h[i, j], final, atol=1e-12)
            np.testing.assert_allclose(first.h[i, j], beginning, atol=1e-12)


def test_padding_changes_no_gradient_of_either_direction():
    params = implicit_rnn.init_bidirectional(CELL, CELL, jax.random.key(0), INPUTS)
    _, xs = example()
    run = program(lambda params, xs: implicit_rnn.bidirectional(CELL, CELL, params, xs, length=4))
    clean, dirty = run(params, xs), run(params, xs.at[4:].set(jnp.nan))
    chex.assert_trees_all_equal(clean, dirty)
    short = program(lambda params, xs: implicit_rnn.bidirectional(CELL, CELL, params, xs))
    (weights, inputs), (ys, states) = short(params, xs[:4])
    np.testing.assert_allclose(clean[1][0][:4], ys, atol=1e-6)
    chex.assert_trees_all_close(clean[1][1], states, atol=1e-6)
    chex.assert_trees_all_close(clean[0], (weights, jnp.pad(inputs, ((0, 3), (0, 0)))), atol=1e-5)


LAYERS = [(cells.lstm(2), cells.rnn(WIDTH)), cells.rnn(2)]


def test_stack_takes_pairs_of_cells_as_layers_in_both_directions():
    params = implicit_rnn.init_stack(LAYERS, jax.random.key(0), INPUTS)
    _, xs = example()
    ys, told = jax.jit(lambda p, x: implicit_rnn.stack(LAYERS, p, x, length=5))(params, xs)

    @jax.jit
    def by_hand(params, xs):
        first, both = implicit_rnn.bidirectional(*LAYERS[0], params[0], xs, length=5)
        return implicit_rnn.unroll(LAYERS[1], params[1], first, length=5)[0], both

    expected, both = by_hand(params, xs)
    np.testing.assert_allclose(ys, expected, atol=1e-6)
    chex.assert_trees_all_close(told[0], both, atol=1e-6)


@pytest.mark.parametrize("batched", [False, True])
def test_stack_goes_on_from_given_states(batched):
    layers = [cells.gru(WIDTH), cells.lstm(2)]
    params = implicit_rnn.init_stack(layers, jax.random.key(0), INPUTS)
    _, xs = example()
    xs = jnp.stack([xs, 2 * xs]) if batched else xs
    run = jax.jit(lambda xs, states: implicit_rnn.stack(layers, params, xs, states=states))
    whole, last = run(xs, None)
    first, states = run(xs[..., :4, :], None)
    second, again = run(xs[..., 4:, :], states)
    np.testing.assert_allclose(jnp.concatenate([first, second], axis=-2), whole, atol=1e-6)
    chex.assert_trees_all_close(last, again, atol=1e-6)


def test_solved_layers_carry_nothing_on():
    layers = [cells.igru(WIDTH), cells.gru(WIDTH)]
    params = implicit_rnn.init_stack(layers, jax.random.key(0), INPUTS)
    _, xs = example()
    run = jax.jit(
        lambda states: implicit_rnn.stack(layers, params, xs, states=states, method="banded")
    )
    ys, told = run(None)
    again, _ = run([None, told[1]])
    assert np.any(ys != again)
    np.testing.assert_array_equal(run(told)[0], again)
    with pytest.raises(ValueError, match="no state to start from"):
        implicit_rnn.stack(layers, params, xs, states=[jnp.zeros(WIDTH), None])
    with pytest.raises(ValueError, match="states for 1"):
        implicit_rnn.stack(layers, params, xs, states=[None])


STREAM = [cells.gru(WIDTH), cells.lstm(2)]


def test_windows_of_a_stream_give_its_values_and_a_gradient_that_ends_with_them():
    with jax.enable_x64(True):
        params = implicit_rnn.init_stack(STREAM, jax.random.key(0), INPUTS)
        _, xs = example(time=6)

        def in_windows(params, xs):
            states, outputs = implicit_rnn.initial_states(STREAM, params), []
            for window in (xs[:3], xs[3:]):
                ys, states = implicit_rnn.stateful(STREAM, params, window, states)
                outputs.append(ys)
            return jnp.concatenate(outputs), states

        def truncated(params, xs):
            return implicit_rnn.stack(STREAM, params, xs, truncate=3)

        gradient, told = program(in_windows)(params, xs)
        expected, values = program(truncated)(params, xs)
        chex.assert_trees_all_close(told, values, atol=1e-12)
        chex.assert_trees_all_close(gradient, expected, atol=1e-12)


def test_reset_starts_single_streams_anew():
    params = implicit_rnn.init_stack(STREAM, jax.random.key(0), INPUTS)
    xs = jax.random.normal(jax.random.key(1), (2, 4, INPUTS))
    begin = implicit_rnn.initial_states(STREAM, params, (2,))
    run = jax.jit(
        lambda states, reset, n: implicit_rnn.stateful(
            STREAM, params, xs, states, reset=reset, length=n
        )
    )
    length = jnp.array([4, 2])
    fresh, states = run(begin, jnp.array([False, False]), length)
    mixed, _ = run(states, jnp.array([False, True]), length)
    np.testing.assert_array_equal(mixed[1], fresh[1])
    assert np.any(mixed[0] != fresh[0])


def test_only_causal_layers_run_window_after_window():
    for layer in (cells.igru(WIDTH), (CELL, CELL)):
        with pytest.raises(ValueError, match="only a causal cell"):
            implicit_rnn.stateful([layer], [None], jnp.zeros((3, INPUTS)), [None])


def test_what_a_residual_adds_is_zero_past_the_length():
    layers = [cells.gru(3), cells.gru(3)]
    params = implicit_rnn.init_stack(layers, jax.random.key(0), 3)
    xs = jax.random.normal(jax.random.key(1), (2, 5, 3)).at[:, 3:].set(jnp.nan)
    ys, _ = implicit_rnn.stack(layers, params, xs, length=jnp.array([3, 2]), residual=True)
    whole, _ = implicit_rnn.stack(layers, params, xs[0, :3], residual=True)
    np.testing.assert_allclose(ys[0, :3], whole, rtol=1e-6)
    assert np.all(ys[0, 3:] == 0)
    assert np.all(ys[1, 2:] == 0)
