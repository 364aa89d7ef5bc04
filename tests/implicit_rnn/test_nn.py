"""flax modules give the values of the pure functions and train with optax."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import implicit_rnn
import solvers
from implicit_rnn import cells, nn

CELL = cells.igru(4)
SETTINGS = {"method": "banded", "adjoint": solvers.Sweeps(), "rtol": 1e-6}


def data():
    return jax.random.normal(jax.random.key(0), (3, 6, 2)), jnp.array([6, 0, 4])


def expected(params, xs, length):
    """The states, by another method and one sequence at a time."""
    return jax.vmap(
        lambda x, n: implicit_rnn.implicit(CELL, params, x, length=n, method="picard", rtol=1e-6)[0]
    )(xs, length)


def test_nnx_layer_trains():
    xs, length = data()
    layer = nn.Implicit(CELL, 2, rngs=nnx.Rngs(0), **SETTINGS)
    optimiser = nnx.Optimizer(layer, optax.adam(1e-2), wrt=nnx.Param)

    @nnx.jit
    def step(layer, optimiser):
        def loss(layer):
            outputs, info = layer(xs, length)
            return jnp.mean((outputs[:, :, 0] - 0.5) ** 2), info

        (value, info), gradient = nnx.value_and_grad(loss, has_aux=True)(layer)
        optimiser.update(layer, gradient)
        return value, info

    values = []
    for _ in range(15):
        value, info = step(layer, optimiser)
        assert np.all(info.converged)
        values.append(float(value))
    assert values[-1] < values[0]
    params = jax.tree.map(
        lambda leaf: leaf[...], layer.params, is_leaf=lambda leaf: isinstance(leaf, nnx.Param)
    )
    np.testing.assert_allclose(layer(xs, length)[0], expected(params, xs, length), atol=1e-5)


def test_linen_layer_equals_the_pure_function():
    xs, length = data()
    layer = nn.LinenImplicit(CELL, SETTINGS)
    variables = jax.jit(layer.init)(jax.random.key(1), xs)
    outputs, info = jax.jit(layer.apply)(variables, xs, length)
    assert np.all(info.converged)
    params = variables["params"]["cell"]
    np.testing.assert_allclose(outputs, expected(params, xs, length), atol=1e-5)
    assert np.all(outputs[1] == 0)


def test_wrong_rank_is_named():
    layer = nn.Implicit(CELL, 2, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"\[batch, time, features\]"):
        layer(jnp.ones((5, 2)))
