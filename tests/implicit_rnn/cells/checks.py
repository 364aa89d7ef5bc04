"""What every cell must hold to: gradients, its step from rest, its equation as an implicit one."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp
import numpy as np

import implicit_rnn
from implicit_rnn import cells


def drawn(tree, seed=0, scale=0.7):
    """The same tree with other numbers, none of them zero."""
    random = np.random.default_rng(seed)
    return jax.tree.map(
        lambda leaf: jnp.asarray(scale * random.normal(size=leaf.shape), leaf.dtype), tree
    )


def assert_gradients_are_finite_differences(cell, params, xs, length):
    """Of outputs and last state, with respect to parameters and inputs; in float64."""

    @jax.jit
    @jax.value_and_grad
    def loss(at):
        ys, last = implicit_rnn.unroll(cell, *at, length=length)
        return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves((ys, last)))

    at = params, xs
    direction = drawn(at, seed=1)
    ahead, behind = (
        loss(jax.tree.map(lambda leaf, d, e=e: leaf + e * d, at, direction))[0]
        for e in (1e-6, -1e-6)
    )
    gradient = loss(at)[1]
    assert np.all(gradient[1][length:] == 0)
    slope = sum(jax.tree.leaves(jax.tree.map(lambda g, d: np.sum(g * d), gradient, direction)))
    np.testing.assert_allclose((ahead - behind) / 2e-6, slope, rtol=1e-6)


def assert_rest_is_the_step_from_zero(cell, params, xs):
    """All of `xs` counts."""
    xi = cell.project(params, xs)
    zero = jax.tree.map(lambda leaf: jnp.zeros((len(xs), *leaf.shape)), cell.initial_state(params))
    expected, kept = jax.jit(cell.split_step)(params, xi, zero)
    chex.assert_trees_all_close(jax.jit(cell.at_rest)(params, xi), (expected, kept), atol=1e-6)
    chex.assert_trees_all_equal_structs(zero, expected, kept)


def assert_implicit_solves_its_equation(causal: cells.Cell, xs, length, method):
    cell = cells.implicit(causal)
    params = cell.init(jax.random.key(0), xs.shape[-1])

    @jax.jit
    def solve(params, xs):
        states, info = implicit_rnn.implicit(
            cell, params, xs, length=length, method=method, rtol=1e-5
        )
        around = jax.tree.map(lambda leaf: jnp.pad(leaf[:length], ((1, 1), (0, 0))), states)
        before, after = (
            jax.tree.map(lambda leaf, part=part: leaf[part], around)
            for part in (slice(None, -2), slice(2, None))
        )
        step = jax.vmap(lambda *at: cell.step(params, *at))
        return states, info, step(cell.project(params, xs[:length]), before, after)

    states, info, image = solve(params, xs)
    assert info.converged
    chex.assert_trees_all_close(
        jax.tree.map(lambda leaf: leaf[:length], states), image, rtol=1e-3, atol=1e-4
    )
    assert all(np.all(leaf[length:] == 0) for leaf in jax.tree.leaves(states))
