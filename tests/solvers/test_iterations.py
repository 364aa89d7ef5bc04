"""Gradients through iterations, and what a solve tells of them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import solvers
from solvers import adjoint


def test_iterates_on_the_way_can_be_recorded_and_differentiated():
    def f(a, x):
        return 0.5 * jnp.cos(a * x) + 0.1

    def loss(a):
        _, info = solvers.fixed_point(f, a, jnp.zeros(()), method="picard", record=(0, 2, 500))
        return jnp.sum(info.iterates), info.iterates

    slope, states = jax.grad(loss, has_aux=True)(1.0)
    path = [0.0]
    for _ in range(60):
        path.append(0.5 * np.cos(path[-1]) + 0.1)
    # Each after one more evaluation; beyond the end of the solve, the last one.
    np.testing.assert_allclose(states, [path[1], path[3], path[-1]], rtol=1e-4)
    through = sum(-0.5 * x * np.sin(x) for x in (path[0], path[2], path[-1]))
    np.testing.assert_allclose(slope, through, rtol=1e-3)


@pytest.mark.parametrize("make", [adjoint.bptt, lambda **kw: adjoint.tbptt(20, **kw)])
def test_checkpointed_unrolling_gives_the_same_gradient_and_keeps_less(make):
    def loss(w, checkpoint):
        x, _ = solvers.fixed_point(
            lambda w, x: jnp.tanh(w @ x + 1),
            w,
            jnp.zeros(32),
            method="picard",
            max_steps=64,
            adjoint=make(checkpoint=checkpoint),
            rtol=0.0,
            patience=None,
        )
        return jnp.sum(x)

    w = 0.5 * jnp.eye(32)
    plain, saving = (jax.jit(jax.grad(lambda w, c=c: loss(w, c))) for c in (None, 8))
    np.testing.assert_allclose(plain(w), saving(w), rtol=1e-5, atol=1e-6)
    if make is adjoint.bptt:
        sizes = [f.lower(w).compile().memory_analysis().temp_size_in_bytes for f in (plain, saving)]
        assert sizes[1] < 0.6 * sizes[0]


def test_the_gradient_through_iterations_is_that_of_the_iterations():
    """`bptt` of `picard`: the derivative of a few steps, not of the solution."""

    def unrolled(w):
        x = jnp.zeros(3)
        for _ in range(4):
            x = jnp.tanh(w @ x + 1)
        return jnp.sum(x)

    def loss(w):
        x, _ = solvers.fixed_point(
            lambda w, x: jnp.tanh(w @ x + 1),
            w,
            jnp.zeros(3),
            method="picard",
            max_steps=4,
            adjoint="bptt",
            rtol=0.0,
        )
        return jnp.sum(x)

    w = 0.8 * jnp.eye(3) + 0.1
    np.testing.assert_allclose(jax.grad(loss)(w), jax.grad(unrolled)(w), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("method", ["anderson", "broyden", "auto"])
def test_coefficients_chosen_on_the_way_are_constants_of_bptt(method):
    """Of a linear map the iterations with these coefficients end at its derivative."""
    matrix = jnp.array([[0.3, 0.2], [-0.1, 0.5]])

    def loss(b):
        x, _ = solvers.fixed_point(
            lambda b, x: matrix @ x + b,
            b,
            jnp.zeros(2),
            method=method,
            adjoint="bptt",
            max_steps=12,
            rtol=1e-6,
        )
        return jnp.vdot(jnp.array([1.0, -2.0]), x)

    expected = np.linalg.solve(np.eye(2) - np.asarray(matrix).T, [1.0, -2.0])
    np.testing.assert_allclose(jax.grad(loss)(jnp.ones(2)), expected, rtol=1e-2)
