"""Every linear solver on every kind of system, under every transform, against numpy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import solvers
from solvers import Status, linear
from tests.solvers.problems import SIZE, matrices, precision, right_hand_side

# A solver per registered name: a new one is tested by being registered.
SETTINGS = {"neumann": {"steps": 120}}
# Series and substitution need the spectral radius of I - A below one.
CONTRACTING = {"well_conditioned", "block_tridiagonal"}
EASY = {"well_conditioned", "nonsymmetric", "block_tridiagonal"}
# Conjugate gradients want symmetric systems, direct solves take no steps: tests of their own.
GENERAL = [name for name in linear.SOLVERS if name not in ("cg", "dense")]
KRYLOV = [name for name in GENERAL if name not in ("neumann", "richardson")]
TOLERANCE = {"float32": 1e-5, "float64": 1e-10}


def make(name: str, dtype: str = "float32", **settings):
    if name == "neumann":
        return linear.neumann(**SETTINGS["neumann"])
    return linear.SOLVERS[name](rtol=TOLERANCE[dtype], **settings)


def must_solve(name: str, dtype: str) -> set[str]:
    if name not in KRYLOV:
        return CONTRACTING
    return EASY | {"ill_conditioned"} if dtype == "float64" and name != "bicgstab" else EASY


def solve(name: str, dtype: str):
    solver = make(name, dtype)
    return lambda matrix, b: solver(lambda v: matrix @ v, b)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", GENERAL)
def test_solves_what_it_can_and_is_honest_about_the_rest(name, dtype):
    with precision(dtype):
        run = jax.jit(solve(name, dtype))
        b = jnp.asarray(right_hand_side(), dtype)
        for kind, matrix in matrices().items():
            x, info = run(jnp.asarray(matrix, dtype), b)
            assert np.all(np.isfinite(x)), kind
            residual = matrix @ np.asarray(x, np.float64) - np.asarray(b, np.float64)
            true = np.linalg.norm(residual) / np.linalg.norm(b)
            if np.isfinite(info.residual):
                assert np.isclose(info.residual, true, rtol=0.1, atol=3 * TOLERANCE[dtype]), kind
            else:
                assert info.status == Status.NONFINITE, kind
            if kind in must_solve(name, dtype):
                assert info.converged, (kind, solvers.explain(info.status))
                expected = np.linalg.solve(matrix, b)
                condition = np.linalg.cond(matrix)
                error = np.linalg.norm(x - expected) / np.linalg.norm(expected)
                assert error <= 3 * TOLERANCE[dtype] * condition, kind
            if info.converged:
                assert true <= 2 * TOLERANCE[dtype], kind
            if kind == "singular":
                assert not info.converged


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", GENERAL)
def test_zero_right_hand_side_gives_zero_at_once(name, dtype):
    with precision(dtype):
        matrix = jnp.asarray(matrices()["nonsymmetric"], dtype)
        solver = make(name, dtype)
        zero = jnp.zeros(SIZE, dtype)
        for start in (None, jnp.ones(SIZE, dtype)):
            x, info = solver(lambda v: matrix @ v, zero, start)
            assert info.converged
            assert np.all(x == 0)
            assert info.residual == 0
            assert info.steps == 0


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", GENERAL)
def test_under_vmap_each_example_is_solved_as_if_alone(name, dtype):
    with precision(dtype):
        kinds = matrices()
        batch = jnp.asarray(
            np.stack([np.eye(SIZE), *(kinds[k] for k in sorted(EASY)), kinds["singular"]]), dtype
        )
        b = jnp.asarray(right_hand_side(), dtype)
        run = solve(name, dtype)
        x, info = jax.jit(jax.vmap(run, in_axes=(0, None)))(batch, b)
        alone = jax.jit(run)
        for index in range(len(batch)):
            x_alone, info_alone = alone(batch[index], b)
            # The systems that wander (singular, or series that diverge) amplify rounding.
            if info_alone.converged:
                assert info.status[index] == info_alone.status
                assert info.steps[index] == info_alone.steps
                np.testing.assert_allclose(x[index], x_alone, rtol=0, atol=50 * TOLERANCE[dtype])
            else:
                assert not info.converged[index]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", GENERAL)
def test_gradient_passes_to_the_matrix_and_the_right_hand_side(name, dtype):
    with precision(dtype):
        rng = np.random.default_rng(5)
        cotangent = rng.standard_normal(SIZE)
        b = right_hand_side()

        def loss(matrix, b):
            x, _ = solvers.linear_solve(lambda v: matrix @ v, b, solver=make(name, dtype))
            return jnp.vdot(jnp.asarray(cotangent, dtype), x)

        gradient = jax.jit(jax.grad(loss, argnums=(0, 1)))
        for kind in sorted(must_solve(name, dtype) - {"ill_conditioned"}):
            matrix = matrices()[kind]
            got = gradient(jnp.asarray(matrix, dtype), jnp.asarray(b, dtype))
            w = np.linalg.solve(matrix.T, cotangent)
            expected = (-np.outer(w, np.linalg.solve(matrix, b)), w)
            for g, e in zip(got, expected, strict=True):
                scale = np.linalg.cond(matrix) * np.abs(e).max()
                np.testing.assert_allclose(g, e, rtol=0, atol=20 * TOLERANCE[dtype] * scale)


@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=pytest.mark.slow), "float64"])
@pytest.mark.parametrize(
    "name",
    [
        name if name in ("bicgstab", "neumann") else pytest.param(name, marks=pytest.mark.slow)
        for name in linear.SOLVERS
    ],
)
def test_second_derivatives_are_those_of_the_dense_solve(name, dtype):
    with precision(dtype):
        matrix = jnp.asarray(matrices()["well_conditioned"], dtype)
        if name == "cg":  # which takes symmetric positive definite ones
            matrix = matrix @ matrix.T
        b = jnp.asarray(right_hand_side(), dtype)

        def ours(scale):
            x, _ = solvers.linear_solve(
                lambda v: matrix @ v + scale * v, scale * b, solver=make(name, dtype)
            )
            return jnp.sum(x**3)

        def dense(scale):
            return jnp.sum(jnp.linalg.solve(matrix + scale * jnp.eye(SIZE), scale * b) ** 3)

        point = jnp.asarray(0.3, dtype)
        tolerance = 5e-3 if dtype == "float32" else 1e-7
        for order in (jax.grad(jax.grad(ours)), jax.jacfwd(jax.grad(ours))):
            expected = jax.grad(jax.grad(dense))(point)
            np.testing.assert_allclose(jax.jit(order)(point), expected, rtol=tolerance)


@pytest.mark.parametrize("name", ["richardson", *KRYLOV])
def test_preconditioner_saves_steps_and_keeps_the_answer(name):
    with precision("float64"):
        rng = np.random.default_rng(2)
        scales = np.logspace(0, 2, SIZE)
        matrix = np.diag(scales) @ (np.eye(SIZE) + 0.2 * rng.standard_normal((SIZE, SIZE)) / 3)
        b = right_hand_side()
        solver = make(name, "float64", max_steps=60)
        x, info = solver(
            lambda v: jnp.asarray(matrix) @ v, jnp.asarray(b), precond=lambda v: v / scales
        )
        assert info.converged
        np.testing.assert_allclose(x, np.linalg.solve(matrix, b), rtol=1e-6)
        _, plain = solver(lambda v: jnp.asarray(matrix) @ v, jnp.asarray(b))
        assert plain.steps >= info.steps or not plain.converged


def test_gradient_uses_the_transposed_preconditioner():
    with precision("float64"):
        matrix = jnp.asarray(matrices()["nonsymmetric"])
        inverse = jnp.linalg.inv(matrix)
        b = jnp.asarray(right_hand_side())
        # With the exact inverse either solve takes a step or two, but only if it is transposed.
        solver = linear.gmres(rtol=1e-10, max_steps=4)

        def loss(b):
            x, info = solvers.linear_solve(
                lambda v: matrix @ v,
                b,
                solver=solver,
                precond=lambda v: inverse @ v,
                on_failure="nan",
            )
            return jnp.sum(x), info

        gradient, info = jax.grad(loss, has_aux=True)(b)
        assert info.converged
        np.testing.assert_allclose(gradient, np.linalg.solve(matrix.T, np.ones(SIZE)), rtol=1e-8)


@pytest.mark.parametrize("name", GENERAL)
def test_warm_start_at_the_solution_takes_no_step(name):
    matrix = jnp.asarray(matrices()["well_conditioned"], jnp.float32)
    b = jnp.asarray(right_hand_side(), jnp.float32)
    expected = jnp.linalg.solve(matrix, b)
    x, info = make(name)(lambda v: matrix @ v, b, expected)
    assert info.converged
    assert name == "neumann" or info.steps == 0
    np.testing.assert_allclose(x, expected, rtol=1e-4)


@pytest.mark.parametrize("name", GENERAL)
def test_pytrees_of_mixed_shapes_are_one_vector(name):
    def matvec(tree):
        return {
            "a": 2 * tree["a"] + 0.1 * tree["b"].sum(),
            "b": 1.5 * tree["b"] - 0.1 * tree["a"][0],
        }

    b = {"a": jnp.arange(3.0), "b": jnp.ones((2, 2))}
    solver = linear.richardson(rtol=1e-6, damping=0.5) if name == "richardson" else make(name)
    if name == "neumann":
        pytest.skip("the series needs I - A to contract, and this A is about 2 I")
    x, info = solver(matvec, b)
    assert info.converged
    for got, want in zip(jax.tree.leaves(matvec(x)), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-4)


def test_gmres_residual_is_the_smallest_over_the_krylov_space():
    with precision("float64"):
        matrix, b = matrices()["nonsymmetric"], right_hand_side()
        krylov = np.stack([np.linalg.matrix_power(matrix, k) @ b for k in range(5)], axis=1)
        best = np.linalg.lstsq(matrix @ krylov, b)[0]
        expected = np.linalg.norm(b - matrix @ krylov @ best) / np.linalg.norm(b)
        # Five products make the basis, the sixth step closes the cycle.
        _, info = linear.gmres(rtol=0.0, max_steps=6)(lambda v: matrix @ v, jnp.asarray(b))
        np.testing.assert_allclose(info.residual, expected, rtol=1e-9)


def test_restarted_gmres_converges_where_one_cycle_does_not():
    matrix, b = matrices()["nonsymmetric"], right_hand_side()
    _, one = linear.gmres(rtol=1e-5, max_steps=5, restart=4)(lambda v: matrix @ v, jnp.asarray(b))
    x, many = linear.gmres(rtol=1e-5, restart=4)(lambda v: matrix @ v, jnp.asarray(b))
    assert not one.converged
    assert many.converged
    np.testing.assert_allclose(x, np.linalg.solve(matrix, b), rtol=1e-2, atol=1e-3)


def test_lsqr_damping_is_that_of_ridge_regression():
    with precision("float64"):
        matrix, b, damp = matrices()["singular"], right_hand_side(), 0.1
        x, info = linear.lsqr(rtol=1e-10, damp=damp)(lambda v: matrix @ v, jnp.asarray(b))
        normal = matrix.T @ matrix + damp**2 * np.eye(SIZE)
        np.testing.assert_allclose(x, np.linalg.solve(normal, matrix.T @ b), rtol=1e-7)
        assert info.converged


def test_bad_settings_and_inputs_are_named():
    with pytest.raises(TypeError, match="unexpected keyword"):
        linear.gmres(tolerance=1e-3)
    with pytest.raises(ValueError, match="rtol must be at least 0"):
        linear.bicgstab(rtol=-1.0)
    with pytest.raises(TypeError, match="dtype int32"):
        linear.bicgstab()(lambda v: v, jnp.arange(3))
    with pytest.raises(ValueError, match="tree structure"):
        linear.bicgstab()(lambda v: (v, v), jnp.ones(3))
    with pytest.raises(ValueError, match="shape"):
        linear.bicgstab()(lambda v: v[:2], jnp.ones(3))
    with pytest.raises(ValueError, match="unknown linear solver 'gmre'"):
        solvers.linear_solve(lambda v: v, jnp.ones(3), solver="gmre")
    with pytest.raises(ValueError, match="number of terms"):
        solvers.adjoint.implicit("neumann")
    x, info = solvers.linear_solve(lambda v: 2 * v, jnp.ones(3), solver="lsqr")
    assert info.converged
    np.testing.assert_allclose(x, 0.5, rtol=1e-5)
    with pytest.raises(ValueError, match="on_failure"):
        solvers.linear_solve(lambda v: v, jnp.ones(3), on_failure="raise")


@pytest.mark.parametrize("policy", ["best", "zero", "nan"])
def test_failure_policy_applies_to_the_failed_examples_only(policy):
    kinds = matrices()
    batch = jnp.asarray(np.stack([kinds["well_conditioned"], kinds["singular"]]), jnp.float32)
    b = jnp.asarray(right_hand_side(), jnp.float32)

    def run(matrix):
        return solvers.linear_solve(lambda v: matrix @ v, b, on_failure=policy)

    x, info = jax.vmap(run)(batch)
    assert list(info.converged) == [True, False]
    np.testing.assert_allclose(x[0], jnp.linalg.solve(batch[0], b), atol=1e-3)
    expected = {"best": np.isfinite, "zero": lambda v: v == 0, "nan": np.isnan}[policy]
    assert np.all(expected(np.asarray(x[1])))


@pytest.mark.slow
def test_cascade_hands_on_only_what_the_first_solver_left():
    kinds = matrices()
    batch = jnp.asarray(np.stack([kinds["well_conditioned"], kinds["nonsymmetric"]]), jnp.float32)
    b = jnp.asarray(right_hand_side(), jnp.float32)
    solver = linear.cascade(linear.richardson(rtol=1e-5, max_steps=15), linear.gmres(rtol=1e-5))

    def run(matrix):
        return solvers.linear_solve(lambda v: matrix @ v, b, solver=solver)

    x, info = jax.jit(jax.vmap(run))(batch)
    assert np.all(info.converged)
    assert info.steps[0] < 15 < info.steps[1]
    for index in range(2):
        np.testing.assert_allclose(x[index], np.linalg.solve(batch[index], b), atol=1e-3)
        gap = np.linalg.norm(batch[index] @ x[index] - b) / np.linalg.norm(b)
        np.testing.assert_allclose(info.residual[index], gap, rtol=0.3)
    gradient = jax.grad(lambda matrix: jnp.sum(run(matrix)[0]))(batch[1])
    w = np.linalg.solve(kinds["nonsymmetric"].T, np.ones(SIZE))
    np.testing.assert_allclose(gradient, -np.outer(w, x[1]), atol=1e-2)
    # A start that is far off is no better than none, and its rounding would stay.
    hasty = linear.cascade(linear.richardson(max_steps=0), linear.gmres(rtol=1e-5))
    x, info = hasty(lambda v: batch[0] @ v, b, jnp.full_like(b, 1e4))
    assert info.converged
    gap = np.linalg.norm(np.float64(batch[0]) @ np.float64(x) - b) / np.linalg.norm(b)
    assert gap <= 1.1e-5
    with pytest.raises(ValueError, match="at least one"):
        linear.cascade()
