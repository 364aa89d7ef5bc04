"""What cannot be solved says so: statuses, finite values, readable errors, healthy neighbours."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import checkify

import solvers
from solvers import Info, Status, adjoint
from tests.solvers.problems import tanh_gradient, tanh_map, tanh_theta
from tests.solvers.test_fixed_point import METHODS

ALL = ["picard", "anderson", "broyden", "newton", "auto"]


def solve(f, theta, x0, method, **settings):
    return jax.jit(
        lambda theta, x0: solvers.fixed_point(f, theta, x0, method=METHODS[method], **settings)
    )(theta, x0)


def assert_honest(x, info):
    assert np.all(np.isfinite(x))
    assert not np.any(np.isnan(info.residual))
    assert not np.any(info.converged)


@pytest.mark.parametrize("method", ALL)
def test_nan_in_the_map_is_reported_and_the_start_returned(method):
    start = jnp.array([0.5, 0.25])
    x, info = solve(lambda _, x: x * jnp.nan, (), start, method)
    assert_honest(x, info)
    assert info.status == Status.NONFINITE
    np.testing.assert_array_equal(x, start)


@pytest.mark.parametrize("method", ALL)
def test_nan_that_appears_on_the_way_keeps_the_best_finite_iterate(method):
    # The way from 0 to the fixed point 2 leads through a region where the map is not defined.
    x, info = solve(lambda _, x: jnp.where(x > 1.2, jnp.nan, 0.5 * x + 1), (), jnp.zeros(1), method)
    assert_honest(x, info)
    assert x[0] <= 1.2


@pytest.mark.parametrize("method", ALL)
def test_nan_in_theta_or_start_is_reported(method):
    weight, bias = tanh_theta()
    bad = np.full(6, np.nan)
    batch = np.stack([bad, bias]), np.stack([np.zeros(6), bad])  # biases, starts

    def one(bias, start):
        return solvers.fixed_point(tanh_map, (weight, bias), start, method=METHODS[method])

    x, info = jax.jit(jax.vmap(one))(*batch)
    assert_honest(x, info)
    assert np.all(info.status == Status.NONFINITE)


@pytest.mark.parametrize("method", ALL)
@pytest.mark.parametrize(
    "f",
    [lambda _, x: x + 1, lambda _, x: x + jnp.exp(x) + 1, lambda _, x: x + jnp.exp(-(x**2)) + 0.1],
    ids=["translation", "expansive", "near_miss"],
)  # fmt: skip
def test_map_without_fixed_point_never_converges(f, method):
    x, info = solve(f, (), jnp.zeros(3), method)
    assert_honest(x, info)


def test_expansive_map_diverges_under_picard():
    _, info = solve(lambda _, x: 3 * x + 1, (), jnp.ones(2), "picard")
    assert info.status == Status.DIVERGED


def test_map_that_approaches_and_leaves_returns_the_closest_point():
    # A saddle: contraction in the first coordinate, slow escape along the second.
    def f(_, x):
        return jnp.array([0.1 * x[0], 1.5 * x[1]])

    start = jnp.array([1.0, 1e-4])
    x, info = solve(f, (), start, "picard", atol=1e-9)
    assert_honest(x, info)
    assert info.status in (Status.DIVERGED, Status.STALLED)
    iterates = [start]
    for _ in range(20):
        iterates.append(f((), iterates[-1]))
    sizes = [float(jnp.linalg.norm(f((), v) - v)) for v in iterates]
    np.testing.assert_allclose(jnp.linalg.norm(f((), x) - x), min(sizes), rtol=1e-5)


@pytest.mark.parametrize("how", ["implicit", "cg_rbp", "rbp"])
def test_singular_backward_system_is_seen_by_the_probe(how):
    # At the fixed point 0 of sin(x) the Jacobian is 1: I - J is singular.
    make = {
        "implicit": adjoint.implicit,
        "cg_rbp": lambda: adjoint.cg_rbp(rtol=1e-4),
        "rbp": lambda: adjoint.rbp(rtol=1e-4),
    }[how]

    def loss(theta, probe):
        x, info = solvers.fixed_point(
            lambda theta, x: jnp.sin(x) + theta,
            theta,
            jnp.zeros(2),
            method="picard",
            adjoint=make(),
            probe=probe,
        )
        return jnp.sum(x), info

    both = jax.grad(loss, argnums=(0, 1), has_aux=True)
    (gradient, seen), info = both(jnp.zeros(2), solvers.adjoint_probe())
    assert info.converged
    assert not seen.converged
    assert np.all(np.isfinite(gradient))


@pytest.mark.parametrize("method", ["picard", "anderson", "newton", "auto"])
def test_healthy_examples_of_a_batch_are_untouched_by_sick_ones(method):
    theta = tanh_theta(0.6)
    sick = np.full((2, 6), np.nan)
    sick[1, 1:] = 0
    bias = jnp.asarray(np.stack([theta[1], *sick, 0.5 * theta[1]]), jnp.float32)
    weight = jnp.asarray(theta[0], jnp.float32)
    settings = {"method": METHODS[method], "adjoint": adjoint.implicit(on_failure="zero")}

    def loss(weight, bias):
        x, info = solvers.fixed_point(tanh_map, (weight, bias), jnp.zeros(6), **settings)
        return jnp.sum(x), (x, info)

    def total(weight, bias):
        values, aux = jax.vmap(loss, in_axes=(None, 0))(weight, bias)
        return jnp.sum(values), aux

    (weight_bar, bias_bar), (x, info) = jax.jit(jax.grad(total, argnums=(0, 1), has_aux=True))(
        weight, bias
    )
    assert list(info.converged) == [True, False, False, True]
    assert np.all(np.isfinite(x))
    expected = [tanh_gradient(theta[0], scale * theta[1], np.ones(6)) for scale in (1, 0.5)]
    np.testing.assert_allclose(weight_bar, expected[0][0] + expected[1][0], atol=2e-3)
    np.testing.assert_allclose(bias_bar[0], expected[0][1], atol=1e-3)
    np.testing.assert_allclose(bias_bar[3], expected[1][1], atol=1e-3)
    np.testing.assert_array_equal(bias_bar[1:3], 0)


@pytest.mark.parametrize("method", ALL)
def test_zero_size_states_are_solved_trivially(method):
    x, info = solve(lambda theta, x: theta * x, jnp.ones(()), jnp.zeros((0, 3)), method)
    assert x.shape == (0, 3)
    assert info.converged
    assert info.steps == 0
    if method == "picard":
        gradient = jax.grad(
            lambda theta: jnp.sum(
                solvers.fixed_point(
                    lambda theta, x: theta * x, theta, jnp.zeros((0, 3)), method=METHODS[method]
                )[0]
            )
        )(1.0)
        assert gradient == 0


@pytest.mark.parametrize("name", solvers.linear.SOLVERS)
def test_zero_size_and_non_finite_linear_systems(name):
    factory = solvers.linear.SOLVERS[name]
    solver = factory(5) if name == "neumann" else factory()
    x, info = solver(lambda v: v, jnp.zeros((0,)))
    assert x.shape == (0,)
    assert info.converged
    x, info = solver(lambda v: 2 * v, jnp.array([1.0, jnp.nan]))
    assert_honest(x, info)
    assert info.status == Status.NONFINITE
    x, info = solver(lambda v: v * jnp.array([1.0, jnp.nan]), jnp.ones(2))
    assert_honest(x, info)
    assert info.status == Status.NONFINITE


def test_states_that_are_not_real_numbers_are_refused():
    for bad, word in ((jnp.arange(3), "int32"), (jnp.ones(2, jnp.complex64), "complex64")):
        with pytest.raises(TypeError, match=word):
            solvers.fixed_point(lambda _, x: x, (), bad)
        with pytest.raises(TypeError, match=word):
            solvers.race(lambda _, x: x, (), bad)
    with pytest.raises(TypeError, match=r"x0\['count'\] has dtype int32"):
        solvers.fixed_point(lambda _, x: x, (), {"h": jnp.ones(2), "count": jnp.ones(2, jnp.int32)})


def test_wrong_structure_or_shape_from_the_map_is_named():
    with pytest.raises(ValueError, match="tree structure"):
        solvers.fixed_point(lambda _, x: (x, x), (), jnp.ones(2))
    with pytest.raises(ValueError, match=r"shape \(3,\)"):
        solvers.fixed_point(lambda _, x: jnp.ones(3), (), jnp.ones(2))
    with pytest.raises(ValueError, match=r"x0 has \{|but x0 has"):
        solvers.fixed_point(lambda _, x: x["a"], (), {"a": jnp.ones(2)})
    with pytest.raises(ValueError, match="max_steps"):
        solvers.fixed_point(lambda _, x: x, (), jnp.ones(2), max_steps=-1)


def test_no_steps_allowed_returns_the_start():
    x, info = solve(lambda _, x: 0.5 * x + 1, (), jnp.zeros(1), "picard", max_steps=0)
    assert info.status == Status.MAX_STEPS
    assert info.steps == 0
    assert x[0] == 0


def test_stalled_at_the_limit_of_precision():
    theta = jax.tree.map(jnp.float32, tanh_theta(0.5))
    _, info = solve(tanh_map, theta, jnp.zeros(6), "picard", rtol=1e-12, atol=0.0)
    assert info.status in (Status.STALLED, Status.CONVERGED)
    assert info.residual < 1e-6
    _, info = solve(
        lambda theta, x: tanh_map(theta, x) + 1e-3 * jnp.sin(1e6 * x),
        theta,
        jnp.zeros(6),
        "picard",
        rtol=1e-7,
    )
    assert info.status == Status.STALLED


def test_every_status_has_advice_and_check_raises_with_it():
    for status in Status:
        assert status.name in solvers.explain(status)
        assert len(solvers.explain(jnp.int32(status))) > 20
    good = Info(jnp.array([3, 4]), jnp.array([1e-6, 1e-7]), jnp.array([0, 0]))
    solvers.check(good)
    bad = good._replace(status=jnp.array([0, Status.STALLED]), residual=jnp.array([1e-6, 0.25]))
    with pytest.raises(solvers.SolveError, match="1 of 2 solves") as error:
        solvers.check(bad)
    assert "STALLED" in str(error.value)
    assert "index 1" in str(error.value)
    assert "0.25" in str(error.value)


@pytest.mark.parametrize("wrap", [lambda run: run, jax.jit, jax.grad], ids=["eager", "jit", "grad"])
def test_check_works_inside_vmap(wrap):
    def solve(gain):
        x, info = solvers.fixed_point(
            lambda _, x: gain * x + 1, None, jnp.zeros(()), method="picard"
        )
        solvers.check(info)
        return x

    run = wrap(lambda gains: jnp.sum(jax.vmap(solve)(gains)))
    assert np.all(np.isfinite(run(jnp.array([0.1, 0.2]))))
    with pytest.raises(Exception, match="did not converge"):
        jax.block_until_ready((run(jnp.array([0.1, 3.0])), jax.effects_barrier()))


def test_check_works_inside_jit_through_checkify():
    @checkify.checkify
    @jax.jit
    def run(x0):
        x, info = solvers.fixed_point(lambda _, x: 3 * x + 1, (), x0, method="picard")
        solvers.check(info)
        return x

    error, _ = run(jnp.ones(1))
    with pytest.raises(Exception, match="did not converge"):
        error.throw()
    error, _ = run(jnp.array([-0.5]))
    error.throw()


def test_a_probe_and_a_line_search_that_are_none_are_refused():
    with pytest.raises(TypeError, match="adjoint_probe"):
        solvers.fixed_point(lambda _, x: x, None, jnp.zeros(2), probe=jnp.zeros(()))
    with pytest.raises(TypeError, match="line_search"):
        solvers.newton(line_search="yes")
