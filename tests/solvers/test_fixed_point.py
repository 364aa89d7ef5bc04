"""Every fixed-point method: values, steps, transforms and precisions."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import solvers
from solvers import Status, linear
from tests.solvers.problems import precision, tanh_map, tanh_solution, tanh_theta


def diagonal_bands(theta, x):
    """The exact diagonal of the Jacobian of `tanh_map`, as bands without neighbours."""
    weight, bias = theta
    slope = 1 - jnp.tanh(weight @ x + bias) ** 2
    zero = jnp.zeros_like(x)
    return solvers.Bands(lower=zero, upper=zero, diagonal=slope * jnp.diag(weight))


# A method per registered name: a new one is tested by being registered.
METHODS = {name: factory() for name, factory in solvers.METHODS.items()}
METHODS["banded"] = solvers.banded(diagonal_bands)
METHODS["newton_banded"] = solvers.newton(precond=solvers.precondition(diagonal_bands))
METHODS["newton_gmres"] = solvers.newton(linear.gmres(), forcing=1e-3)
METHODS["newton_polynomial"] = solvers.newton(linear.neumann(1), line_search=False)
TOLERANCE = {"float32": 1e-5, "float64": 1e-11}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", METHODS)
def test_finds_the_fixed_point_of_a_contraction_alone_and_in_a_batch(name, dtype):
    with precision(dtype):
        rtol = TOLERANCE[dtype]
        radii = (0.1, 0.6, 0.9)
        thetas = [tanh_theta(radius) for radius in radii]
        batch = jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves), dtype), *thetas)

        def run(theta):
            return solvers.fixed_point(
                tanh_map, theta, jnp.zeros(6, dtype), method=METHODS[name], rtol=rtol
            )

        x, info = jax.jit(jax.vmap(run))(batch)
        assert np.all(info.converged)
        for index, theta in enumerate(thetas):
            np.testing.assert_allclose(x[index], tanh_solution(*theta), rtol=0, atol=100 * rtol)
            image = np.tanh(theta[0] @ np.asarray(x[index], np.float64) + theta[1])
            assert np.linalg.norm(image - x[index]) <= 3 * rtol * np.linalg.norm(image)
        if dtype == "float32":
            alone = jax.jit(run)
            for index in range(len(thetas)):
                x_alone, info_alone = alone(jax.tree.map(lambda leaf, i=index: leaf[i], batch))
                assert info.status[index] == info_alone.status
                assert info.steps[index] == info_alone.steps
                np.testing.assert_allclose(x[index], x_alone, rtol=0, atol=10 * rtol)


@pytest.mark.parametrize("name", ["newton", "auto", "newton_gmres"])
def test_newton_needs_no_contraction(name):
    with precision("float64"):
        weight, bias = tanh_theta(radius=4.0, seed=13)
        x, info = jax.jit(
            lambda theta: solvers.fixed_point(
                tanh_map, theta, jnp.zeros(6), method=METHODS[name], rtol=1e-11
            )
        )((weight, bias))
        assert info.converged, solvers.explain(info.status)
        np.testing.assert_allclose(tanh_map((weight, bias), x), x, atol=1e-9)
        _, plain = solvers.fixed_point(
            tanh_map, (weight, bias), jnp.zeros(6), method="picard", rtol=1e-11
        )
        assert not plain.converged


def test_newton_converges_quadratically_and_picard_linearly():
    with precision("float64"):
        theta = tanh_theta(0.9)
        common = {"rtol": 1e-14, "trace": 101, "max_steps": 100}
        newton = solvers.newton(linear.gmres(rtol=1e-14), forcing=0.0)
        _, fast = solvers.fixed_point(tanh_map, theta, jnp.zeros(6), method=newton, **common)
        _, slow = solvers.fixed_point(tanh_map, theta, jnp.zeros(6), method="picard", **common)
        fast = np.asarray(fast.trace)[: int(fast.steps)]
        slow = np.asarray(slow.trace)[: int(slow.steps)]
        assert np.all(fast[1:] < 10 * fast[:-1] ** 1.8)
        rates = slow[8:14] / slow[7:13]
        assert rates.std() < 0.1 * rates.mean()


def test_newton_forcing_tightens_as_the_residual_falls():
    with precision("float64"):
        theta = tanh_theta(0.95)
        loose = solvers.newton()
        tight = solvers.newton(forcing=1e-12)
        _, cheap = solvers.fixed_point(tanh_map, theta, jnp.zeros(6), method=loose, rtol=1e-10)
        _, dear = solvers.fixed_point(tanh_map, theta, jnp.zeros(6), method=tight, rtol=1e-10)
        assert cheap.converged
        assert dear.converged
        assert cheap.evaluations < dear.evaluations


def test_line_search_never_accepts_a_point_that_is_not_finite():
    # The fixed point of 1 - log(x) is 1; a full Newton step from 3 lands where log is not defined.
    def f(_, x):
        return 1 - jnp.log(x)

    x, info = solvers.fixed_point(f, (), jnp.array([9.0]), method=solvers.newton())
    assert info.converged
    np.testing.assert_allclose(x, 1.0, rtol=1e-4)
    _, bare = solvers.fixed_point(f, (), jnp.array([9.0]), method=solvers.newton(line_search=False))
    assert bare.status == Status.NONFINITE


def test_anderson_equals_gmres_on_an_affine_map():
    """Walker and Ni (2011): with full memory its residual follows that of GMRES by one step."""
    with precision("float64"):
        rng = np.random.default_rng(0)
        jacobian = 0.8 * rng.standard_normal((8, 8)) / np.sqrt(8)
        bias = jnp.asarray(rng.standard_normal(8))
        _, info = solvers.fixed_point(
            lambda _, x: jacobian @ x + bias,
            (),
            jnp.zeros(8),
            method=solvers.anderson(8),
            rtol=0.0,
            atol=0.0,
            max_steps=6,
            trace=7,
        )
        _, krylov = linear.gmres(rtol=0.0, max_steps=6)(lambda v: v - jacobian @ v, bias, trace=7)
        x = np.zeros(8)
        for k in range(2, 6):
            basis = np.stack([np.linalg.matrix_power(jacobian, j) @ bias for j in range(k)], 1)
            system = (np.eye(8) - jacobian) @ basis
            x = basis @ np.linalg.lstsq(system, np.asarray(bias))[0]
            image = jacobian @ x + bias
            step = jacobian @ (image - x)  # residual at the image: what Anderson shows next
            got = info.trace[k + 1] * _scale(jacobian, bias, image)
            np.testing.assert_allclose(got, np.linalg.norm(step), rtol=1e-6)
        assert krylov.trace.shape == (7,)


def _scale(jacobian, bias, x):
    return max(np.linalg.norm(x), np.linalg.norm(jacobian @ x + bias))


@pytest.mark.parametrize("name", ["anderson", "broyden"])
def test_acceleration_beats_picard_on_a_weak_contraction(name):
    theta = tanh_theta(0.99, size=20, seed=1)
    counts = {}
    for method in ("picard", name):
        _, info = solvers.fixed_point(
            tanh_map, jax.tree.map(jnp.float32, theta), jnp.zeros(20), method=method, rtol=1e-5
        )
        assert info.converged
        counts[method] = int(info.evaluations)
    assert counts[name] < counts["picard"]


@pytest.mark.parametrize("name", ["picard", "anderson", "broyden", "newton", "auto"])
def test_bfloat16_states_are_iterated_in_float32(name):
    weight, bias = tanh_theta(0.5)
    theta = (jnp.asarray(weight, jnp.bfloat16), jnp.asarray(bias, jnp.bfloat16))
    x, info = jax.jit(
        lambda theta: solvers.fixed_point(tanh_map, theta, jnp.zeros(6, jnp.bfloat16), method=name)
    )(theta)
    assert x.dtype == jnp.bfloat16
    assert info.residual.dtype == jnp.float32
    assert info.converged
    np.testing.assert_allclose(np.asarray(x, np.float64), tanh_solution(weight, bias), atol=0.06)


def test_pytree_states_and_closures_are_solved_and_differentiated():
    with precision("float64"):
        shift = jnp.asarray(0.3)

        def solution(shift):
            def f(theta, x):
                return {"a": jnp.cos(x["b"][0]) * theta, "b": 0.5 * x["a"] * jnp.ones(2) + shift}

            x, _ = solvers.fixed_point(
                f, 0.7, {"a": jnp.zeros(()), "b": jnp.zeros(2)}, method="anderson", rtol=1e-13
            )
            return x["a"]

        solution = jax.jit(solution)
        h = 1e-6
        numeric = (solution(shift + h) - solution(shift - h)) / (2 * h)
        np.testing.assert_allclose(jax.grad(solution)(shift), numeric, rtol=1e-7)


def test_trace_holds_the_residual_of_every_step():
    _x, info = solvers.fixed_point(
        lambda _, x: 0.5 * x + 1, (), jnp.zeros(1), method="picard", rtol=1e-3, trace=40
    )
    trace = np.asarray(info.trace)
    taken = int(info.steps) + 1
    assert np.all(np.isfinite(trace[:taken]))
    assert np.all(trace[taken:] == -1)
    np.testing.assert_allclose(trace[taken - 1], info.residual, rtol=1e-6)
    iterates = 2 * (1 - 0.5 ** np.arange(taken))
    np.testing.assert_allclose(trace[:taken], (1 - iterates / 2) / (1 + iterates / 2), rtol=1e-5)


def test_auto_hands_over_to_newton_only_the_examples_that_need_it():
    easy, hard = tanh_theta(0.5, seed=9), tanh_theta(4.0, seed=9)
    batch = jax.tree.map(lambda a, b: jnp.asarray(np.stack([a, b]), jnp.float32), easy, hard)
    cascade = solvers.auto(cheap_steps=20)
    x, info = jax.jit(
        jax.vmap(lambda theta: solvers.fixed_point(tanh_map, theta, jnp.zeros(6), method=cascade))
    )(batch)
    assert np.all(info.converged)
    assert info.steps[0] < 20 < info.steps[1]
    np.testing.assert_allclose(jax.vmap(tanh_map)(batch, x), x, atol=1e-3)


def test_tolerance_may_be_traced():
    theta = jax.tree.map(jnp.float32, tanh_theta(0.8))

    @jax.jit
    def run(rtol):
        return solvers.fixed_point(tanh_map, theta, jnp.zeros(6), method="picard", rtol=rtol)[1]

    assert run(1e-2).steps < run(1e-5).steps
    gradient = jax.jit(
        jax.grad(
            lambda rtol: solvers.fixed_point(
                tanh_map, theta, jnp.zeros(6), method="picard", rtol=rtol
            )[0].sum()
        )
    )(1e-3)
    assert gradient == 0


@given(st.permutations(range(5)))
def test_law_permuting_the_batch_permutes_the_results(order):
    order = np.asarray(order)
    x, info = _batch_of_five(np.arange(5))
    permuted_x, permuted_info = _batch_of_five(order)
    np.testing.assert_array_equal(permuted_info.steps, info.steps[order])
    np.testing.assert_array_equal(permuted_info.status, info.status[order])
    np.testing.assert_allclose(permuted_x, x[order], atol=1e-5)


@jax.jit
def _solve_five(theta):
    return jax.vmap(
        lambda theta: solvers.fixed_point(tanh_map, theta, jnp.zeros(6), method="anderson")
    )(theta)


def _batch_of_five(order):
    thetas = [tanh_theta(radius) for radius in (0.1, 0.3, 0.5, 0.7, 0.9)]
    batch = jax.tree.map(lambda *leaves: np.stack(leaves).astype(np.float32), *thetas)
    return _solve_five(jax.tree.map(lambda leaf: leaf[order], batch))


def test_settings_are_checked():
    with pytest.raises(ValueError, match="unknown method 'newtn'"):
        solvers.fixed_point(tanh_map, tanh_theta(), jnp.zeros(6), method="newtn")
    with pytest.raises(ValueError, match="unknown adjoint"):
        solvers.fixed_point(tanh_map, tanh_theta(), jnp.zeros(6), adjoint="exact")
    with pytest.raises(ValueError, match="needs its number of steps"):
        solvers.fixed_point(tanh_map, tanh_theta(), jnp.zeros(6), adjoint="neumann")
    with pytest.raises(TypeError, match="unexpected keyword"):
        solvers.anderson(memory=3)
    with pytest.raises(ValueError, match="depth"):
        solvers.anderson(depth=0)
    with pytest.raises(ValueError, match="forcing"):
        solvers.newton(forcing=2.0)
    with pytest.raises(TypeError, match="method must be"):
        solvers.fixed_point(tanh_map, tanh_theta(), jnp.zeros(6), method=3)
