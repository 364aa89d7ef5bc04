"""Newton's method over time gives what a loop over time gives."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

import implicit_rnn
import solvers
from implicit_rnn import cells
from solvers import Status

TIME, WIDTH, INPUTS = 9, 3, 2
CAUSAL = sorted(name for name, make in cells.CELLS.items() if make(1).stencil == (-1,))
QUICK = [("gru", "full"), ("lstm", "diagonal"), ("deep_rnn", "diagonal")]
SLOW = [
    pytest.param(name, jacobian, marks=pytest.mark.slow)
    for name in CAUSAL
    for jacobian in ("full", "diagonal")
    if (name, jacobian) not in QUICK
]


def example(cell, time=TIME, scale=1.0):
    params = jax.tree.map(lambda leaf: scale * leaf, cell.init(jax.random.key(0), INPUTS))
    return params, jax.random.normal(jax.random.key(1), (time, INPUTS))


def program(run):
    """Gradient of a loss of the outputs, the outputs, and what else is told."""

    def loss(params, xs, *more):
        ys, *told = run(params, xs, *more)
        weights = jnp.arange(1.0, 1 + ys.size).reshape(ys.shape)
        return jnp.sum(weights * jnp.sin(ys)), (ys, *told)

    return jax.jit(jax.grad(loss, (0, 1), has_aux=True))


@pytest.mark.parametrize(("name", "jacobian"), [*QUICK, *SLOW])
def test_parallel_equals_unroll_in_values_and_gradients(name, jacobian):
    with jax.enable_x64(True):
        cell = cells.CELLS[name](WIDTH)
        params, xs = example(cell)
        state = jax.tree.map(lambda leaf: leaf + 0.3, cell.initial_state(params))
        expected, (ys, end) = program(
            lambda params, xs: implicit_rnn.unroll(cell, params, xs, state=state)
        )(params, xs)
        got, (found, last, info) = program(
            lambda params, xs: implicit_rnn.parallel(
                cell, params, xs, state=state, jacobian=jacobian
            )
        )(params, xs)
        assert info.converged
        np.testing.assert_allclose(found, ys, atol=1e-11)
        chex.assert_trees_all_close(last, end, atol=1e-11)
        chex.assert_trees_all_close(got, expected, atol=1e-8)


@pytest.mark.parametrize("jacobian", ["full", pytest.param("diagonal", marks=pytest.mark.slow)])
def test_padding_changes_nothing_in_a_batch_of_any_lengths(jacobian):
    cell = cells.gru(WIDTH)
    params, xs = example(cell)
    lengths = jnp.array([0, 1, 4, TIME])
    xs = jnp.stack([xs, -xs, 2 * xs, xs[::-1]])
    past = jnp.arange(TIME)[:, None] >= lengths[:, None, None]

    def batch(params, xs):
        return jax.vmap(
            lambda x, n: implicit_rnn.parallel(cell, params, x, length=n, jacobian=jacobian)
        )(xs, lengths)

    def in_a_loop(params, xs):
        return jax.vmap(lambda x, n: implicit_rnn.unroll(cell, params, x, length=n))(xs, lengths)

    run = program(batch)
    clean = run(params, xs)
    dirty = run(params, jnp.where(past, jnp.nan, xs))
    chex.assert_trees_all_equal(clean, dirty)
    gradient, (ys, last, info) = clean
    assert np.all(info.converged)
    assert info.steps[0] == 0
    assert info.steps[1] <= 1
    assert np.all(np.where(past, ys, 0) == 0)
    expected, (values, end) = program(in_a_loop)(params, xs)
    np.testing.assert_allclose(ys, values, atol=1e-5)
    np.testing.assert_allclose(last, end, atol=1e-5)
    chex.assert_trees_all_close(gradient, expected, rtol=1e-3, atol=2e-3)


def test_no_time_at_all_is_legal():
    cell = cells.gru(WIDTH)
    params, _ = example(cell)
    ys, _, info = jax.jit(lambda x: implicit_rnn.parallel(cell, params, x))(jnp.zeros((0, INPUTS)))
    assert ys.shape == (0, WIDTH)
    assert info.converged


@pytest.mark.parametrize(
    ("name", "jacobian"),
    [("rnn", "full"), ("gru", "diagonal"), pytest.param("gru", "full", marks=pytest.mark.slow)],
)
def test_large_weights_are_solved_in_at_most_as_many_sweeps_as_steps(name, jacobian):
    cell = cells.CELLS[name](6)
    params, xs = example(cell, time=50, scale=4.0)
    ys, _, info = jax.jit(lambda p, x: implicit_rnn.parallel(cell, p, x, jacobian=jacobian))(
        params, xs
    )
    assert info.converged
    assert 3 < info.steps <= 50
    np.testing.assert_allclose(ys, implicit_rnn.unroll(cell, params, xs)[0], atol=2e-3)


def test_what_is_not_solved_is_not_claimed():
    cell = cells.rnn(6)
    params, xs = example(cell, time=30, scale=6.0)
    ys, _, info = jax.jit(lambda p, x: implicit_rnn.parallel(cell, p, x, max_steps=5))(params, xs)
    assert info.status == Status.MAX_STEPS
    assert np.all(np.isfinite(ys))
    assert np.max(np.abs(ys - implicit_rnn.unroll(cell, params, xs)[0])) > 1e-2


def test_it_runs_from_the_end_to_the_beginning():
    cell = cells.lstm(WIDTH)
    params, xs = example(cell)
    for length in (0, 4, TIME):
        ys, last, _ = implicit_rnn.parallel(cell, params, xs, length, reverse=True)
        expected = implicit_rnn.unroll(cell, params, xs, length, reverse=True)
        chex.assert_trees_all_close((ys, last), expected, atol=1e-5)


def test_inputs_that_are_not_finite_are_reported():
    cell = cells.gru(WIDTH)
    params, xs = example(cell)
    run = jax.jit(lambda xs: implicit_rnn.parallel(cell, params, xs))
    ys, _, info = run(xs.at[3].set(jnp.nan))
    assert info.status == Status.NONFINITE
    assert np.all(np.isfinite(ys))


@pytest.mark.parametrize(("width", "blocks"), [(32, True), (33, False)])
def test_wide_states_are_solved_without_blocks(width, blocks):
    cell = cells.rnn(width)
    params, xs = jax.eval_shape(lambda: example(cell))
    program = jax.make_jaxpr(lambda p, x: implicit_rnn.parallel(cell, p, x))(params, xs)
    assert (f"[{TIME},{width},{width}]" in str(program)) == blocks


def test_with_full_jacobians_the_backward_solve_is_direct():
    cell = cells.gru(WIDTH)
    params, xs = example(cell)

    def loss(probe):
        return jnp.sum(implicit_rnn.parallel(cell, params, xs, probe=probe)[0])

    seen = jax.jit(jax.grad(loss))(solvers.adjoint_probe())
    assert seen.status == Status.CONVERGED
    assert seen.steps == 1


@pytest.mark.slow
def test_second_derivatives_pass():
    with jax.enable_x64(True):
        cell = cells.gru(2)
        params, xs = example(cell, time=4)

        def curvature(run):
            def loss(xs):
                return jnp.sum(jnp.sin(run(cell, params, xs)[0]))

            return jax.jit(jax.grad(lambda xs: jnp.sum(jnp.cos(jax.grad(loss)(xs)))))(xs)

        np.testing.assert_allclose(
            curvature(implicit_rnn.parallel), curvature(implicit_rnn.unroll), atol=1e-8
        )


@pytest.mark.parametrize("jacobian", ["full", pytest.param("diagonal", marks=pytest.mark.slow)])
def test_program_lowers_for_cuda_and_tpu(jacobian):
    cell = cells.lstm(WIDTH)
    params, xs = example(cell)

    def loss(params, xs):
        ys, _, info = implicit_rnn.parallel(cell, params, xs, jacobian=jacobian)
        return jnp.sum(ys), info

    lowered = export.export(jax.jit(jax.grad(loss, has_aux=True)), platforms=["cuda", "tpu"])
    assert lowered(params, xs).platforms == ("cuda", "tpu")


def test_bad_arguments_are_named():
    cell = cells.gru(WIDTH)
    params, xs = example(cell)
    with pytest.raises(ValueError, match='"full" or "diagonal"'):
        implicit_rnn.parallel(cell, params, xs, jacobian="block")
    with pytest.raises(ValueError, match="damping must be at least 0"):
        implicit_rnn.parallel(cell, params, xs, damping=1.5)
    with pytest.raises(ValueError, match="parallel takes a causal cell"):
        implicit_rnn.parallel(cells.igru(WIDTH), params, xs)
    with pytest.raises(ValueError, match=r"use jax\.vmap"):
        implicit_rnn.parallel(cell, params, xs[None])
