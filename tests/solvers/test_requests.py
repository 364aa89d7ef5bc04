"""What users ask of a solve beside its value: roots, given solutions, aux, records, errors."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

import solvers
from solvers import Status, adjoint, linear
from tests.solvers.problems import tanh_gradient, tanh_map, tanh_solution, tanh_theta


def rosenbrock_like(theta, x):
    """A square system with one root, `(theta, theta^2)`, and a Jacobian far from the identity."""
    return {"a": 10 * (x["b"] - x["a"] ** 2), "b": 3 * (theta - x["a"])}


def test_a_root_of_a_tree_and_its_gradient():
    def loss(theta):
        start = {"a": jnp.float32(-1.2), "b": jnp.float32(1.0)}
        x, info = solvers.root(rosenbrock_like, theta, start)
        return x["a"] + 2 * x["b"], (x, info)

    (_, (x, info)), slope = jax.jit(jax.value_and_grad(loss, has_aux=True))(1.5)
    assert info.converged
    np.testing.assert_allclose([x["a"], x["b"]], [1.5, 2.25], rtol=1e-4)
    np.testing.assert_allclose(slope, 1 + 2 * 2 * 1.5, rtol=1e-3)


@pytest.mark.parametrize(
    ("g", "ends"),
    [
        (lambda a, x: x**3 - a, (0.0, 4.0)),
        (lambda a, x: jnp.exp(x) - 1e3 * a, (-50.0, 20.0)),
        (lambda a, x: jnp.where(x < a, -1e-3, 1e3 * (x - a)), (-7.0, 9.0)),
    ],
    ids=["cube", "steep", "one-sided"],
)
def test_a_bracket_finds_what_scipy_finds(g, ends):
    with jax.enable_x64(True):
        x, info = solvers.root(g, 2.0, jnp.float64(1.0), method=solvers.bracket(*ends))
        expected = scipy.optimize.brentq(lambda x: float(g(2.0, x)), *ends, xtol=1e-14)
        np.testing.assert_allclose(x, expected, rtol=1e-8, atol=1e-12)
        assert info.steps < 110  # twice bisection


def test_a_bracket_without_a_change_of_sign_says_so():
    _, info = solvers.root(
        lambda a, x: x**2 + a, 1.0, jnp.float32(0.5), method=solvers.bracket(-1.0, 2.0)
    )
    assert info.status == Status.BREAKDOWN


@pytest.mark.parametrize("how", [adjoint.implicit(), adjoint.tangent(), adjoint.neumann(60)])
def test_a_solution_found_elsewhere_has_the_derivative_of_a_solution(how):
    weight, bias = tanh_theta()
    found = tanh_solution(weight, bias)
    cotangent = np.cos(np.arange(bias.size))

    def loss(theta):
        x, info = solvers.implicit_diff(tanh_map, theta, jnp.float32(found), adjoint=how)
        return jnp.vdot(jnp.float32(cotangent), x), info

    theta = jnp.float32(weight), jnp.float32(bias)
    gradient, info = jax.grad(loss, has_aux=True)(theta)
    assert info.converged
    for got, want in zip(gradient, tanh_gradient(weight, bias, cotangent), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)


def test_a_root_of_truncated_iterations_is_judged_as_any_root():
    """`g` has units of its own: small beside `x` is not small beside `g(x0)`."""
    far, near = (
        solvers.root(
            lambda a, x: 1e-3 * (x - jnp.cos(a * x)), 1.0, jnp.float32(5.0),
            method=solvers.picard(damping), adjoint=adjoint.tbptt(3), max_steps=200, rtol=1e-3,
        )[1]
        for damping in (1.0, 800.0)
    )  # fmt: skip
    assert not far.converged
    assert far.residual > 0.5
    assert near.converged


def test_a_norm_of_ones_own_judges_roots_and_truncated_iterations_too():
    def f(_, x):
        return jnp.array([0.5, 0.99]) * x + 1

    settings = {"rtol": 1e-3, "norm": lambda x: jnp.abs(x[0]), "method": "picard"}
    for how in ("implicit", adjoint.tbptt(4)):
        _, info = solvers.fixed_point(f, None, jnp.zeros(2), adjoint=how, **settings)
        assert info.converged
        assert info.residual <= 1e-3
        # The first row of g is 10,000 times smaller than the second.
        _, info = solvers.root(
            lambda _, x: jnp.array([1e-4, 1.0]) * (x - f(None, x)), None, jnp.zeros(2),
            adjoint=how, **{**settings, "method": solvers.picard(1e-2)}, max_steps=40,
        )  # fmt: skip
        assert not info.converged
        assert info.residual > 0.9


def test_a_given_solution_that_is_none_is_called_so():
    _, info = solvers.implicit_diff(lambda a, x: jnp.cos(a * x), 1.0, jnp.float32(0.2))
    assert not info.converged
    with pytest.raises(solvers.SolveError, match="given solutions"):
        solvers.implicit_diff(lambda a, x: jnp.cos(a * x), 1.0, jnp.float32(0.2), throw=True)


def test_a_given_solution_reports_its_backward_solve_to_the_probe():
    def loss(a, probe):
        return solvers.implicit_diff(lambda a, x: jnp.cos(a * x), a, 0.7390851, probe=probe)[0]

    _, seen = jax.grad(loss, (0, 1))(1.0, solvers.adjoint_probe())
    assert solvers.read_probe(seen).converged
    assert seen.steps > 0


def test_auxiliary_results_come_from_the_solution_and_are_differentiated():
    def loss(a):
        (x, aux), _ = solvers.fixed_point(
            lambda a, x: (jnp.cos(a * x), {"square": a * x**2}), a, jnp.zeros(()), has_aux=True
        )
        return aux["square"], x

    (square, x), slope = jax.value_and_grad(loss, has_aux=True)(1.0)
    np.testing.assert_allclose(square, x**2, rtol=1e-6)
    sine = np.sin(float(x))
    dx = -float(x) * sine / (1 + sine)  # dx/da of x = cos(a x) at a = 1
    np.testing.assert_allclose(slope, float(x) ** 2 + 2 * float(x) * dx, rtol=1e-3)


def test_leaves_of_theta_that_are_no_arrays_reach_the_map():
    def f(theta, x):
        assert theta["name"] == "cosine"
        assert theta["flag"] is True
        return getattr(jnp, "cos" if theta["flag"] else "sin")(theta["a"] * x)

    x, info = solvers.fixed_point(f, {"name": "cosine", "flag": True, "a": 1.0}, jnp.zeros(()))
    assert info.converged
    np.testing.assert_allclose(x, 0.7390851, rtol=1e-4)


def test_batches_and_reports_take_such_leaves_too():
    def f(theta, x):
        return 0.5 * getattr(jnp, theta["name"])(x) + theta["c"]

    c = jnp.array([0.1, 0.2])
    x, info = solvers.compacted(f, {"name": "tanh", "c": c}, jnp.zeros((2, 1)), method="picard")
    assert np.all(info.converged)
    np.testing.assert_allclose(x[:, 0], 0.5 * np.tanh(x[:, 0]) + c, atol=1e-4)
    single = {"name": "tanh", "c": c[0]}
    winner, _ = solvers.race(f, single, jnp.zeros((2, 1)), method="picard")
    np.testing.assert_allclose(winner, x[0], rtol=1e-4)
    assert "CONVERGED" in solvers.diagnose.report(f, single, jnp.zeros(1))


def diverging(_, x):
    return 3 * x + 1


def test_a_norm_of_ones_own_decides():
    def f(_, x):
        return jnp.array([0.5, 0.99]) * x + 1

    start = jnp.zeros(2)
    _, strict = solvers.fixed_point(f, None, start, method="picard", rtol=1e-3, max_steps=2000)
    _, first = solvers.fixed_point(
        f, None, start, method="picard", rtol=1e-3, norm=lambda x: jnp.abs(x[0])
    )
    assert first.converged
    assert first.steps < 15 < strict.steps


def test_patience_and_blowup_end_a_solve_when_they_say():
    _, stalled = solvers.fixed_point(
        lambda _, x: -x + 1, None, jnp.zeros(()), method="picard", patience=5
    )
    assert stalled.status == Status.STALLED
    assert stalled.steps <= 8
    _, diverged = solvers.fixed_point(diverging, None, jnp.zeros(()), method="picard", blowup=10.0)
    assert diverged.status == Status.DIVERGED
    assert diverged.steps <= 5


@pytest.mark.parametrize("algorithm", ["lu", "qr"])
def test_dense_solves_trees(algorithm):
    matrix = np.random.default_rng(0).standard_normal((4, 4)) + 3 * np.eye(4)
    b = {"a": jnp.arange(3.0), "b": jnp.float32(2.0)}

    def matvec(v):
        image = jnp.float32(matrix) @ jnp.append(v["a"], v["b"])
        return {"a": image[:3], "b": image[3]}

    x, info = linear.dense(algorithm)(matvec, b)
    assert info.converged
    expected = np.linalg.solve(matrix, [0.0, 1.0, 2.0, 2.0])
    np.testing.assert_allclose(np.append(x["a"], x["b"]), expected, rtol=1e-4, atol=1e-5)


def test_cg_solves_positive_definite_systems_and_reports_the_others():
    factor = np.random.default_rng(1).standard_normal((6, 6))
    spd = jnp.float32(factor @ factor.T + np.eye(6))
    b = jnp.arange(6.0)
    x, info = linear.cg()(lambda v: spd @ v, b)
    assert info.converged
    np.testing.assert_allclose(x, np.linalg.solve(spd, b), rtol=1e-3, atol=1e-4)
    x, info = linear.cg()(lambda v: 5 * v - spd @ v, b)
    residual = np.linalg.norm(b - 5 * x + spd @ x) / np.linalg.norm(b)
    assert bool(info.converged) == bool(residual < 3e-5)


@pytest.mark.parametrize("shape", [(7, 3), (3, 7)])
def test_lsqr_takes_rectangular_systems(shape):
    matrix = np.random.default_rng(2).standard_normal(shape)
    b, start = np.arange(1.0, 1 + shape[0]), 0.1 * np.arange(shape[1])

    def solve(matrix, b):
        x, info = solvers.linear_solve(
            lambda v: matrix @ v, b, solver=linear.lsqr(), x0=jnp.asarray(start)
        )
        return jnp.sum(jnp.sin(x)), (x, info)

    with jax.enable_x64(True):
        run = jax.value_and_grad(solve, (0, 1), has_aux=True)
        (_, (x, info)), (by_matrix, by_b) = run(jnp.asarray(matrix), jnp.asarray(b))
        assert info.converged
        nearest = start + np.linalg.lstsq(matrix, b - matrix @ start, rcond=None)[0]
        np.testing.assert_allclose(x, nearest, rtol=1e-6, atol=1e-9)

        def dense(m, b):
            if shape[0] > shape[1]:
                return jnp.sum(jnp.sin(jnp.linalg.solve(m.T @ m, m.T @ b)))
            return jnp.sum(jnp.sin(start + m.T @ jnp.linalg.solve(m @ m.T, b - m @ start)))

        oracle = jax.grad(dense, (0, 1))(jnp.asarray(matrix), jnp.asarray(b))
        np.testing.assert_allclose(by_matrix, oracle[0], rtol=1e-5, atol=1e-8)
        np.testing.assert_allclose(by_b, oracle[1], rtol=1e-5, atol=1e-8)


def test_damped_least_squares_has_one_solution_and_the_whole_gradient():
    matrix, b, damp = np.array([[2.0, 1.0], [0.0, 0.5]]), np.array([1.0, -1.0]), 0.7

    def solve(matrix, x0):
        solver = linear.lsqr(damp=damp)
        return solvers.linear_solve(lambda v: matrix @ v, jnp.asarray(b), solver=solver, x0=x0)[0]

    with jax.enable_x64(True):
        m = jnp.asarray(matrix)
        expected = np.linalg.solve(matrix.T @ matrix + damp**2 * np.eye(2), matrix.T @ b)
        for start in (None, jnp.array([5.0, -3.0])):
            np.testing.assert_allclose(solve(m, start), expected, rtol=1e-6)
        got = jax.grad(lambda m: jnp.sum(solve(m, None) ** 2))(m)
        want = jax.grad(
            lambda m: jnp.sum(jnp.linalg.solve(m.T @ m + damp**2 * jnp.eye(2), m.T @ b) ** 2)
        )(m)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-9)


def test_several_right_hand_sides_share_one_linearisation():
    matrix = jnp.float32(np.random.default_rng(3).standard_normal((5, 5)) + 4 * np.eye(5))
    rhs = jnp.float32(np.random.default_rng(4).standard_normal((3, 5)))
    _, push = jax.linearize(lambda x: matrix @ x, rhs[0])
    x, info = jax.vmap(lambda b: solvers.linear_solve(push, b))(rhs)
    assert np.all(info.converged)
    np.testing.assert_allclose(x, np.linalg.solve(matrix, rhs.T).T, rtol=1e-3, atol=1e-4)


def test_the_inverse_of_broyden_preconditions_its_backward_solve():
    weight, bias = tanh_theta(radius=0.98, size=24)
    theta = jnp.float32(weight), jnp.float32(bias)
    cotangent = np.cos(np.arange(24))

    def linear_map(theta, x):
        return theta[0] @ x + theta[1]

    def run(how):
        def loss(theta, probe):
            x, _ = solvers.fixed_point(
                linear_map,
                theta,
                jnp.zeros(24),
                method=solvers.broyden(40),
                adjoint=how,
                probe=probe,
            )
            return jnp.vdot(jnp.float32(cotangent), x)

        return jax.jit(jax.grad(loss, (0, 1)))(theta, solvers.adjoint_probe())

    _, plain = run(adjoint.implicit())
    gradient, helped = run(adjoint.implicit(precond="forward"))
    expected = np.linalg.solve(np.eye(24) - weight.T, cotangent)
    np.testing.assert_allclose(gradient[1], expected, rtol=5e-3, atol=5e-3)
    assert helped.steps < plain.steps
    with pytest.raises(ValueError, match="broyden"):
        solvers.fixed_point(tanh_map, theta, jnp.zeros(24), adjoint=adjoint.shine())
