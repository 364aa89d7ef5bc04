"""Spectral bounds: what they guarantee, and that they follow a training run."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from implicit_rnn import cells, spectral


def test_bounds_hold_through_updates_that_would_break_them():
    cell = cells.igru(12)
    params = cell.init(jax.random.key(0), 3)
    optimiser = optax.chain(optax.sgd(1.0), spectral.bounded(cell.bounds, rank=6))
    state = optimiser.init(params)

    def push(leaf):  # what a gradient looks like: low rank and a little noise
        shape = (2, leaf.size // leaf.shape[-1])
        left = jax.random.normal(jax.random.key(1), shape)
        right = jax.random.normal(jax.random.key(2), (2, leaf.shape[-1]))
        noise = 0.02 * jax.random.normal(jax.random.key(3), leaf.shape)
        return -0.02 * ((left.T @ right).reshape(leaf.shape) + noise)

    push = jax.tree.map(push, params)

    @jax.jit
    def step(params, state):
        updates, state = optimiser.update(push, state, params)
        return optax.apply_updates(params, updates), state

    free = params
    for _ in range(150):
        params, state = step(params, state)
        free = jax.tree.map(jnp.subtract, free, push)
    limits = {
        jax.tree_util.keystr(path): limit
        for path, limit in jax.tree_util.tree_leaves_with_path(cell.bounds)
    }
    sizes = spectral.norms(params, cell.bounds)
    assert set(sizes) == set(limits)
    assert any(np.any(s > 1.5 * limits[n]) for n, s in spectral.norms(free, cell.bounds).items())
    for name, limit in limits.items():
        assert np.all(sizes[name] <= 1.05 * limit), (name, sizes[name])
    np.testing.assert_allclose(params["cell"]["bias"], free["cell"]["bias"], rtol=1e-5)


def test_matrices_within_their_bounds_are_left_alone():
    cell = cells.igru(6)
    params = cell.init(jax.random.key(0), 3)
    link = spectral.bounded(cell.bounds)
    zero = jax.tree.map(jnp.zeros_like, params)
    updates, _ = link.update(zero, link.init(params), params)
    assert all(np.abs(leaf).max() < 1e-6 for leaf in jax.tree.leaves(updates))


def test_clipping_removes_the_excess_of_the_leading_singular_values_only():
    rng = np.random.default_rng(0)
    left, _ = np.linalg.qr(rng.standard_normal((8, 8)))
    right, _ = np.linalg.qr(rng.standard_normal((8, 8)))
    values = np.array([9.0, 3.0, 0.9, 0.8, 0.5, 0.3, 0.2, 0.1])
    params = {"w": jnp.asarray(left @ np.diag(values) @ right, jnp.float32)}
    link = spectral.bounded({"w": 1.0}, rank=3)
    state = link.init(params)
    for _ in range(20):
        updates, state = link.update(jax.tree.map(jnp.zeros_like, params), state, params)
        params = optax.apply_updates(params, updates)
    expected = left @ np.diag(np.minimum(values, 1)) @ right
    np.testing.assert_allclose(params["w"], expected, atol=2e-2)


def test_reparametrisation_bounds_the_norm_and_has_the_right_gradient():
    with jax.enable_x64(True):
        rng = np.random.default_rng(1)
        params = {"w": jnp.asarray(rng.standard_normal((5, 5))), "b": jnp.ones(5)}

        def loss(w):
            return jnp.sum(
                jnp.sin(
                    spectral.reparametrised({"w": w, "b": params["b"]}, {"w": 1.0}, steps=60)["w"]
                )
            )

        inside = spectral.reparametrised(params, {"w": 1.0}, steps=60)
        np.testing.assert_allclose(jnp.linalg.norm(inside["w"], 2), 1.0, rtol=1e-6)
        np.testing.assert_array_equal(inside["b"], params["b"])
        direction = jnp.asarray(rng.standard_normal((5, 5)))
        h = 1e-6
        numeric = (loss(params["w"] + h * direction) - loss(params["w"] - h * direction)) / (2 * h)
        np.testing.assert_allclose(
            jnp.vdot(jax.grad(loss)(params["w"]), direction), numeric, rtol=1e-5
        )


def test_bad_bounds_are_named():
    params = {"w": jnp.ones((3, 4))}
    with pytest.raises(ValueError, match="shape"):
        spectral.bounded({"w": 1.0}).init(params)
    with pytest.raises(ValueError, match="bounds name"):
        spectral.bounded({"v": 1.0}).init(params)
    link = spectral.bounded({"w": 1.0})
    with pytest.raises(ValueError, match="needs the parameters"):
        link.update(params, link.init({"w": jnp.ones((3, 3))}))
