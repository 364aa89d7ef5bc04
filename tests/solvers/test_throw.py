"""Solves that fail raise where they are asked to, out of any transform."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import solvers
from solvers import adjoint, linear
from tests.solvers.test_requests import diverging


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_throw_raises_out_of_jit_and_vmap_and_says_which_and_what(wrap):
    def solve(c):
        return solvers.fixed_point(
            lambda _, x: c * x + 1, None, jnp.zeros(()), method="picard", throw=True
        )[0]

    gains = jnp.array([0.5, 3.0, 0.1])
    with pytest.raises(Exception, match="did not converge") as caught:
        jax.block_until_ready(wrap(jax.vmap(solve))(gains))
    text = str(caught.value)
    assert "DIVERGED" in text
    assert "index 1" in text
    assert "Use newton or auto" in text


@pytest.mark.parametrize(
    ("kind", "mode"), [("implicit", jax.grad), ("tangent", jax.grad), ("tangent", jax.jacfwd)]
)
def test_throw_raises_from_the_solve_of_a_derivative(kind, mode):
    def loss(w):
        x, _ = solvers.fixed_point(
            lambda w, x: jnp.tanh(w @ x),
            w,
            jnp.ones(3),
            rtol=1e-2,
            adjoint=getattr(adjoint, kind)(linear.bicgstab(max_steps=0)),
            throw=True,
        )
        return jnp.sum(x)

    with pytest.raises(Exception, match=r"(backward solves|of a derivative) did not converge"):
        jax.block_until_ready(jax.jit(mode(loss))(0.5 * jnp.eye(3)))


def test_throw_raises_from_the_gradient_of_a_linear_solve():
    def loss(b, scale):
        # A start at the solution spares the solve, but not that of the gradient, its steps.
        x, _ = solvers.linear_solve(
            lambda v: scale * v, b, solver=linear.gmres(max_steps=0), x0=b / 3, throw=True
        )
        return jnp.sum(jnp.sin(x))

    assert float(loss(jnp.ones(3), 3.0)) > 0
    with pytest.raises(Exception, match="of a derivative did not converge"):
        jax.block_until_ready(jax.grad(loss)(jnp.ones(3), 3.0))


@pytest.mark.parametrize("how", [adjoint.one_step(), adjoint.neumann(2), adjoint.rbp(3)])
def test_throw_takes_a_truncated_series_as_it_was_asked_for(how):
    def loss(w):
        x, _ = solvers.fixed_point(
            lambda w, x: 0.5 * jnp.cos(w * x), w, jnp.zeros(()), adjoint=how, throw=True
        )
        return x

    assert np.isfinite(jax.grad(loss)(1.0))


def test_throw_raises_also_where_only_the_info_is_used():
    run = jax.jit(
        lambda x: solvers.fixed_point(diverging, None, x, method="picard", throw=True)[1].steps
    )
    with pytest.raises(Exception, match="did not converge"):
        jax.block_until_ready(run(jnp.zeros(())))


def test_throw_is_silent_where_all_is_well():
    value, info = jax.jit(
        lambda a: solvers.fixed_point(lambda a, x: jnp.cos(a * x), a, jnp.zeros(()), throw=True)
    )(1.0)
    assert info.converged
    np.testing.assert_allclose(value, 0.7390851, rtol=1e-4)
