"""jaxopt solvers behind our contracts: their values, our stop rule, status and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import solvers
from solvers import Status, adjoint, jaxopt_bridge  # first: its import of jaxopt is silent

import jaxopt  # isort: skip
from jaxopt import linear_solve as jaxopt_linear  # isort: skip

SIZE = 12

METHODS = {
    "fixed_point_iteration": lambda fun: jaxopt.FixedPointIteration(fun),
    "anderson": lambda fun: jaxopt.AndersonAcceleration(fun, history_size=4),
    "broyden": lambda fun: jaxopt.Broyden(lambda x: fun(x) - x),
}
LINEAR = {
    "gmres": (jaxopt_linear.solve_gmres, {}),
    "bicgstab": (jaxopt_linear.solve_bicgstab, {}),
    "normal_cg": (jaxopt_linear.solve_normal_cg, {"tol": 1e-7}),
    "lu": (jaxopt_linear.solve_lu, {}),
    "inv": (jaxopt_linear.solve_inv, {}),
}


def contraction(theta, x):
    return jnp.tanh(theta["weights"] @ x + theta["bias"])


@pytest.fixture
def theta():
    key = jax.random.key(0)
    weights = 0.8 * jax.random.normal(key, (SIZE, SIZE)) / SIZE**0.5
    return {"weights": weights, "bias": jnp.linspace(-1.0, 1.0, SIZE)}


@pytest.fixture
def matrix():
    key = jax.random.key(1)
    return jnp.eye(SIZE) + 0.5 * jax.random.normal(key, (SIZE, SIZE)) / SIZE**0.5


@pytest.fixture
def rhs():
    return jnp.cos(jnp.arange(float(SIZE)))


def dense(matrix, rhs):
    return np.linalg.solve(np.asarray(matrix, np.float64), np.asarray(rhs, np.float64))


def reference(theta):
    """The fixed point and the gradient of its squared norm, in float64 and by a dense solve."""
    weights, bias = (np.asarray(theta[name], np.float64) for name in ("weights", "bias"))
    x = np.zeros(SIZE)
    for _ in range(500):
        x = np.tanh(weights @ x + bias)
    slope = 1 - x**2
    pulled = slope * np.linalg.solve((np.eye(SIZE) - slope[:, None] * weights).T, 2 * x)
    return x, {"weights": np.outer(pulled, x), "bias": pulled}


def assert_close(found, expected, atol):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=atol), found, expected)


def solve_with(name, theta, **settings):
    method = jaxopt_bridge.method(METHODS[name])
    return solvers.fixed_point(
        contraction, theta, jnp.zeros(SIZE), method=method, rtol=1e-6, **settings
    )


def linear(name, **settings):
    solve, options = LINEAR[name]
    return jaxopt_bridge.linear(solve, **options, **settings)


@pytest.mark.parametrize("name", METHODS)
def test_a_jaxopt_solver_finds_the_fixed_point_and_our_loop_stops_it(name, theta):
    x, info = jax.jit(lambda theta: solve_with(name, theta))(theta)
    np.testing.assert_allclose(x, reference(theta)[0], atol=1e-5)
    image = contraction(theta, x)
    residual = jnp.linalg.norm(image - x) / jnp.maximum(jnp.linalg.norm(x), jnp.linalg.norm(image))
    assert info.converged
    np.testing.assert_allclose(info.residual, residual, rtol=0.2, atol=1e-7)
    assert info.steps < 100
    assert info.evaluations >= 2 * info.steps


@pytest.mark.parametrize("name", METHODS)
def test_gradients_pass_as_for_any_method(name, theta):
    found = jax.jit(jax.grad(lambda theta: jnp.sum(solve_with(name, theta)[0] ** 2)))(theta)
    assert_close(found, reference(theta)[1], atol=2e-4)


@pytest.mark.parametrize("name", ["fixed_point_iteration", "anderson"])
def test_gradients_pass_through_the_iterations_too(name, theta):
    def loss(theta):
        return jnp.sum(solve_with(name, theta, adjoint=adjoint.bptt(), max_steps=60)[0] ** 2)

    assert_close(jax.jit(jax.grad(loss))(theta), reference(theta)[1], atol=1e-3)


@pytest.mark.parametrize("name", METHODS)
def test_under_vmap_every_example_stops_by_itself(name, theta):
    scales = jnp.array([0.1, 0.5, 1.0])

    def scaled(scale):
        return solve_with(name, {**theta, "weights": scale * theta["weights"]})

    x, info = jax.jit(jax.vmap(scaled))(scales)
    assert jnp.all(info.converged)
    assert info.steps[0] != info.steps[2]
    scaled = jax.jit(scaled)
    for row, scale in enumerate(scales):
        alone, alone_info = scaled(scale)
        np.testing.assert_allclose(x[row], alone, atol=1e-5)
        assert info.steps[row] == alone_info.steps


def test_states_may_be_pytrees():
    method = jaxopt_bridge.method(METHODS["anderson"])
    start = {"a": jnp.zeros(3), "b": jnp.zeros((2, 2))}
    x, info = solvers.fixed_point(
        lambda theta, x: jax.tree.map(lambda leaf: jnp.cos(theta * leaf), x),
        1.0,
        start,
        method=method,
    )
    assert info.converged
    jax.tree.map(lambda leaf: np.testing.assert_allclose(leaf, 0.739085, atol=1e-4), x)


def test_the_tolerance_of_the_jaxopt_solver_has_no_say(theta):
    loose = jaxopt_bridge.method(lambda fun: jaxopt.FixedPointIteration(fun, tol=1e9, maxiter=1))
    _, info = solvers.fixed_point(contraction, theta, jnp.zeros(SIZE), method=loose, rtol=1e-6)
    assert info.converged
    assert info.residual <= 1e-6


def test_a_diverging_jaxopt_solver_is_reported():
    method = jaxopt_bridge.method(METHODS["fixed_point_iteration"])
    x, info = solvers.fixed_point(lambda _, x: 3 * x + 1, None, jnp.ones(2), method=method)
    assert info.status == Status.DIVERGED
    np.testing.assert_array_equal(x, jnp.ones(2))


def test_a_map_that_is_not_finite_is_reported_with_a_finite_value():
    method = jaxopt_bridge.method(METHODS["anderson"])
    x, info = solvers.fixed_point(
        lambda _, x: jnp.where(x > 1.5, jnp.nan, x + 1), None, jnp.zeros(2), method=method
    )
    assert info.status == Status.NONFINITE
    assert jnp.all(jnp.isfinite(x))


def test_make_must_return_a_jaxopt_solver(theta):
    with pytest.raises(TypeError, match="jaxopt solver"):
        solvers.fixed_point(
            contraction, theta, jnp.zeros(SIZE), method=jaxopt_bridge.method(lambda fun: fun)
        )


@pytest.mark.parametrize("name", LINEAR)
def test_a_jaxopt_linear_solve_equals_the_dense_one(name, matrix, rhs):
    solver = linear(name)
    x, info = jax.jit(lambda a, b: solver(lambda v: a @ v, b))(matrix, rhs)
    np.testing.assert_allclose(x, dense(matrix, rhs), atol=1e-4)
    assert info.converged
    residual = np.linalg.norm(rhs - matrix @ x) / np.linalg.norm(rhs)
    np.testing.assert_allclose(info.residual, residual, rtol=0.5, atol=1e-6)


@pytest.mark.parametrize("name", LINEAR)
def test_start_and_preconditioner_change_the_way_not_the_solution(name, matrix, rhs):
    inverse = jnp.linalg.inv(matrix + 0.01)
    x, info = linear(name)(lambda v: matrix @ v, rhs, 2 * jnp.ones(SIZE), lambda v: inverse @ v)
    np.testing.assert_allclose(x, dense(matrix, rhs), atol=2e-4)
    assert info.converged


def test_conjugate_gradients_keep_their_symmetric_preconditioner(matrix, rhs):
    symmetric = matrix @ matrix.T
    diagonal = jnp.diag(symmetric)
    solver = jaxopt_bridge.linear(jaxopt_linear.solve_cg, rtol=1e-5)
    x, info = solver(lambda v: symmetric @ v, rhs, jnp.ones(SIZE), lambda v: v / diagonal)
    np.testing.assert_allclose(x, dense(symmetric, rhs), rtol=1e-3, atol=1e-3)
    assert info.converged


@pytest.mark.parametrize("name", LINEAR)
def test_linear_solve_differentiates_through_it(name, matrix, rhs):
    weights = jnp.sin(jnp.arange(float(SIZE)))

    def loss(matrix, rhs):
        x, _ = solvers.linear_solve(lambda v: matrix @ v, rhs, solver=linear(name))
        return weights @ x

    found = jax.jit(jax.grad(loss, (0, 1)))(matrix, rhs)
    x, w = dense(matrix, rhs), dense(matrix.T, weights)
    np.testing.assert_allclose(found[1], w, atol=2e-4)
    np.testing.assert_allclose(found[0], -np.outer(w, x), atol=5e-4)


@pytest.mark.parametrize("name", LINEAR)
def test_it_serves_as_an_adjoint_and_reports_to_the_probe(name, theta):
    def loss(theta, probe):
        x, _ = solvers.fixed_point(
            contraction,
            theta,
            jnp.zeros(SIZE),
            method="picard",
            rtol=1e-6,
            probe=probe,
            adjoint=adjoint.implicit(linear(name)),
        )
        return jnp.sum(x**2)

    found, seen = jax.jit(jax.grad(loss, (0, 1)))(theta, solvers.adjoint_probe())
    assert_close(found, reference(theta)[1], atol=5e-4)
    assert seen.status == Status.CONVERGED
    assert seen.residual < 1e-4


def test_it_serves_newton(theta):
    method = solvers.newton(linear=linear("gmres"))
    x, info = solvers.fixed_point(contraction, theta, jnp.zeros(SIZE), method=method, rtol=1e-6)
    assert info.converged
    assert info.steps < 10
    np.testing.assert_allclose(x, contraction(theta, x), atol=1e-5)


@pytest.mark.parametrize("name", LINEAR)
def test_vmap_equals_a_loop(name, matrix, rhs):
    batch = jnp.stack([rhs, 100 * rhs, jnp.zeros(SIZE)])
    matrices = jnp.stack([matrix, matrix.T, matrix])
    solver = linear(name)
    x, info = jax.vmap(lambda a, b: solver(lambda v: a @ v, b))(matrices, batch)
    assert jnp.all(info.converged)
    for row in range(3):
        expected = dense(matrices[row], batch[row])
        scale = max(1.0, float(np.abs(expected).max()))
        np.testing.assert_allclose(x[row] / scale, expected / scale, atol=1e-4)


def test_right_hand_sides_may_be_pytrees_even_for_direct_solves(matrix, rhs):
    tree = {"a": rhs[:5], "b": rhs[5:].reshape(7, 1)}

    def matvec(tree):
        v = matrix @ jnp.concatenate([tree["a"], tree["b"][:, 0]])
        return {"a": v[:5], "b": v[5:].reshape(7, 1)}

    x, info = linear("lu")(matvec, tree)
    found = jnp.concatenate([x["a"], x["b"][:, 0]])
    np.testing.assert_allclose(found, dense(matrix, rhs), atol=1e-4)
    assert info.converged


def test_a_step_limit_that_was_too_low_is_not_called_converged(matrix, rhs):
    solver = linear("bicgstab", maxiter=1)
    x, info = solver(lambda v: matrix @ v, rhs)
    assert info.status == Status.MAX_STEPS
    residual = np.linalg.norm(rhs - matrix @ x) / np.linalg.norm(rhs)
    np.testing.assert_allclose(info.residual, residual, rtol=1e-3)


@pytest.mark.parametrize("name", LINEAR)
def test_a_singular_system_never_yields_nan_or_a_claim(name):
    x, info = linear(name, **({} if name in ("lu", "inv") else {"maxiter": 50}))(
        lambda v: jnp.array([1.0, 0.0]) * v, jnp.ones(2)
    )
    assert jnp.all(jnp.isfinite(x))
    assert not info.converged
    assert jnp.isfinite(info.residual)


def test_a_matrix_with_nan_gives_zeros_and_says_so(rhs):
    x, info = linear("gmres", maxiter=3)(lambda v: jnp.nan * v, rhs)
    np.testing.assert_array_equal(x, jnp.zeros(SIZE))
    assert info.status == Status.NONFINITE


def test_start_and_preconditioner_are_not_options():
    with pytest.raises(ValueError, match="belong to the call"):
        jaxopt_bridge.linear(jaxopt_linear.solve_gmres, M=None)
