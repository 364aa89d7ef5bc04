"""Gradients of implicit layers, and what becomes of stiff ones."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.flatten_util import ravel_pytree

import implicit_rnn
import solvers
from implicit_rnn import cells
from implicit_rnn.sequence.equation import probed_bands
from solvers import adjoint, linear
from tests.implicit_rnn.sequence.test_implicit import (
    CELLS,
    TIME,
    WIDTH,
    exact,
    example,
    residual,
    run,
)


@pytest.mark.parametrize(
    "name", ["learnt", *(pytest.param(name, marks=pytest.mark.slow) for name in ("ilstm", "wide"))]
)
def test_gradients_match_finite_differences(name):
    with jax.enable_x64(True):
        cell = CELLS[name]
        params, xs = example(cell, time=5)
        edge = jax.tree.map(lambda leaf: leaf + 0.2, cell.initial_state(params))

        @jax.jit
        def loss(params, xs, edge):
            states, _ = implicit_rnn.implicit(
                cell,
                params,
                xs,
                initial_state=edge,
                final_state=edge,
                rtol=1e-12,
                method="banded",
                adjoint=exact(cell),
            )
            return jnp.sum(jnp.sin(3 * cell.output(states)))

        point = (params, xs, edge)
        flat, unravel = ravel_pytree(point)
        direction = jax.random.normal(jax.random.key(9), flat.shape)
        gradient, _ = ravel_pytree(jax.grad(loss, argnums=(0, 1, 2))(*point))
        h = 1e-5
        numeric = (loss(*unravel(flat + h * direction)) - loss(*unravel(flat - h * direction))) / (
            2 * h
        )
        np.testing.assert_allclose(jnp.vdot(gradient, direction), numeric, rtol=1e-6)


@pytest.mark.parametrize(
    "how",
    ["auto", "implicit", "rbp", "tangent"]
    + [pytest.param(name, marks=pytest.mark.slow) for name in ("neumann", "cg_rbp", "tbptt")],
)
def test_adjoints_agree_on_the_gradient(how):
    with jax.enable_x64(True):
        cell = CELLS["igru"]
        params, xs = example(cell, time=5)
        choices = {
            "implicit": adjoint.implicit(linear.gmres(rtol=1e-11)),
            "rbp": adjoint.rbp(rtol=1e-11),
            "neumann": adjoint.neumann(150),
            "cg_rbp": adjoint.cg_rbp(rtol=1e-11),
            "tbptt": adjoint.tbptt(150),
            "tangent": adjoint.tangent(linear.gmres(rtol=1e-11)),
        }

        def loss(params, how):
            states, _ = implicit_rnn.implicit(
                cell, params, xs, rtol=1e-12, adjoint=how, method="banded"
            )
            return jnp.sum(states**3)

        expected = jax.jit(jax.grad(lambda p: loss(p, exact(cell))))(params)
        got = jax.jit(jax.grad(lambda p: loss(p, choices.get(how, how))))(params)
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-7)


def test_hessian_vector_product_and_probe():
    with jax.enable_x64(True):
        cell = CELLS["igru"]
        params, xs = example(cell, time=4)

        def loss(xs, probe=None):
            states, _ = implicit_rnn.implicit(
                cell, params, xs, rtol=1e-13, method="banded", adjoint=exact(cell), probe=probe
            )
            return jnp.sum(states**2)

        seen = jax.jit(jax.grad(loss, argnums=1))(xs, solvers.adjoint_probe())
        assert seen.converged
        assert seen.steps > 0
        direction = jnp.ones_like(xs)
        product = jax.jit(jax.grad(lambda xs: jnp.vdot(jax.grad(loss)(xs), direction)))(xs)
        h, gradient = 1e-5, jax.jit(jax.grad(loss))
        numeric = (gradient(xs + h * direction) - gradient(xs - h * direction)) / (2 * h)
        np.testing.assert_allclose(product, numeric, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("scale", [3.0, 10.0])
def test_stiff_weights_are_solved_or_reported_and_spare_the_others(scale):
    cell = cells.igru(16)
    calm, xs = example(cell, time=20)
    stiff, _ = example(cell, time=20, scale=scale, seed=1)
    batch = jax.tree.map(lambda *leaves: jnp.stack(leaves), calm, stiff, calm)

    def one(params):
        states, info = implicit_rnn.implicit(cell, params, xs)
        return states, info

    states, info = jax.jit(jax.vmap(one))(batch)
    alone, info_alone = jax.jit(one)(calm)
    assert np.all(np.isfinite(states))
    assert not np.any(np.isnan(info.residual))
    for index in (0, 2):
        assert info.steps[index] == info_alone.steps
        np.testing.assert_allclose(states[index], alone, atol=1e-4)
    if info.converged[1]:
        gap = jnp.concatenate(
            [g.ravel() for g in jax.tree.leaves(residual(cell, stiff, xs, states[1]))]
        )
        assert jnp.linalg.norm(gap) <= 1e-3 * jnp.linalg.norm(states[1])


@pytest.mark.slow
def test_starts_lead_to_the_same_states_and_a_race_names_its_winner():
    cell = CELLS["ilstm"]
    params, xs = example(cell)
    key, banded = jax.random.key(4), {"method": "banded"}
    expected, _ = run(cell, params, xs, rtol=1e-6, **banded)
    for start in ("zeros", "random", "forward", "bidirectional", expected):
        states, info = run(cell, params, xs, start=start, key=key, length=5, **banded)
        assert info.converged
        assert np.all(states.c[5:] == 0)
    states, info = run(cell, params, xs, start=expected, **banded)
    assert info.steps == 0
    starts = ["random", expected, "forward"]
    states, info = run(cell, params, xs, start=starts, key=key, **banded)
    assert info.winner == 1
    np.testing.assert_allclose(states.h, expected.h, atol=1e-3)


def test_layer_lowers_for_cuda_and_tpu():
    cell = CELLS["igru"]
    params, xs = example(cell)

    def loss(params, xs, length):
        states, info = jax.vmap(lambda x, n: implicit_rnn.implicit(cell, params, x, length=n))(
            xs, length
        )
        return jnp.sum(states), info

    batch = jnp.stack([xs, xs])
    program = export.export(jax.jit(jax.grad(loss, has_aux=True)), platforms=["cuda", "tpu"])
    assert program(params, batch, jnp.array([7, 3])).platforms == ("cuda", "tpu")


@pytest.mark.slow
def test_cell_without_bands_is_probed():
    with jax.enable_x64(True):
        cell = cells.igru(WIDTH)
        params, xs = example(cell)
        bare = cell._replace(bands=None)
        expected, _ = run(cell, params, xs, rtol=1e-9, method="banded")
        states, info = run(bare, params, xs, rtol=1e-9, method="banded")
        assert info.converged
        np.testing.assert_allclose(states, expected, atol=1e-7)
        # A map whose channels do not mix is probed exactly.
        scale = jax.random.uniform(jax.random.key(3), (3, TIME, WIDTH), minval=-0.3, maxval=0.3)

        def tridiagonal(_, x):
            zero = jnp.zeros((1, WIDTH))
            before, after = jnp.concatenate([zero, x[:-1]]), jnp.concatenate([x[1:], zero])
            return scale[0] * before + scale[1] * x + scale[2] * after

        found = jax.jit(probed_bands(tridiagonal, samples=1))((), states)
        np.testing.assert_allclose(found.lower[1:], scale[0, 1:], atol=1e-12)
        np.testing.assert_allclose(found.diagonal, scale[1], atol=1e-12)
        np.testing.assert_allclose(found.upper[:-1], scale[2, :-1], atol=1e-12)
