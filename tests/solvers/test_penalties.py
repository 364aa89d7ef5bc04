"""Every penalty against the dense Jacobian, its gradient against finite differences."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from solvers import penalties
from tests.solvers.problems import precision

N = 7
KEY = 4
TOLERANCE = {"float32": 2e-5, "float64": 1e-11}


def tree_map(theta: tuple, x: dict) -> dict:
    """`tanh(W x + b)` on a state of two leaves, so that flattening is part of every test."""
    weight, bias = theta
    image = jnp.tanh(weight @ jnp.concatenate([x["a"].ravel(), x["b"]]) + bias)
    return {"a": image[:4].reshape(2, 2).astype(x["a"].dtype), "b": image[4:].astype(x["b"].dtype)}


def linear_map(weight: jax.Array, x: jax.Array) -> jax.Array:
    return weight @ x


def problem(dtype: str = "float32", gain: float = 1.0, seed: int = 0) -> tuple[tuple, dict]:
    rng = np.random.default_rng(seed)
    weight = gain * rng.standard_normal((N, N)) / np.sqrt(N)
    bias, x = 0.1 * rng.standard_normal(N), 0.3 * rng.standard_normal(N)
    theta = (jnp.asarray(weight, dtype), jnp.asarray(bias, dtype))
    return theta, {"a": jnp.asarray(x[:4].reshape(2, 2), dtype), "b": jnp.asarray(x[4:], dtype)}


def dense(theta: tuple, x: dict) -> np.ndarray:
    """The Jacobian of `tree_map` in float64, by hand."""
    weight, bias = (np.asarray(leaf, np.float64) for leaf in theta)
    flat = np.concatenate([np.asarray(x["a"], np.float64).ravel(), np.asarray(x["b"], np.float64)])
    return (1 - np.tanh(weight @ flat + bias) ** 2)[:, None] * weight


def gram(jacobian: np.ndarray) -> np.ndarray:
    system = np.eye(len(jacobian)) - jacobian
    return system.T @ system


def lambda_min(jacobian: np.ndarray) -> float:
    return np.linalg.eigvalsh(gram(jacobian))[0]


def gershgorin_bound(jacobian: np.ndarray) -> float:
    n = len(jacobian)
    return np.sqrt(n) * np.linalg.norm(gram(jacobian) - np.eye(n)) - 1


# Settings with which every penalty is active on `problem()`.
PENALTIES = {
    "contraction": lambda f, theta, x, key: penalties.contraction(f, theta, x, 0.5),
    "contraction_sampled": lambda f, theta, x, key: penalties.contraction(
        f, theta, x, 0.1, columns=3, key=key
    ),
    "jacobian_norm": lambda f, theta, x, key: penalties.jacobian_norm(f, theta, x, key, 2),
    "gershgorin": lambda f, theta, x, key: penalties.gershgorin(f, theta, x),
    "gershgorin_sampled": lambda f, theta, x, key: penalties.gershgorin(
        f, theta, x, key=key, samples=3
    ),
    "conditioning": lambda f, theta, x, key: penalties.conditioning(f, theta, x, key, 4.0, N + 3),
    "conditioning_short": lambda f, theta, x, key: penalties.conditioning(f, theta, x, key, 4.0, 3),
}
ONE_OF_EACH = ["contraction", "jacobian_norm", "gershgorin", "conditioning"]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_exact_penalties_match_the_dense_jacobian(dtype):
    with precision(dtype):
        theta, x = problem(dtype)
        jacobian = dense(theta, x)
        key = jax.random.key(KEY)
        largest = np.abs(jacobian).sum(axis=0).max()
        expected = {
            "contraction": (largest - 0.5) ** 2,
            "gershgorin": gershgorin_bound(jacobian),
            "conditioning": 4.0 - lambda_min(jacobian),
        }
        for name, value in expected.items():
            got = jax.jit(PENALTIES[name], static_argnums=0)(tree_map, theta, x, key)
            assert got.dtype == dtype
            np.testing.assert_allclose(got, value, rtol=TOLERANCE[dtype], err_msg=name)


@pytest.mark.parametrize("name", PENALTIES)
def test_gradient_is_that_of_finite_differences(name):
    with precision("float64"):
        theta, x = problem("float64")
        key = jax.random.key(KEY)
        penalty = jax.jit(
            jax.value_and_grad(lambda *point: PENALTIES[name](tree_map, *point, key), (0, 1))
        )
        direction = problem("float64", seed=5)
        value, gradient = penalty(theta, x)
        slope = sum(
            jnp.vdot(a, b)
            for a, b in zip(jax.tree.leaves(gradient), jax.tree.leaves(direction), strict=True)
        )

        def along(length: float) -> jax.Array:
            return penalty(*jax.tree.map(lambda p, d: p + length * d, (theta, x), direction))[0]

        assert value > 0, "inactive: the test would be empty"
        difference = (along(1e-5) - along(-1e-5)) / 2e-5
        np.testing.assert_allclose(slope, difference, rtol=1e-6)


@pytest.mark.parametrize("name", [*ONE_OF_EACH, "gershgorin_sampled"])
def test_zero_jacobian_has_a_finite_gradient(name):
    key = jax.random.key(KEY)
    value, gradient = jax.jit(
        jax.value_and_grad(lambda weight: PENALTIES[name](linear_map, weight, jnp.ones(N), key))
    )(jnp.zeros((N, N)))
    assert np.all(np.isfinite(gradient))
    # A = I there, and a floor of 4 is missed by 3.
    np.testing.assert_allclose(value, 3.0 if "conditioning" in name else 0.0, atol=1e-6)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_vmap_is_a_loop(name):
    key = jax.random.key(KEY)
    examples = [problem(gain=gain, seed=seed) for seed, gain in enumerate((0.0, 0.5, 1.5))]
    run = jax.value_and_grad(lambda theta, x: PENALTIES[name](tree_map, theta, x, key))
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *examples)
    together = jax.jit(jax.vmap(run))(*stacked)
    one = jax.jit(run)
    apart = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(one(*each) for each in examples))
    for a, b in zip(jax.tree.leaves(together), jax.tree.leaves(apart), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-5)


def test_sampled_columns_are_distinct_columns_of_the_jacobian():
    theta, x = problem()
    sizes = np.abs(dense(theta, x)).sum(axis=0)
    eta = 0.1

    def sampled(columns: int) -> jax.Array:
        keys = jax.random.split(jax.random.key(KEY), 10)
        return jax.jit(
            jax.vmap(
                lambda key: penalties.contraction(tree_map, theta, x, eta, columns=columns, key=key)
            )
        )(keys)

    np.testing.assert_allclose(sampled(N), (sizes.max() - eta) ** 2, rtol=1e-5)
    single = np.asarray(sampled(1))
    assert np.isclose(single[:, None], (sizes - eta) ** 2, rtol=1e-4).any(axis=1).all()
    assert len(np.unique(single)) > 1


def test_columns_without_a_key_or_out_of_range_are_refused():
    theta, x = problem()
    with pytest.raises(ValueError, match="pass key"):
        penalties.contraction(tree_map, theta, x, columns=2)
    for columns in (0, N + 1):
        with pytest.raises(ValueError, match="between 1 and 7"):
            penalties.contraction(tree_map, theta, x, columns=columns, key=jax.random.key(0))


def test_what_cannot_be_penalised_is_refused():
    key = jax.random.key(0)
    with pytest.raises(TypeError, match="int32"):
        penalties.jacobian_norm(linear_map, jnp.eye(2), jnp.ones(2, jnp.int32), key)
    with pytest.raises(ValueError, match="shape"):
        penalties.gershgorin(linear_map, jnp.ones((3, 2)), jnp.ones(2))
    with pytest.raises(ValueError, match="no entries"):
        penalties.contraction(linear_map, jnp.ones((0, 0)), jnp.ones(0))
    with pytest.raises(ValueError, match="samples"):
        penalties.jacobian_norm(linear_map, jnp.eye(2), jnp.ones(2), key, samples=0)
    with pytest.raises(ValueError, match="steps"):
        penalties.smallest_eigenvalue(linear_map, jnp.eye(2), jnp.ones(2), key, steps=0)


def test_estimates_approach_what_they_estimate():
    theta, x = problem()
    jacobian, key = dense(theta, x), jax.random.key(KEY)

    @jax.jit
    def estimates(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        frobenius = penalties.jacobian_norm(tree_map, theta, x, key, samples=4000)
        return frobenius, penalties.gershgorin(tree_map, theta, x, key=key, samples=4000)

    frobenius, gershgorin = estimates(key)
    np.testing.assert_allclose(frobenius, np.sum(jacobian**2) / N, rtol=0.05)
    np.testing.assert_allclose(gershgorin, gershgorin_bound(jacobian), rtol=0.05)


def test_one_probe_measures_a_scaled_rotation_exactly():
    rotation = 0.7 * np.linalg.qr(np.random.default_rng(1).standard_normal((N, N)))[0]
    got = penalties.jacobian_norm(
        linear_map, jnp.asarray(rotation, jnp.float32), jnp.ones(N), jax.random.key(0)
    )
    np.testing.assert_allclose(got, 0.49, rtol=1e-5)


smallest = jax.jit(penalties.smallest_eigenvalue, static_argnames=("f", "steps"))
slope_of_smallest = jax.jit(
    jax.grad(penalties.smallest_eigenvalue, argnums=1), static_argnames=("f", "steps")
)


def test_repeated_eigenvalues_end_the_lanczos_process_without_false_ones():
    # Two distinct eigenvalues: the Krylov space has dimension two, not N.
    a = np.random.default_rng(2).standard_normal(N)
    projector = np.outer(a, a) / (a @ a)
    for shift, scale in ((-1.0, 0.5), (-1.0, -3.0), (0.5, 0.3), (0.0, 0.9)):
        jacobian = shift * np.eye(N) + scale * projector
        weight = jnp.asarray(jacobian, jnp.float32)
        arguments = (linear_map, weight, jnp.ones(N), jax.random.key(KEY), N + 3)
        np.testing.assert_allclose(smallest(*arguments), lambda_min(jacobian), rtol=1e-4)
        assert np.all(np.isfinite(slope_of_smallest(*arguments)))


def test_a_nearly_singular_system_keeps_relative_accuracy_and_its_gradient():
    rng = np.random.default_rng(3)
    left, right = (np.linalg.qr(rng.standard_normal((N, N)))[0] for _ in range(2))
    values = np.linspace(2.0, 0.5, N)
    values[-1] = 1e-3
    jacobian = np.eye(N) - (left * values) @ right.T
    arguments = (
        linear_map,
        jnp.asarray(jacobian, jnp.float32),
        jnp.ones(N),
        jax.random.key(0),
        N + 3,
    )
    np.testing.assert_allclose(smallest(*arguments), 1e-6, rtol=1e-2)
    # d sigma^2 = -2 sigma u^T dJ v
    expected = -2e-3 * np.outer(left[:, -1], right[:, -1])
    np.testing.assert_allclose(slope_of_smallest(*arguments), expected, atol=2e-5)


@given(arrays(np.float32, (4, 4), elements=st.floats(-2, 2, width=32)), st.integers(0, 3))
@settings(max_examples=40, deadline=None)
def test_laws_of_any_linear_map(jacobian, seed):
    weight, x, key = jnp.asarray(jacobian), jnp.ones(4), jax.random.key(seed)
    jacobian = np.asarray(jacobian, np.float64)
    true, scale = lambda_min(jacobian), np.linalg.norm(gram(jacobian), 2)
    complete, short = (smallest(linear_map, weight, x, key, steps) for steps in (9, 2))
    # A direction below the square root of the rounding unit is left out.
    np.testing.assert_allclose(complete, true, atol=2e-3 * max(scale, 1))
    assert complete >= true - 1e-5 * scale
    assert short >= complete - 2e-3 * max(scale, 1), "a larger Krylov space found less"
    bound = _gershgorin(weight, x)
    np.testing.assert_allclose(bound, max(gershgorin_bound(jacobian), 0), rtol=1e-4, atol=1e-4)
    assert true >= -bound - 1e-4
    excess = max(np.abs(jacobian).sum(axis=0).max() - 0.9, 0)
    np.testing.assert_allclose(_contraction(weight, x), excess**2, rtol=1e-4, atol=1e-6)


_gershgorin = jax.jit(lambda weight, x: penalties.gershgorin(linear_map, weight, x))
_contraction = jax.jit(lambda weight, x: penalties.contraction(linear_map, weight, x))


def test_conditioning_pushes_the_smallest_eigenvalue_up_to_its_floor():
    key, x, floor = jax.random.key(0), jnp.ones(N), 0.25
    rng = np.random.default_rng(9)
    weight = jnp.asarray(rng.standard_normal((N, N)) / np.sqrt(N), jnp.float32)
    assert lambda_min(np.asarray(weight, np.float64)) < 0.1 * floor

    def missing(weight: jax.Array, floor: float) -> jax.Array:
        return penalties.conditioning(linear_map, weight, x, key, floor)

    descend = jax.jit(jax.value_and_grad(missing))
    for _ in range(40):
        weight = weight - 0.2 * descend(weight, floor)[1]
    assert lambda_min(np.asarray(weight, np.float64)) > 0.95 * floor
    value, gradient = descend(weight, 0.9 * floor)
    assert value == 0
    assert np.all(np.asarray(gradient) == 0)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_a_bfloat16_state_is_measured_in_float32(name):
    theta, x = problem()
    half = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), x)
    key = jax.random.key(KEY)
    run = jax.jit(PENALTIES[name], static_argnums=0)
    got, expected = run(tree_map, theta, half, key), run(tree_map, theta, x, key)
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, expected, rtol=0.05)
