"""The deep variants of figure 10.13."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import implicit_rnn
from implicit_rnn import cells, spectral

TIME, WIDTH, INPUTS = 5, 3, 2


def inputs(size=INPUTS):
    return jax.random.normal(jax.random.key(1), (TIME, size))


def test_stacked_cell_is_a_stack_of_layers():
    layers = [cells.lstm(2), cells.rnn(WIDTH)]
    cell = cells.stacked(layers)
    assert cell.hidden_size == WIDTH
    with jax.enable_x64(True):
        params, xs = cell.init(jax.random.key(0), INPUTS), inputs()

        def program(run):
            def loss(params):
                ys, last = run(params)
                return jnp.sum(jnp.sin(ys)), (ys, tuple(last))

            return jax.jit(jax.grad(loss, has_aux=True))(params)

        chex.assert_trees_all_close(
            program(lambda params: implicit_rnn.unroll(cell, params, xs, length=4)),
            program(lambda params: implicit_rnn.stack(layers, params, xs, length=4)),
            atol=1e-12,
        )


def test_stacked_cell_is_a_cell_like_any_other():
    """It can be made implicit, and solved in parallel over time."""
    cell = cells.stacked([cells.gru(WIDTH), cells.gru(WIDTH)])
    deep = cells.implicit(cell)
    assert deep.bands is not None
    params, xs = deep.init(jax.random.key(0), INPUTS), inputs()
    states, info = jax.jit(lambda p, x: implicit_rnn.implicit(deep, p, x, method="banded"))(
        params, xs
    )
    assert info.converged
    assert cell.output(states).shape == (TIME, WIDTH)
    ys, _, info = jax.jit(lambda p, x: implicit_rnn.parallel(cell, p, x))(params["cell"], xs)
    assert info.converged
    np.testing.assert_allclose(ys, implicit_rnn.unroll(cell, params["cell"], xs)[0], atol=1e-5)


@pytest.mark.parametrize("own", [cells.stacked([cells.gru(2), cells.lstm(2)]), cells.deep_rnn(2)])
def test_the_matrices_inside_of_a_deep_implicit_cell_are_bounded(own):
    cell = cells.implicit(own)
    params = jax.tree.map(lambda leaf: 100 * leaf, cell.init(jax.random.key(0), INPUTS))
    update, state = spectral.bounded(cell.bounds).update, spectral.bounded(cell.bounds).init(params)
    changes, _ = update(jax.tree.map(jnp.zeros_like, params), state, params)
    bounded = jax.tree.map(lambda leaf, change: leaf + change, params, changes)
    limits = dict(jax.tree_util.tree_leaves_with_path(cell.bounds))
    inner = [path for path in limits if path[0].key == "cell"]
    assert len(inner) >= 2
    leaves = dict(jax.tree_util.tree_leaves_with_path(bounded))
    for path in inner:
        blocks = jnp.split(leaves[path], leaves[path].shape[1] // leaves[path].shape[0], axis=1)
        for block in blocks:
            assert np.linalg.norm(block, 2) <= 1.01 * limits[path]


def test_stacked_needs_causal_cells():
    with pytest.raises(ValueError, match="causal"):
        cells.stacked([cells.gru(2), cells.igru(2)])
    with pytest.raises(ValueError, match="at least one"):
        cells.stacked([])


def perceptron(layers, v):
    for layer in layers:
        v = np.tanh(v @ layer["weights"] + layer["bias"])
    return v


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"skip": True},
        {"inputs": 0, "transition": 2, "outputs": 0, "skip": True},
        {"inputs": 2, "transition": 0, "outputs": 2},
    ],
)
def test_deep_rnn_follows_its_equations(options):
    cell = cells.deep_rnn(WIDTH, **options)
    params, xs = cell.init(jax.random.key(0), INPUTS), inputs()
    params = jax.tree.map(lambda leaf: leaf + 0.1, params)
    ys, last = jax.jit(lambda p, x: implicit_rnn.unroll(cell, p, x))(params, xs)
    p = jax.tree.map(np.asarray, params)
    h, expected = np.zeros(WIDTH), []
    for x in np.asarray(xs):
        scores = perceptron(p["inputs"], x) @ p["input"] + p["bias"]
        scores = scores + perceptron(p["transition"], h) @ p["recurrent"]
        h = np.tanh(scores + (h @ p["skip"] if options.get("skip") else 0))
        expected.append(perceptron(p["outputs"], h))
    np.testing.assert_allclose(ys, np.stack(expected), atol=1e-5)
    np.testing.assert_allclose(last.h, h, atol=1e-5)


def test_skip_shortens_the_path_from_step_to_step():
    """Where the transition's layers are saturated, only the skip carries a gradient."""

    def reach(skip):
        cell = cells.deep_rnn(WIDTH, transition=2, skip=skip)
        params = cell.init(jax.random.key(0), INPUTS)
        params["transition"][0]["bias"] += 30.0

        def last(xs):
            return jnp.sum(implicit_rnn.unroll(cell, params, xs)[0][-1])

        return np.max(np.abs(jax.jit(jax.grad(last))(inputs())[0]))

    assert reach(skip=False) == 0
    assert reach(skip=True) > 1e-4


def test_bad_depths_are_named():
    with pytest.raises(ValueError, match="inputs must be a number of layers"):
        cells.deep_rnn(2, inputs=-1)
    with pytest.raises(ValueError, match="needs transition >= 1"):
        cells.deep_rnn(2, transition=0, skip=True)
