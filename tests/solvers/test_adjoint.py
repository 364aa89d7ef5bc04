"""Every method with every adjoint against dense implicit differentiation; probes and policies."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import solvers
from solvers import adjoint, linear
from tests.solvers.problems import precision, tanh_gradient, tanh_map, tanh_solution, tanh_theta
from tests.solvers.test_fixed_point import METHODS

RADIUS = 0.5
EXACT = {
    "implicit": lambda: adjoint.implicit(linear.bicgstab(rtol=1e-12)),
    "implicit_gmres": lambda: adjoint.implicit(linear.gmres(rtol=1e-12)),
    "implicit_lsqr": lambda: adjoint.implicit(linear.lsqr(rtol=1e-12)),
    "neumann": lambda: adjoint.neumann(60),
    "rbp_steps": lambda: adjoint.rbp(61),
    "rbp_rtol": lambda: adjoint.rbp(rtol=1e-12),
    "rbp_uniform": lambda: adjoint.rbp(70, start="uniform", key=jax.random.key(0)),
    "cg_rbp_steps": lambda: adjoint.cg_rbp(20),
    "cg_rbp_rtol": lambda: adjoint.cg_rbp(rtol=1e-12),
    "phantom": lambda: adjoint.phantom(120, damping=0.7),
    "tbptt": lambda: adjoint.tbptt(60),
    "tangent": lambda: adjoint.tangent(linear.bicgstab(rtol=1e-12)),
}
# Differentiating through accelerated iterations lags behind their values.
UNROLLED = {"picard": 1e-8, "anderson": 1e-3, "broyden": 1e-3, "newton": 1e-8, "banded": 1e-8}


def gradient(method, how, theta, cotangent, x0=None, **settings):
    def loss(theta):
        x, info = solvers.fixed_point(
            tanh_map,
            theta,
            jnp.zeros(6) if x0 is None else x0,
            method=method,
            adjoint=how,
            **settings,
        )
        return jnp.vdot(cotangent, x), info

    return jax.jit(jax.grad(loss, has_aux=True))(theta)


# A backward pass does not see the method that found the solution: one method covers most adjoints.
PAIRS = [("picard", how) for how in EXACT] + [
    pytest.param(method, how, marks=[pytest.mark.slow] if how == "tbptt" else [])
    for method in ("anderson", "broyden", "newton", "banded", "auto")
    for how in ("implicit", "tbptt")
]


@pytest.mark.parametrize(("method", "how"), PAIRS)
def test_gradient_is_that_of_the_implicit_function_theorem(method, how):
    with precision("float64"):
        theta, cotangent = tanh_theta(RADIUS), np.linspace(-1, 1, 6)
        got, info = gradient(
            METHODS[method], EXACT[how](), theta, cotangent, rtol=1e-13, max_steps=100
        )
        assert info.converged
        for g, e in zip(got, tanh_gradient(*theta, cotangent), strict=True):
            np.testing.assert_allclose(g, e, rtol=0, atol=1e-9)


@pytest.mark.parametrize("method", UNROLLED)
def test_bptt_differentiates_the_iterations_and_reaches_the_start(method):
    with precision("float64"):
        theta, cotangent = tanh_theta(RADIUS), np.linspace(-1, 1, 6)
        got, _ = gradient(METHODS[method], adjoint.bptt(), theta, cotangent, max_steps=30, rtol=0.0)
        for g, e in zip(got, tanh_gradient(*theta, cotangent), strict=True):
            np.testing.assert_allclose(g, e, rtol=0, atol=UNROLLED[method])


def test_bptt_of_a_short_run_is_ordinary_back_propagation():
    with precision("float64"):
        theta, cotangent = tanh_theta(0.9), jnp.linspace(-1, 1, 6)
        start = jnp.full(6, 0.2)

        def unrolled(theta, x):
            for _ in range(3):
                x = tanh_map(theta, x)
            return jnp.vdot(cotangent, x)

        def ours(theta, x):
            x, _ = solvers.fixed_point(
                tanh_map, theta, x, method="picard", adjoint="bptt", max_steps=3, rtol=0.0, atol=0.0
            )
            return jnp.vdot(cotangent, x)

        got = jax.grad(ours, argnums=(0, 1))(theta, start)
        expected = jax.grad(unrolled, argnums=(0, 1))(theta, start)
        for g, e in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(g, e, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("how", ["implicit", "neumann", "one_step", "cg_rbp_steps", "rbp_steps"])
def test_float32_gradients_agree_with_the_dense_ones(how):
    theta, cotangent = tanh_theta(RADIUS), np.linspace(-1, 1, 6, dtype=np.float32)
    make = {**EXACT, "implicit": adjoint.implicit, "one_step": adjoint.one_step}[how]
    got, _ = gradient("anderson", make(), jax.tree.map(jnp.float32, theta), cotangent)
    expected = tanh_gradient(*theta, cotangent)
    if how == "one_step":
        x = tanh_solution(*theta)
        w = (1 - x**2) * cotangent
        expected = (np.outer(w, x), w)
    for g, e in zip(got, expected, strict=True):
        np.testing.assert_allclose(g, e, rtol=0, atol=2e-4)


@pytest.mark.parametrize("how", ["implicit", "tbptt", "tangent", "bptt"])
def test_gradient_matches_finite_differences_of_the_solve_itself(how):
    with precision("float64"):
        weight, bias = tanh_theta(0.8)
        make = {**EXACT, "bptt": adjoint.bptt}[how]

        @jax.jit
        def loss(scale):
            x, _ = solvers.fixed_point(
                tanh_map,
                (scale * weight, bias),
                jnp.zeros(6),
                method="picard",
                adjoint=make(),
                rtol=1e-13,
                max_steps=150,
            )
            return jnp.sum(jnp.sin(3 * x))

        h = 1e-5
        numeric = (loss(1.0 + h) - loss(1.0 - h)) / (2 * h)
        np.testing.assert_allclose(jax.grad(loss)(1.0), numeric, rtol=1e-7)


@pytest.mark.parametrize("how", ["implicit", "tangent"])
def test_second_derivatives_match_differentiation_of_the_long_loop(how):
    with precision("float64"):
        weight, bias = tanh_theta(RADIUS)

        def long_loop(bias):
            x = jnp.zeros(6)
            for _ in range(60):
                x = tanh_map((weight, bias), x)
            return jnp.sum(x**3)

        def ours(bias):
            x, _ = solvers.fixed_point(
                tanh_map,
                (weight, bias),
                jnp.zeros(6),
                method="picard",
                adjoint=EXACT[how](),
                rtol=1e-14,
            )
            return jnp.sum(x**3)

        vector = jnp.linspace(-1, 1, 6)
        expected = jax.grad(lambda b: jnp.vdot(jax.grad(long_loop)(b), vector))(bias)
        got = jax.jit(jax.grad(lambda b: jnp.vdot(jax.grad(ours)(b), vector)))(bias)
        np.testing.assert_allclose(got, expected, atol=1e-9)


def test_tangent_supports_forward_mode_and_hessians():
    with precision("float64"):
        weight, bias = tanh_theta(RADIUS)

        def ours(bias):
            return solvers.fixed_point(
                tanh_map,
                (weight, bias),
                jnp.zeros(6),
                method="picard",
                adjoint=EXACT["tangent"](),
                rtol=1e-14,
            )[0]

        x = tanh_solution(weight, bias)
        slope = 1 - x**2
        expected = np.linalg.solve(np.eye(6) - slope[:, None] * weight, np.diag(slope))
        np.testing.assert_allclose(jax.jit(jax.jacfwd(ours))(bias), expected, atol=1e-9)
        np.testing.assert_allclose(jax.jit(jax.jacrev(ours))(bias), expected, atol=1e-9)
        h = 1e-5
        hessian = jax.jit(jax.hessian(lambda b: jnp.sum(ours(b) ** 2)))(bias)
        dense = jax.jit(jax.grad(lambda b: jnp.sum(ours(b) ** 2)))
        column = (dense(bias + h * np.eye(6)[0]) - dense(bias - h * np.eye(6)[0])) / (2 * h)
        np.testing.assert_allclose(hessian[0], column, atol=1e-7)
        np.testing.assert_allclose(hessian, hessian.T, atol=1e-8)


class TestPropositionsOfThe2018Paper:
    """Index conventions of Neumann-RBP, RBP and truncated back-propagation through time."""

    @pytest.mark.parametrize("steps", [0, 3])
    def test_1_neumann_equals_truncated_back_propagation_at_the_fixed_point(self, steps):
        with precision("float64"):
            theta, cotangent = tanh_theta(0.9), np.linspace(-1, 1, 6)
            start = jnp.asarray(tanh_solution(*theta))
            common = {"theta": theta, "cotangent": cotangent, "x0": start, "max_steps": steps + 1}
            series, _ = gradient("picard", adjoint.neumann(steps), **common)
            unrolled, _ = gradient("picard", adjoint.tbptt(steps + 1), **common)
            for a, b in zip(series, unrolled, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)

    @pytest.mark.parametrize("steps", [0, 1, 3, 10])
    def test_2_error_of_the_truncated_series_is_bounded(self, steps):
        with precision("float64"):
            weight, bias = tanh_theta(0.9)
            x = tanh_solution(weight, bias)
            jacobian = (1 - x**2)[:, None] * weight
            system = np.eye(6) - jacobian.T
            c = np.linspace(-1, 1, 6)
            w, info = linear.neumann(steps)(lambda v: system @ v, jnp.asarray(c))
            error = np.linalg.norm(w - np.linalg.solve(system, c))
            inverse = np.linalg.norm(np.linalg.inv(system), 2)
            bound = inverse * np.linalg.norm(jacobian, 2) ** (steps + 1) * np.linalg.norm(c)
            assert error <= bound * (1 + 1e-12)
            terms = sum(np.linalg.matrix_power(jacobian.T, k) @ c for k in range(steps + 1))
            np.testing.assert_allclose(w, terms, rtol=1e-12)
            assert info.steps == steps

    @pytest.mark.parametrize("steps", [0, 3])
    def test_3_one_more_step_of_rbp_from_zero_equals_neumann(self, steps):
        with precision("float64"):
            theta, cotangent = tanh_theta(0.9), np.linspace(-1, 1, 6)
            series, _ = gradient("picard", adjoint.neumann(steps), theta, cotangent, rtol=1e-12)
            fixed, _ = gradient("picard", adjoint.rbp(steps + 1), theta, cotangent, rtol=1e-12)
            for a, b in zip(series, fixed, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-13)

    def test_cg_rbp_minimises_over_the_krylov_space_of_the_normal_equations(self):
        with precision("float64"):
            weight, bias = tanh_theta(0.9)
            x = tanh_solution(weight, bias)
            system = np.eye(6) - ((1 - x**2)[:, None] * weight).T
            c = np.linspace(-1, 1, 6)
            normal = system.T @ system
            basis = np.stack(
                [np.linalg.matrix_power(normal, k) @ system.T @ c for k in range(3)], axis=1
            )
            expected = basis @ np.linalg.lstsq(system @ basis, c)[0]
            z, _ = linear.cgne(max_steps=3, truncated=True)(lambda v: system @ v, jnp.asarray(c))
            np.testing.assert_allclose(z, expected, rtol=1e-8)


def test_preconditioner_serves_the_backward_solve_transposed():
    with precision("float64"):
        theta, cotangent = tanh_theta(0.9), np.linspace(-1, 1, 6)

        def precond(theta, x):
            slope = 1 - jnp.tanh(theta[0] @ x + theta[1]) ** 2
            inverse = jnp.linalg.inv(jnp.eye(6) - slope[:, None] * theta[0])
            return lambda v: inverse @ v

        solver = linear.richardson(rtol=1e-10, max_steps=2)
        for make in (adjoint.implicit, adjoint.tangent):
            how = make(solver, precond=precond, on_failure="nan")
            got, _ = gradient("anderson", how, theta, cotangent, rtol=1e-12)
            for g, e in zip(got, tanh_gradient(*theta, cotangent), strict=True):
                np.testing.assert_allclose(g, e, rtol=0, atol=1e-9)


@pytest.mark.slow
def test_integer_leaves_in_theta_pass_through():
    def f(theta, x):
        return 0.5 * jnp.tanh(x[theta["order"]] + theta["bias"])

    theta = {"order": jnp.array([2, 0, 1]), "bias": jnp.arange(3.0)}

    def loss(theta, how):
        return jnp.sum(solvers.fixed_point(f, theta, jnp.zeros(3), method="picard", adjoint=how)[0])

    results = [
        jax.jit(jax.grad(lambda bias, how=how: loss({**theta, "bias": bias}, how)))(theta["bias"])
        for how in ("implicit", "tangent", "bptt")
    ]
    np.testing.assert_allclose(results[1], results[0], atol=1e-4)
    np.testing.assert_allclose(results[2], results[0], atol=1e-3)
    both = jax.grad(lambda theta: loss(theta, "implicit"), allow_int=True)(theta)
    np.testing.assert_allclose(both["bias"], results[0], atol=1e-6)


def test_settings_are_checked():
    with pytest.raises(ValueError, match="either steps or rtol"):
        adjoint.rbp()
    with pytest.raises(ValueError, match="either steps or rtol"):
        adjoint.cg_rbp(3, rtol=1e-3)
    with pytest.raises(ValueError, match="start must be"):
        adjoint.rbp(3, start="ones")
    with pytest.raises(ValueError, match="on_failure"):
        adjoint.neumann(3, on_failure="ignore")
    with pytest.raises(ValueError, match="steps must be"):
        adjoint.neumann(-1)
    with pytest.raises(ValueError, match="tbptt"):
        solvers.fixed_point(
            tanh_map, tanh_theta(), jnp.zeros(6), adjoint=adjoint.tbptt(9), max_steps=5
        )
    with pytest.raises(ValueError, match="cannot report to a probe"):
        solvers.fixed_point(
            tanh_map, tanh_theta(), jnp.zeros(6), adjoint="tangent", probe=solvers.adjoint_probe()
        )
