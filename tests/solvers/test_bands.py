"""Structured solves along time against dense matrices."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import solvers
from solvers import bands
from tests.solvers.problems import precision

ALGORITHMS = ["thomas", "cyclic", None]


def system(time: int, channels: tuple[int, ...] = (3,), seed: int = 0):
    """Diagonally dominant bands and a right-hand side, `[time, *channels]`."""
    rng = np.random.default_rng(seed)
    lower, upper, rhs = rng.uniform(-1, 1, (3, time, *channels))
    diagonal = 2.5 * rng.choice([-1, 1], (time, *channels)) + 0.2 * rng.uniform(-1, 1)
    return lower, diagonal, upper, rhs


def dense(lower, diagonal, upper):
    """The matrix of one channel."""
    return np.diag(diagonal) + np.diag(lower[1:], -1) + np.diag(upper[:-1], 1)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("time", [1, 2, 3, 8, 13, 65])
def test_tridiagonal_solve_equals_a_dense_solve_per_channel(time, algorithm, dtype):
    with precision(dtype):
        lower, diagonal, upper, rhs = system(time)
        arrays = [jnp.asarray(a, dtype) for a in (lower, diagonal, upper, rhs)]
        x = bands.tridiagonal_solve(*arrays, algorithm=algorithm)
        for c in range(3):
            matrix = dense(lower[:, c], diagonal[:, c], upper[:, c])
            tolerance = 1e-5 if dtype == "float32" else 1e-12
            np.testing.assert_allclose(x[:, c], np.linalg.solve(matrix, rhs[:, c]), atol=tolerance)
        np.testing.assert_allclose(
            bands.tridiagonal_matvec(*arrays[:3], x), arrays[3], atol=10 * tolerance
        )


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_transpose_and_derivatives_are_those_of_the_dense_solve(algorithm):
    with precision("float64"):
        lower, diagonal, upper, rhs = (jnp.asarray(a) for a in system(6, ()))
        cotangent = jnp.linspace(-1, 1, 6)

        def ours(*arrays):
            x = bands.tridiagonal_solve(*arrays, algorithm=algorithm)
            return jnp.vdot(cotangent, x**2)

        def reference(lower, diagonal, upper, rhs):
            matrix = jnp.diag(diagonal) + jnp.diag(lower[1:], -1) + jnp.diag(upper[:-1], 1)
            return jnp.vdot(cotangent, jnp.linalg.solve(matrix, rhs) ** 2)

        arguments = (lower, diagonal, upper, rhs)
        got = jax.jit(jax.grad(ours, argnums=(0, 1, 2, 3)))(*arguments)
        expected = jax.grad(reference, argnums=(0, 1, 2, 3))(*arguments)
        for g, e in zip(got, expected, strict=True):
            np.testing.assert_allclose(g, e, atol=1e-11)
        hessian = jax.jit(jax.hessian(lambda b: ours(lower, diagonal, upper, b)))(rhs)
        expected = jax.hessian(lambda b: reference(lower, diagonal, upper, b))(rhs)
        np.testing.assert_allclose(hessian, expected, atol=1e-10)


@pytest.mark.slow
@given(st.integers(1, 9), st.integers(0, 2**31))
def test_law_solve_and_its_transpose_are_adjoint(time, seed):
    lower, diagonal, upper, rhs = (jnp.asarray(a, jnp.float32) for a in system(time, (2,), seed))
    other = jnp.asarray(np.random.default_rng(seed + 1).standard_normal(rhs.shape), jnp.float32)

    def solve(v):
        return bands.tridiagonal_solve(lower, diagonal, upper, v)

    left = jnp.vdot(solve(rhs), other)
    right = jnp.vdot(rhs, jax.linear_transpose(solve, rhs)(other)[0])
    np.testing.assert_allclose(left, right, rtol=1e-3, atol=1e-3)


def test_batches_by_vmap_and_empty_time():
    arrays = [jnp.asarray(a) for a in system(5, (4, 2))]
    moved = [jnp.moveaxis(a, 1, 0) for a in arrays]
    np.testing.assert_allclose(
        jax.vmap(bands.tridiagonal_solve)(*moved),
        jnp.moveaxis(bands.tridiagonal_solve(*arrays), 1, 0),
        rtol=1e-6,
    )
    empty = jnp.zeros((0, 3))
    assert bands.tridiagonal_solve(empty, empty, empty, empty).shape == (0, 3)


def test_cyclic_reduction_is_one_loop_of_logarithmic_length():
    def program(time):
        shapes = [jax.ShapeDtypeStruct((time, 2), jnp.float32)] * 4
        jaxpr = jax.make_jaxpr(lambda *a: bands.tridiagonal_solve(*a, algorithm="cyclic"))(*shapes)
        text = str(jaxpr)
        return text.count(" = "), [int(n) for n in re.findall(r"length=(\d+)", text)]

    short, long = program(16), program(4000)
    assert short[0] == long[0]
    assert set(short[1]) == {4}
    assert set(long[1]) == {12}


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("blocks", [False, True])
def test_bidiagonal_solve_equals_the_recurrence(blocks, reverse):
    with precision("float64"):
        rng = np.random.default_rng(4)
        time, n = 7, 3
        coupling = 0.5 * rng.standard_normal((time, n, n) if blocks else (time, n))
        rhs = rng.standard_normal((time, n))
        x = jax.jit(lambda a, b: bands.bidiagonal_solve(a, b, reverse=reverse))(coupling, rhs)
        state, order = np.zeros(n), range(time)
        for t in reversed(order) if reverse else order:
            state = (coupling[t] @ state if blocks else coupling[t] * state) + rhs[t]
            np.testing.assert_allclose(x[t], state, rtol=1e-10)


@pytest.mark.slow
def test_splitting_with_exact_bands_is_newton():
    """A map whose Jacobian is tridiagonal per channel is solved quadratically by its bands."""
    with precision("float64"):

        def f(theta, x):
            before = jnp.concatenate([jnp.zeros((1, 2)), x[:-1]])
            after = jnp.concatenate([x[1:], jnp.zeros((1, 2))])
            return jnp.tanh(theta + 0.45 * before + 0.5 * after)

        def exact(theta, x):
            slope = 1 - f(theta, x) ** 2
            return solvers.Bands(lower=0.45 * slope, upper=0.5 * slope)

        theta = jnp.asarray(np.random.default_rng(1).standard_normal((20, 2)))
        x, info = solvers.fixed_point(
            f, theta, jnp.zeros((20, 2)), method=solvers.banded(exact), rtol=1e-12
        )
        assert info.converged
        assert info.steps <= 8
        np.testing.assert_allclose(f(theta, x), x, atol=1e-11)
        _, plain = solvers.fixed_point(f, theta, jnp.zeros((20, 2)), method="picard", rtol=1e-12)
        assert plain.steps > 3 * info.steps
        how = solvers.adjoint.implicit(
            solvers.linear.richardson(rtol=1e-12, max_steps=3),
            precond=solvers.precondition(exact),
            on_failure="nan",
        )

        def loss(theta, how):
            return jnp.sum(
                solvers.fixed_point(
                    f,
                    theta,
                    jnp.zeros((20, 2)),
                    method=solvers.banded(exact),
                    adjoint=how,
                    rtol=1e-12,
                )[0]
                ** 3
            )

        ours, plain = (
            jax.jit(jax.grad(lambda t, h=h: loss(t, h)))(theta) for h in (how, "implicit")
        )
        np.testing.assert_allclose(ours, plain, atol=1e-8)


def test_constant_bands_solve_a_linear_map_in_one_step():
    lower, upper = 0.3 * jnp.ones((2, 9, 2))
    shift = jnp.linspace(-1, 1, 18).reshape(9, 2)

    def f(_, x):
        return bands.tridiagonal_matvec(lower, jnp.zeros((9, 2)), upper, x) + shift

    method = solvers.banded(solvers.Bands(lower, upper))
    x, info = jax.jit(lambda x: solvers.fixed_point(f, (), x, method=method))(jnp.zeros((9, 2)))
    assert info.converged
    assert info.steps == 1
    np.testing.assert_allclose(f((), x), x, atol=1e-5)


def test_bad_shapes_and_names_are_refused():
    with pytest.raises(ValueError, match="one common shape"):
        bands.tridiagonal_solve(jnp.ones(3), jnp.ones(3), jnp.ones(2), jnp.ones(3))
    with pytest.raises(ValueError, match="algorithm must be"):
        bands.tridiagonal_solve(*[jnp.ones(3)] * 4, algorithm="pcr")
