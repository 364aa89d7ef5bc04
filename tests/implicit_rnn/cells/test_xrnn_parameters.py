"""Parameters of a recursive unit, and the weights of its recursion."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import implicit_rnn
from implicit_rnn import cells
from implicit_rnn.experiments import plots
from tests.implicit_rnn.cells.equations import sigmoid
from tests.implicit_rnn.cells.test_xrnn import INPUTS, LENGTH, TIME, WIDTH, example, made


def count(tree):
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_shapes_and_numbers_of_parameters_follow_from_the_depth(depth):
    units, inner = 2**depth - 1, 2 ** (depth - 1) - 1
    n, d = INPUTS, WIDTH
    weighing = {"dynamic": 2 * (n + 1), "static": 2 * (n + 1), "scalar": 2, 0.5: 0}
    for kind, weights in weighing.items():
        cell = cells.xrnn(d, depth=depth, recursion=kind, skip=True)
        params = jax.eval_shape(lambda key, cell=cell: cell.init(key, n), jax.random.key(0))
        assert count(params) == units * (3 * d * (n + 1) + n * d) + inner * weights
        ys, last = jax.eval_shape(
            lambda p, x, cell=cell: implicit_rnn.unroll(cell, p, x),
            params,
            jax.ShapeDtypeStruct((TIME, n), jnp.float32),
        )
        assert ys.shape == (TIME, d)
        assert [leaf.shape for leaf in jax.tree.leaves(last)] == [(d,)] * units
    per_unit = {
        "linear_state": 3 * d * (n + 1 + d),
        "convolution": 3 * d * (4 * n + 1),
        "rnn": 3 * d * (n + d + 1),
        "gru": 9 * d * (n + d + 1),
        "lstm": 12 * d * (n + d + 1),
    }
    for base, expected in per_unit.items():
        cell = cells.xrnn(d, depth=depth, base=base, recursion=0.5, filter_width=4)
        params = jax.eval_shape(lambda key, cell=cell: cell.init(key, n), jax.random.key(0))
        assert count(params) == units * expected


def test_every_unit_starts_with_numbers_of_its_own():
    params = cells.xrnn(WIDTH, depth=2).init(jax.random.key(0), INPUTS)
    leaves = [p for p in jax.tree.leaves(params) if p.shape == (INPUTS, 3 * WIDTH)]
    assert len({float(leaf[0, 0]) for leaf in leaves}) == len(leaves) == 3


def test_biases_begin_where_they_are_told_to():
    cell = cells.xrnn(WIDTH, update_bias=(-3, 1), output_bias=2)
    params = cell.init(jax.random.key(0), INPUTS)
    expected = [-3, -1, 1, 2, 2, 2, 0, 0, 0]
    for unit in (params, params["forget"], params["output"]):
        np.testing.assert_allclose(unit["base"]["bias"], expected)


@pytest.mark.parametrize("kind", ["dynamic", "scalar"])
def test_parameters_have_the_types_that_updates_give_them(kind):
    """A weak type would go with the first update, and every program be compiled once more."""
    cell = cells.xrnn(WIDTH, recursion=kind)
    params = jax.eval_shape(lambda key: cell.init(key, INPUTS), jax.random.key(0))
    assert not any(leaf.weak_type for leaf in jax.tree.leaves(params))


def test_recursion_weights_are_named_by_their_place_in_the_tree():
    cell = made("linear")
    params, xs = example(cell)
    weights = cells.recursion_weights(cell, params, xs, length=LENGTH)
    assert list(weights) == ["L", "R", "LL", "LR", "RL", "RR"]
    of_left = params["forget"]["recursion"]
    expected = xs[:LENGTH] @ of_left["weights"] + of_left["bias"]
    np.testing.assert_allclose(weights["LL"][:LENGTH], expected[:, 0], atol=1e-6)
    np.testing.assert_allclose(weights["LR"][:LENGTH], expected[:, 1], atol=1e-6)
    assert all(np.all(found[LENGTH:] == 0) for found in weights.values())
    other = cells.gru(WIDTH)
    with pytest.raises(ValueError, match="gru is none"):
        cells.recursion_weights(other, example(other)[0], xs)


def test_static_weights_are_those_of_the_steps_that_count():
    cell = made("static")
    params, xs = example(cell)
    weights = cells.recursion_weights(cell, params, xs, length=LENGTH)
    own = params["recursion"]
    expected = sigmoid(np.sum(xs[:LENGTH], axis=0) @ own["weights"] + own["bias"])
    np.testing.assert_allclose(weights["R"][:LENGTH], np.full(LENGTH, expected[1]), atol=1e-6)


def test_recursion_weights_are_drawn(tmp_path: Path):
    cell = cells.xrnn(WIDTH, depth=4)
    params, _ = example(cell)
    xs = jax.random.normal(jax.random.key(0), (TIME, INPUTS))
    weights = cells.recursion_weights(cell, params, xs)
    path = plots.recursion(weights, tmp_path / "made" / "figure.png", "A title")
    assert path.read_bytes().startswith(b"\x89PNG")
    plots.recursion({}, path, "Depth 1 has none")
