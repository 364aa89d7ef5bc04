"""Of a recursive unit no more is kept than was asked for."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import implicit_rnn
from implicit_rnn import cells
from tests.implicit_rnn.cells.test_xrnn import INPUTS, LENGTH, WIDTH, example, made


def test_chunks_and_truncation_take_steps_one_by_one():
    cell = made("depth 1")
    params, xs = example(cell)
    broken = cell._replace(run=lambda *at: pytest.fail("all at once"))
    expected, _ = implicit_rnn.unroll(cell, params, xs, length=LENGTH)
    for setting in ({"chunk": 2}, {"truncate": 2}):
        ys, _ = implicit_rnn.unroll(broken, params, xs, length=LENGTH, **setting)
        np.testing.assert_allclose(ys, expected, atol=1e-6)


def kept_by_steps(depth):
    """Arrays `[time, width]` that a gradient through steps one by one keeps."""
    long, width = 101, 7
    cell = cells.xrnn(width, depth=depth, base="linear_state")
    params = jax.eval_shape(lambda key: cell.init(key, INPUTS), jax.random.key(0))

    def backward(params, xs):
        return jax.vjp(lambda *at: implicit_rnn.unroll(cell, *at)[0], params, xs)[1]

    pull = jax.eval_shape(backward, params, jax.ShapeDtypeStruct((long, INPUTS), jnp.float32))
    return sum(leaf.size == long * width and leaf.dtype != bool for leaf in jax.tree.leaves(pull))


def test_steps_one_by_one_keep_few_arrays_of_a_unit():
    # A state, four factors and the slope of the candidate; above the maximum depth two differences;
    # and once a mask of the outputs.
    assert kept_by_steps(1) <= 6 + 1
    assert kept_by_steps(3) <= 6 * 7 + 2 * 3 + 1


def sequences_kept(depth, keep):
    """How many activations of the whole sequence wait for the backward pass."""
    cell = cells.xrnn(WIDTH, depth=depth, keep=keep)
    long = 101
    params = jax.eval_shape(lambda key: cell.init(key, INPUTS), jax.random.key(0))

    def backward(params, xs):
        return jax.vjp(lambda *at: implicit_rnn.unroll(cell, *at)[0], params, xs)[1]

    pull = jax.eval_shape(backward, params, jax.ShapeDtypeStruct((long, INPUTS), jnp.float32))
    activations = [
        leaf.size / (long * WIDTH)
        for leaf in jax.tree.leaves(pull)
        if leaf.shape[-2:] == (long, WIDTH) and leaf.dtype != bool
    ]
    return sum(activations)


def test_a_gradient_does_not_keep_a_copy_of_activations_for_every_unit():
    assert sequences_kept(4, "inputs") == sequences_kept(1, "inputs") <= 1
    assert sequences_kept(4, "chunks") == sequences_kept(1, "chunks") <= 1
    on_cpu = jax.default_backend() == "cpu"
    for depth, elsewhere in ((4, "inputs"), (3, "outputs")):
        expected = sequences_kept(depth, "chunks" if on_cpu else elsewhere)
        assert sequences_kept(depth, "auto") == expected
    # Of each unit but the root what it gives, and nothing else.
    assert sequences_kept(4, "outputs") == sequences_kept(1, "outputs") + 14
    assert sequences_kept(4, "everything") > 5 * 15


@pytest.mark.slow
def test_peak_memory_at_depth_4_is_a_part_of_that_of_all_activations():
    def peak(keep):
        cell = cells.xrnn(8, depth=4, keep=keep)
        params = cell.init(jax.random.key(0), INPUTS)
        loss = jax.grad(lambda p, x: jnp.sum(jnp.sin(implicit_rnn.unroll(cell, p, x)[0])))
        program = jax.jit(loss).lower(params, jnp.zeros((256, INPUTS))).compile()
        return program.memory_analysis().temp_size_in_bytes

    assert peak("inputs") < 0.5 * peak("everything")
