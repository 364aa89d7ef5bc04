"""Laws of linear solvers, and systems at the edge of what can be solved."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from solvers import Status, linear
from tests.solvers.problems import SIZE, matrices, precision, right_hand_side
from tests.solvers.test_linear import GENERAL, make, solve


@pytest.mark.parametrize("name", ["cgne", "lsqr"])
def test_singular_system_ends_at_the_least_squares_solution(name):
    with precision("float64"):
        matrix, b = matrices()["singular"], right_hand_side()
        x, info = make(name, "float64")(lambda v: matrix @ v, jnp.asarray(b))
        assert not info.converged
        np.testing.assert_allclose(x, np.linalg.lstsq(matrix, b)[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["bicgstab", "gmres", "cgne", "lsqr"])
def test_skew_systems_break_down_visibly_or_are_solved(name):
    skew = np.kron(np.eye(6), [[0.0, 1.0], [-1.0, 0.0]])
    b = jnp.asarray(right_hand_side(), jnp.float32)
    x, info = make(name)(lambda v: skew @ v, b)
    assert np.all(np.isfinite(x))
    if name == "bicgstab":
        assert info.status == Status.BREAKDOWN or info.converged
    else:
        assert info.converged
        np.testing.assert_allclose(x, np.linalg.solve(skew, b), atol=1e-4)


@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1e12, 1e30])
@pytest.mark.parametrize("name", GENERAL)
def test_a_solve_is_homogeneous_over_the_whole_range_of_float32(name, scale):
    matrix = jnp.asarray(matrices()["well_conditioned"], jnp.float32)
    b = jnp.asarray(right_hand_side(), jnp.float32)
    run = jax.jit(solve(name, "float32"))
    x, info = run(matrix, b)
    scaled, scaled_info = run(matrix, b * jnp.float32(scale))
    assert scaled_info.status == info.status
    np.testing.assert_allclose(scaled / jnp.float32(scale), x, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", GENERAL)
def test_bfloat16_systems_accumulate_in_float32(name):
    matrix = jnp.asarray(matrices()["well_conditioned"], jnp.bfloat16)
    b = jnp.asarray(right_hand_side(), jnp.bfloat16)
    solver = linear.neumann(20) if name == "neumann" else linear.SOLVERS[name]()
    x, info = solver(lambda v: matrix @ v, b)
    assert x.dtype == jnp.bfloat16
    assert info.converged
    assert info.residual.dtype == jnp.float32
    expected = np.linalg.solve(np.asarray(matrix, np.float64), np.asarray(b, np.float64))
    np.testing.assert_allclose(np.asarray(x, np.float64), expected, atol=0.15)


_RUN = {name: jax.jit(solve(name, "float32")) for name in ("gmres", "bicgstab")}


@given(st.integers(0, 2**31), st.sampled_from(sorted(_RUN)))
def test_law_solution_is_linear_in_the_right_hand_side(seed, name):
    rng = np.random.default_rng(seed)
    matrix = jnp.asarray(np.eye(SIZE) + 0.15 * rng.standard_normal((SIZE, SIZE)), jnp.float32)
    u, v = jnp.asarray(rng.standard_normal((2, SIZE)), jnp.float32)
    run = _RUN[name]
    both, info = run(matrix, 2 * u - v)
    if info.converged:
        apart = 2 * run(matrix, u)[0] - run(matrix, v)[0]
        scale = float(jnp.abs(both).max()) + 1
        np.testing.assert_allclose(both / scale, apart / scale, atol=5e-3)


@given(st.integers(0, 2**31))
def test_law_operator_and_its_transpose_agree(seed):
    rng = np.random.default_rng(seed)
    matrix = jnp.asarray(rng.standard_normal((SIZE, SIZE)), jnp.float32)
    u, v = jnp.asarray(rng.standard_normal((2, SIZE)), jnp.float32)
    task, _ = linear.lsqr().prepare(
        lambda v: matrix @ v, u, precond=lambda v: v * jnp.arange(1.0, SIZE + 1)
    )
    left = jnp.vdot(task.problem.operator(u), v)
    right = jnp.vdot(u, task.problem.transpose(v))
    np.testing.assert_allclose(left, right, rtol=1e-3, atol=1e-2)
