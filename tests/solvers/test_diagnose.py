"""Measurements of a map against dense linear algebra, and what a report says of failures."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import solvers
from solvers import diagnose
from tests.solvers.problems import precision, tanh_map, tanh_solution, tanh_theta

N = 6
RTOL = {"float32": 1e-4, "float64": 1e-9}


def linear_map(weight: jax.Array, x: jax.Array) -> jax.Array:
    return weight @ x


def neumann_bound(jacobian_norm: float, inverse_norm: float, steps: int) -> float:
    """Proposition 2: `||(I - J)^-1|| ||J||^(steps + 1)`, of what `steps` products leave."""
    return inverse_norm * jacobian_norm ** (steps + 1)


def rotation(angle: float) -> np.ndarray:
    return np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])


def on_weight(measure, **settings):
    """`measure` of the linear map with a given matrix, compiled once for each shape."""
    return jax.jit(
        lambda weight, key: measure(
            linear_map, weight, jnp.ones(len(weight), weight.dtype), key, **settings
        )
    )


spectral_radius = on_weight(diagnose.spectral_radius)
jacobian_norm = on_weight(diagnose.jacobian_norm)
condition = on_weight(diagnose.condition)
KEY = 2


def block(*parts: np.ndarray) -> np.ndarray:
    size = sum(len(part) for part in parts)
    matrix, at = np.zeros((size, size)), 0
    for part in parts:
        matrix[at : at + len(part), at : at + len(part)] = part
        at += len(part)
    return matrix


SPECTRA = {
    "real": np.diag([0.9, 0.3, 0.2, -0.1, 0.0, 0.1]),
    "negative": np.diag([-1.5, 0.7, 0.2, 0.2, 0.0, 0.1]),
    "complex_pair": block(0.8 * rotation(1.0), 0.5 * rotation(0.3), np.diag([0.2, 0.1])),
    "opposite_signs": np.diag([0.8, -0.8, 0.1, 0.1, 0.1, 0.0]),
}


@pytest.mark.parametrize("spectrum", SPECTRA)
def test_spectral_radius_of_real_and_complex_spectra_in_a_skewed_basis(spectrum):
    basis = np.eye(N) + 0.3 * np.random.default_rng(1).standard_normal((N, N))
    matrix = basis @ SPECTRA[spectrum] @ np.linalg.inv(basis)
    expected = np.abs(np.linalg.eigvals(matrix)).max()
    for seed in range(3):
        got = spectral_radius(jnp.asarray(matrix, jnp.float32), jax.random.key(seed))
        # The growth of a complex pair turns; 25 steps average it out to a few per cent.
        np.testing.assert_allclose(got, expected, rtol=0.05)


def test_spectral_radius_of_a_map_without_one_is_zero():
    key = jax.random.key(KEY)
    assert spectral_radius(jnp.zeros((N, N)), key) == 0
    assert spectral_radius(jnp.eye(N, k=1), key) == 0


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_norm_and_condition_match_dense_singular_values(dtype):
    with precision(dtype):
        rng, key = np.random.default_rng(4), jax.random.key(KEY)
        left, right = (np.linalg.qr(rng.standard_normal((N, N)))[0] for _ in range(2))
        matrix = (left * [2.0, 1.0, 0.9, 0.3, 0.2, 0.1]) @ right.T
        weight = jnp.asarray(matrix, dtype)
        got = jacobian_norm(weight, key)
        assert got.dtype == dtype
        np.testing.assert_allclose(got, 2.0, rtol=RTOL[dtype])
        values = np.linalg.svd(np.eye(N) - matrix, compute_uv=False)
        got = condition(weight, key)
        assert got.ratio.dtype == dtype
        expected = diagnose.Condition(values[0], values[-1], values[0] / values[-1])
        np.testing.assert_allclose(got, expected, rtol=RTOL[dtype])


def test_fewer_steps_than_entries_give_values_inside_the_spectrum():
    rng, key = np.random.default_rng(5), jax.random.key(KEY)
    matrix = rng.standard_normal((20, 20)) / 5
    values = np.linalg.svd(np.eye(20) - matrix, compute_uv=False)
    weight = jnp.asarray(matrix, jnp.float32)
    complete, short = condition(weight, key), on_weight(diagnose.condition, steps=4)(weight, key)
    np.testing.assert_allclose(complete[:2], (values[0], values[-1]), rtol=1e-4)
    assert short.largest < complete.largest
    assert short.smallest > complete.smallest


def test_condition_of_degenerate_systems_is_exact():
    key = jax.random.key(KEY)
    a = np.random.default_rng(6).standard_normal(N)
    projector = np.outer(a, a) / (a @ a)
    cases = {
        "zero Jacobian": (np.zeros((N, N)), 1.0, 1.0),
        "one value": (-0.5 * np.eye(N), 1.5, 1.5),
        "two values": (0.6 * projector, 1.0, 0.4),
        "nearly singular": ((1 - 1e-4) * projector, 1.0, 1e-4),
    }
    for name, (matrix, largest, smallest) in cases.items():
        got = condition(jnp.asarray(matrix, jnp.float32), key)
        np.testing.assert_allclose(got.largest, largest, rtol=1e-5, err_msg=name)
        np.testing.assert_allclose(got.smallest, smallest, rtol=1e-5, atol=1e-6, err_msg=name)
    assert condition(jnp.asarray(projector, jnp.float32), key).ratio > 1e6
    assert condition(jnp.eye(N), key) == (0, 0, np.inf)


def test_what_is_not_finite_is_not_hidden():
    weight, key = jnp.eye(N).at[2, 3].set(jnp.nan), jax.random.key(KEY)
    assert np.isnan(spectral_radius(weight, key))
    assert np.isnan(jacobian_norm(weight, key))
    assert np.all(np.isnan(condition(weight, key)))


@given(arrays(np.float32, (4, 4), elements=st.floats(-2, 2, width=32)), st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_laws_of_any_linear_map(matrix, seed):
    weight, key = jnp.asarray(matrix), jax.random.key(seed)
    matrix = np.asarray(matrix, np.float64)
    values = np.linalg.svd(np.eye(4) - matrix, compute_uv=False)
    got = condition(weight, key)
    np.testing.assert_allclose(got[:2], values[[0, -1]], rtol=1e-4, atol=1e-5 * values[0])
    size = np.linalg.norm(matrix, 2)
    assert jacobian_norm(weight, key) <= size * (1 + 1e-5)
    assert jacobian_norm(weight, key) >= 0.8 * size - 1e-6


def test_vmap_is_a_loop():
    rng, key = np.random.default_rng(7), jax.random.key(KEY)
    weights = jnp.asarray(rng.standard_normal((3, N, N)) / 3, jnp.float32).at[0].set(0)
    for measure in (spectral_radius, jacobian_norm, condition):
        together = jax.vmap(measure, in_axes=(0, None))(weights, key)
        apart = np.stack([np.asarray(measure(weight, key)) for weight in weights], axis=-1)
        np.testing.assert_allclose(np.asarray(together), apart, rtol=1e-4)


def test_a_measurement_inside_a_loss_is_a_constant():
    def loss(weight: jax.Array) -> jax.Array:
        key = jax.random.key(KEY)
        measured = spectral_radius(weight, key) + jacobian_norm(weight, key)
        return jnp.sum(weight) * (measured + condition(weight, key).smallest)

    weight = 0.3 * jnp.eye(N)
    gradient = jax.grad(loss)(weight)
    np.testing.assert_allclose(gradient, np.full((N, N), loss(weight) / jnp.sum(weight)), rtol=1e-5)


class Backward:
    """A small network at its solution, with everything about its gradient, dense."""

    def __init__(self, radius: float, seed: int = 3) -> None:
        weight, bias = tanh_theta(radius, N, seed)
        self.theta = (weight.astype(np.float32), bias.astype(np.float32))
        self.x = tanh_solution(weight, bias)
        slope = 1 - self.x**2
        self.jacobian = slope[:, None] * weight
        self.cotangent = np.random.default_rng(seed).standard_normal(N)
        self.w = np.linalg.solve(np.eye(N) - self.jacobian.T, self.cotangent)
        self.to_theta = np.concatenate(
            [slope[:, None] * np.kron(np.eye(N), self.x), np.diag(slope)], axis=1
        )

    def certificate(self, w: np.ndarray) -> diagnose.Certificate:
        arguments = (self.x, self.cotangent, w)
        return _certificate(self.theta, *(jnp.asarray(v, jnp.float32) for v in arguments))


_certificate = jax.jit(
    lambda theta, x, c, w: diagnose.certificate(tanh_map, theta, x, c, w, jax.random.key(KEY))
)


@pytest.mark.parametrize("radius", [0.5, 4.0])
@given(st.floats(1e-3, 0.5), st.integers(0, 1000))
@settings(max_examples=15, deadline=None)
def test_certificate_bounds_the_true_errors(radius, size, seed):
    problem = Backward(radius)
    noise = np.random.default_rng(seed).standard_normal(N)
    w = problem.w + size * noise
    got = problem.certificate(w)
    slack = 1 + 1e-3
    error = np.linalg.norm(w - problem.w)
    gradient_error = np.linalg.norm(problem.to_theta.T @ (w - problem.w))
    gradient = np.linalg.norm(problem.to_theta.T @ problem.w)
    assert error <= got.error * slack
    assert error / np.linalg.norm(problem.w) <= got.relative_error * slack
    assert gradient_error <= got.gradient_error * slack
    assert gradient_error / gradient <= got.relative_gradient_error * slack
    assert got.contracts == (np.linalg.norm(problem.jacobian, 2) < 1)
    system = np.eye(N) - problem.jacobian
    inverse_norm = np.linalg.norm(np.linalg.inv(system), 2)
    if got.contracts:
        bound = 1 / (1 - np.linalg.norm(problem.jacobian, 2))
        assert inverse_norm <= got.inverse_norm * slack
        np.testing.assert_allclose(got.inverse_norm, bound, rtol=1e-3)
    else:
        np.testing.assert_allclose(got.inverse_norm, inverse_norm, rtol=1e-3)
    residual = np.linalg.norm(problem.cotangent - system.T @ w) / np.linalg.norm(problem.cotangent)
    np.testing.assert_allclose(got.residual, residual, rtol=1e-2, atol=1e-5)


def test_certificate_of_an_exact_gradient_is_tight_and_of_nonsense_infinite():
    problem = Backward(0.5)
    exact = problem.certificate(problem.w)
    assert exact.relative_error < 1e-5
    assert exact.relative_gradient_error < 1e-4
    nonsense = problem.certificate(-100 * problem.w)
    assert np.isinf(nonsense.relative_gradient_error)
    assert nonsense.relative_error > 100


def test_certificate_holds_leaves_without_derivative_fixed():
    def f(theta: dict, x: jax.Array) -> jax.Array:
        return theta["scale"] * x * theta["sign"]

    theta = {"scale": jnp.float32(0.5), "sign": jnp.int32(1), "key": jax.random.key(0)}
    x, c = jnp.ones(2), jnp.array([1.0, 0.0])
    got = diagnose.certificate(f, theta, x, c, 2 * c, jax.random.key(1))
    assert got.error == 0
    assert got.relative_gradient_error == 0
    with pytest.raises(ValueError, match="cotangent"):
        diagnose.certificate(f, theta, x, jnp.ones(3), c, jax.random.key(1))


def test_certificate_of_a_state_that_parameters_do_not_move_has_no_gradient_error():
    x, c = jnp.ones(2), jnp.ones(2)
    got = diagnose.certificate(lambda _, x: 0.5 * x, (), x, c, c, jax.random.key(0))
    np.testing.assert_allclose(got.error, np.sqrt(2), rtol=1e-5)
    assert got.gradient_error == 0


@pytest.mark.parametrize("radius", [0.3, 0.9])
def test_neumann_bound_holds_and_is_met_by_a_multiple_of_the_identity(radius):
    for matrix in (Backward(radius).jacobian, radius * np.eye(3)):
        eye = np.eye(len(matrix))
        inverse = np.linalg.inv(eye - matrix)
        sizes = (np.linalg.norm(matrix, 2), np.linalg.norm(inverse, 2))
        series, power = eye, eye
        for steps in range(1, 6):
            power = power @ matrix
            series = series + power
            error = np.linalg.norm(series - inverse, 2)
            assert error <= neumann_bound(*sizes, steps) * (1 + 1e-9)
    np.testing.assert_allclose(error, neumann_bound(*sizes, steps))


def affine(theta: jax.Array, x: jax.Array) -> jax.Array:
    return theta * x + 1


def test_report_of_a_good_solve():
    theta = tuple(jnp.asarray(leaf, jnp.float32) for leaf in tanh_theta(0.5, N))
    text = diagnose.report(tanh_map, theta, jnp.zeros(N), method="anderson")
    assert text.startswith("CONVERGED")
    assert "Method anderson took" in text
    assert "a digit in" in text
    assert "solvers.adjoint.neumann(" in text


REPORTS = {
    "negative": (affine, -1.5, "picard", ["DIVERGED", "radius 1.5", "damping=0.4", "newton"]),
    "positive": (affine, 1.5, "picard", ["DIVERGED", "no damping", "penalties.contraction"]),
    "slow": (affine, 0.98, "picard", ["MAX_STEPS", "more plain steps", 'adjoint="implicit"']),
    "unsolvable": (affine, 1.0, "newton", ["failed too", "nearly singular", "conditioning"]),
    "skewed": (
        lambda a, x: a * jnp.stack([4 * x[1], 0 * x[0]]) + 1,
        1.0,
        "picard",
        ["CONVERGED", "although the spectral radius is", "jacobian_norm"],
    ),
    "repelling": (affine, -3.0, "newton", ["CONVERGED", 'Keep method="newton"']),
    "overflow": (
        lambda a, x: jnp.exp(a * x),
        50.0,
        "picard",
        ["DIVERGED", "does not contract"],
    ),
    "no_derivative": (lambda a, x: a * jnp.sqrt(x), 1.0, "picard", ["not finite", "sqrt(. + eps)"]),
}


@pytest.mark.parametrize("case", REPORTS)
def test_report_says_what_happened_and_what_to_try(case):
    f, theta, method, phrases = REPORTS[case]
    text = diagnose.report(f, jnp.float32(theta), jnp.zeros(2), method=method, max_steps=50)
    for phrase in phrases:
        assert phrase in text, text


def logarithm(theta: dict, x: dict) -> dict:
    return {"h": theta["w"] * jnp.log(x["h"])}


@pytest.mark.parametrize(
    ("weight", "start", "where"),
    [
        ([1.0, np.nan], [1.0, 1.0], "theta['w'] has 1 of 2 entries NaN or infinite"),
        ([1.0, 1.0], [np.inf, 1.0], "x0['h'] has 1 of 2 entries"),
        ([1.0, 1.0], [1.0, -1.0], "f(theta, x0)['h'] has 1 of 2 entries"),
    ],
)
def test_report_finds_the_first_value_that_is_not_finite(weight, start, where):
    theta, x0 = {"w": jnp.array(weight), "steps": 3}, {"h": jnp.array(start)}
    text = diagnose.report(logarithm, theta, x0, method="picard", key=jax.random.key(1))
    assert text.startswith("NONFINITE")
    assert where in text, text
    assert "Make that value finite first" in text


def test_report_names_a_method_that_is_not_a_name():
    text = diagnose.report(affine, 0.5, jnp.zeros(40), method=solvers.picard(0.9), rtol=1e-3)
    assert "Method picard" in text
    assert "0.001 was asked for" in text
    assert "at least (30 steps for 40 entries)" in text
