"""A batch swept in its own layout gives what each example gives alone."""

from __future__ import annotations

from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import solvers
from solvers import Bands, Sweeps, linear

TIME, BATCH, WIDTH = 6, 4, 3
TIGHT = {"rtol": 1e-11, "max_steps": 100}


def problem(scale=0.5, dtype=jnp.float64):
    """`x_t = tanh(A x_{t-1} + C x_{t+1} + u_t) / 2 + b x_{t-1}` with its diagonal bands."""
    keys = jax.random.split(jax.random.key(0), 4)
    theta = {
        "past": scale * jax.random.normal(keys[0], (WIDTH, WIDTH), dtype),
        "future": scale * jax.random.normal(keys[1], (WIDTH, WIDTH), dtype),
        "keep": jnp.asarray([0.2, 0.5, 0.3], dtype),
    }
    inputs = jax.random.normal(keys[2], (TIME, BATCH, WIDTH), dtype)
    return (theta, inputs), jnp.zeros((TIME, BATCH, WIDTH), dtype)


def sweep(theta, x):
    weights, inputs = theta
    zero = jnp.zeros_like(x[:1])
    past, future = jnp.concatenate([zero, x[:-1]]), jnp.concatenate([x[1:], zero])
    new = 0.5 * jnp.tanh(past @ weights["past"] + future @ weights["future"] + inputs)
    keep = jnp.broadcast_to(weights["keep"], x.shape)
    return new + keep * past, Bands(lower=keep, upper=jnp.zeros_like(keep))


def alone(theta, x0, **settings):
    """Every example by itself, through `fixed_point`."""
    return jax.vmap(
        lambda inputs, x: solvers.fixed_point(
            lambda theta, x: sweep(theta, x)[0], (theta[0], inputs), x, **settings
        ),
        in_axes=(1, 1),
        out_axes=(1, 0),
    )(theta[1], x0)


@pytest.mark.parametrize("accelerated", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_values_and_gradients_are_those_of_single_examples(accelerated):
    with jax.enable_x64(True):
        theta, x0 = problem()
        how = solvers.adjoint.implicit(linear.richardson(rtol=1e-12))

        def loss(solve, theta):
            x, info = solve(theta, x0)
            return jnp.sum(jnp.sin(x)), info

        together = partial(
            solvers.lockstep, sweep, accelerated=accelerated, backward=Sweeps(rtol=1e-12), **TIGHT
        )
        single = partial(alone, method="picard", adjoint=how, **TIGHT)
        gradient = jax.jit(jax.grad(loss, 1, has_aux=True), static_argnums=0)
        expected, _ = gradient(single, theta)
        got, info = gradient(together, theta)
        assert info.steps.shape == (BATCH,)
        assert np.all(info.converged)
        chex.assert_trees_all_close(got, expected, atol=1e-9)


def test_examples_stop_by_themselves_and_do_not_see_each_other():
    theta, x0 = problem(dtype=jnp.float32)
    solve = jax.jit(partial(solvers.lockstep, sweep), static_argnames="rtol")
    x0 = x0.at[:, 0].set(solve(theta, x0, rtol=1e-6)[0][:, 0])
    x, info = solve(theta, x0, rtol=1e-4)
    assert info.steps[0] == 0
    assert np.all(info.steps[1:] > 0)
    other = (theta[0], theta[1].at[:, 1].set(7.0))
    y, later = solve(other, x0, rtol=1e-4)
    np.testing.assert_array_equal(x[:, 2:], y[:, 2:])
    np.testing.assert_array_equal(info.steps[2:], later.steps[2:])


def test_failure_is_visible_and_spares_the_others():
    theta, x0 = problem(dtype=jnp.float32)
    bad = (theta[0], theta[1].at[:, 1].set(jnp.nan))
    x, info = solvers.lockstep(sweep, bad, x0, rtol=1e-5)
    clean, _ = solvers.lockstep(sweep, theta, x0, rtol=1e-5)
    assert np.all(np.isfinite(x))
    assert list(info.converged) == [True, False, True, True]
    assert info.status[1] == solvers.Status.NONFINITE
    np.testing.assert_array_equal(x[:, 2:], clean[:, 2:])


@pytest.mark.parametrize("policy", ["best", "zero", "nan"])
def test_backward_failure_follows_the_policy_and_the_probe_tells(policy):
    theta, x0 = problem(dtype=jnp.float32)

    def loss(theta, probe):
        x, _ = solvers.lockstep(
            sweep,
            theta,
            x0,
            in_axes=(None, 1),
            backward=Sweeps(rtol=1e-6, max_steps=2, on_failure=policy),
            probe=probe,
        )
        return jnp.sum(x)

    gradient, seen = jax.jit(jax.grad(loss, (0, 1)))(theta, solvers.adjoint_probe((BATCH,)))
    np.testing.assert_array_equal(seen.steps, 2)
    assert np.all(seen.status == solvers.Status.MAX_STEPS)
    assert np.all(seen.residual > 1e-6)
    total = sum(float(jnp.abs(leaf).sum()) for leaf in jax.tree.leaves(gradient))
    assert {"best": total > 0, "zero": total == 0, "nan": np.isnan(total)}[policy]


def test_truncated_sweeps_approach_the_gradient():
    with jax.enable_x64(True):
        theta, x0 = problem()

        def gradient(**settings):
            def loss(theta):
                return jnp.sum(solvers.lockstep(sweep, theta, x0, backward=Sweeps(**settings))[0])

            return ravel_pytree(jax.jit(jax.grad(loss))(theta))[0]

        exact = gradient(rtol=1e-12)
        errors = [float(jnp.linalg.norm(gradient(steps=k) - exact)) for k in (1, 3, 6)]
        assert errors[0] > 4 * errors[1] > 16 * errors[2]


def test_more_extrapolated_sweeps_than_are_of_use_do_no_harm():
    theta, x0 = problem(dtype=jnp.float32)

    def gradient(**settings):
        def loss(theta):
            return jnp.sum(solvers.lockstep(sweep, theta, x0, backward=Sweeps(**settings))[0])

        return ravel_pytree(jax.jit(jax.grad(loss))(theta))[0]

    exact = gradient(rtol=1e-6)
    for steps in (15, 60):
        error = jnp.linalg.norm(gradient(steps=steps, extrapolated=True) - exact)
        assert error <= 1e-3 * jnp.linalg.norm(exact)


def test_free_sweeps_are_two_more_than_met_the_tolerance():
    with jax.enable_x64(True):
        theta, x0 = problem()

        def value(theta, free):
            return solvers.lockstep(
                sweep,
                theta,
                x0,
                free_sweeps=free,
                rtol=1e-3,
                accelerated=False,
                backward=Sweeps(rtol=1e-13),
            )

        solve = jax.jit(value, static_argnums=1)
        (x, told), (found, info) = solve(theta, False), solve(theta, True)
        np.testing.assert_array_equal(info.steps, told.steps + 2)
        np.testing.assert_array_equal(info.status, told.status)
        for _ in range(2):
            image, bands = sweep(theta, x)
            gap = jnp.linalg.norm(image - x, axis=(0, 2))
            scale = jnp.maximum(*(jnp.linalg.norm(y, axis=(0, 2)) for y in (x, image)))
            before, x = x, x + solvers.bands.splitting_inverse(bands)(image - x)
        np.testing.assert_allclose(found, x, rtol=1e-10)
        np.testing.assert_allclose(info.residual, gap / scale, rtol=1e-6)  # before the last one
        # Gradients: a dense solve at the point before the last sweep.
        gradient = jax.jit(jax.grad(lambda theta: jnp.sum(jnp.cos(value(theta, True)[0]))))(theta)
        jacobian = jax.jacobian(lambda x: sweep(theta, x)[0])(before).reshape(x.size, x.size)
        w = jnp.linalg.solve(jnp.eye(x.size) - jacobian.T, -jnp.sin(x).ravel())
        _, pull = jax.vjp(lambda theta: sweep(theta, before)[0], theta)
        expected = pull(w.reshape(x.shape))[0]
        for a, b in zip(jax.tree.leaves(gradient), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-12)


def test_an_example_that_fails_gets_no_free_sweep():
    with jax.enable_x64(True):
        theta, x0 = problem()
        settings = {"rtol": 1e-6, "max_steps": 1, "accelerated": False}
        x, told = solvers.lockstep(sweep, theta, x0, **settings)
        found, info = solvers.lockstep(sweep, theta, x0, free_sweeps=True, **settings)
        assert not np.any(told.converged)
        np.testing.assert_array_equal(found, x)
        np.testing.assert_array_equal(info.steps, told.steps)
        np.testing.assert_array_equal(info.residual, told.residual)


def dense(scale):
    """Of the start: `(I - J)^T`, the inverse of its bands, a cotangent, and inputs by `w`."""
    theta, x0 = problem(scale)
    jacobian = jax.jacobian(lambda x: sweep(theta, x)[0])(x0).reshape(x0.size, x0.size)
    band = np.zeros(jacobian.shape)
    step = BATCH * WIDTH
    for row in range(step, x0.size):
        band[row, row - step] = theta[0]["keep"][row % WIDTH]
    inverse = np.linalg.inv(np.eye(x0.size) - band).T
    cotangent = np.cos(np.arange(x0.size))
    pull = jax.vjp(lambda inputs: sweep((theta[0], inputs), x0)[0], theta[1])[1]
    return (np.eye(x0.size) - jacobian).T, inverse, cotangent, pull


def truncated(scale, steps, policy="zero", extrapolated=False):
    """The gradient by so many sweeps at a given point, and what the probe saw."""
    (weights, inputs), x0 = problem(scale)
    cotangent = jnp.cos(jnp.arange(x0.size)).reshape(x0.shape)

    def loss(theta, probe):
        # Not solved: the backward system is that of the start.
        x, _ = solvers.lockstep(
            sweep,
            theta,
            x0,
            backward=Sweeps(steps=steps, extrapolated=extrapolated, on_failure=policy),
            probe=probe,
            in_axes=(None, 1),
            max_steps=1,
            rtol=1e9,
        )
        return jnp.sum(cotangent * x)

    run = jax.jit(jax.grad(loss, (0, 1)))
    return run((weights, inputs), solvers.adjoint_probe((BATCH,)))


def lengths(vector):
    """The norm of every example."""
    return np.linalg.norm(np.reshape(vector, (TIME, BATCH, WIDTH)), axis=(0, 2))


def remainders(scale, steps):
    """What sweeps leave of the cotangent, example by example."""
    matrix, inverse, g, _ = dense(scale)
    w, residuals = inverse @ g, [g]
    for _ in range(steps):
        residuals.append(g - matrix @ w)
        w = w + inverse @ residuals[-1]
    norms = np.stack([lengths(r) for r in residuals])
    return norms / norms[0]


@pytest.mark.parametrize("steps", [1, 2, 3, 4])
def test_truncated_sweeps_report_what_is_left_and_fail_only_where_it_grows(steps):
    with jax.enable_x64(True):
        known = steps if steps < 3 else steps - 1  # sweeps whose residual is known for free
        gradient, seen = truncated(0.5, steps)
        left = remainders(0.5, steps)
        np.testing.assert_allclose(seen.residual, left[known], rtol=1e-5)
        assert np.all(seen.status == solvers.Status.MAX_STEPS)
        assert np.all(jnp.abs(gradient[1]).sum(axis=(0, 2)) > 0)
        gradient, seen = truncated(8.0, steps)
        left = remainders(8.0, steps)
        grows = left[known] > np.maximum(left[known - 1], 1)
        assert grows.any()
        np.testing.assert_array_equal(seen.status == solvers.Status.DIVERGED, grows)
        np.testing.assert_array_equal(jnp.abs(gradient[1]).sum(axis=(0, 2)) == 0, grows)


@pytest.mark.parametrize("steps", [2, 4, 6])
@pytest.mark.parametrize("scale", [0.5, 2.0])
def test_extrapolated_sweeps_leave_the_least_residual_of_all_combinations(scale, steps):
    with jax.enable_x64(True):
        gradient, seen = truncated(scale, steps, "best", extrapolated=True)
        matrix, inverse, g, pull = dense(scale)
        sweeps = [g]
        for _ in range(steps - 1):
            sweeps.append(sweeps[-1] - matrix @ (inverse @ sweeps[-1]))
        rows = np.stack(sweeps).reshape(steps, TIME, BATCH, WIDTH)
        rhs, left = np.zeros((TIME, BATCH, WIDTH)), np.zeros((TIME, BATCH, WIDTH))
        for example in range(BATCH):
            r = rows[:, :, example].reshape(steps, -1)
            weights = np.linalg.lstsq((r[:-1] - r[1:]).T, r[0], rcond=None)[0]
            rest = r[0] - weights @ (r[:-1] - r[1:])
            left[:, example] = rest.reshape(TIME, WIDTH)
            rhs[:, example] = (rest + weights @ r[:-1]).reshape(TIME, WIDTH)
        expected = pull(jnp.asarray(inverse @ rhs.ravel()).reshape(left.shape))[0]
        np.testing.assert_allclose(gradient[1], expected, rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(seen.residual, lengths(left) / lengths(g), rtol=1e-6)
        np.testing.assert_array_equal(seen.steps, steps)
        np.testing.assert_array_equal(seen.evaluations, steps - 1)


def test_extrapolated_sweeps_fail_where_the_last_one_may_leave_more_than_there_was():
    with jax.enable_x64(True):
        gradient, seen = truncated(8.0, 3, extrapolated=True)
        failed = seen.status == solvers.Status.DIVERGED
        assert failed.any()
        np.testing.assert_array_equal(jnp.abs(gradient[1]).sum(axis=(0, 2)) == 0, failed)
        assert np.all(seen.residual <= 1)


def test_extrapolated_sweeps_find_what_few_sweeps_span():
    """All of the space, which is exact: further sweeps add nothing, and divide by no zero."""
    with jax.enable_x64(True):
        matrix, _, g, pull = dense(0.5)
        exact = pull(jnp.linalg.solve(matrix, g).reshape(TIME, BATCH, WIDTH))[0]
        for steps in (TIME * WIDTH, TIME * WIDTH + 5):
            gradient, seen = truncated(0.5, steps, extrapolated=True)
            assert np.all(seen.residual < 1e-8)
            np.testing.assert_allclose(gradient[1], exact, rtol=1e-5, atol=1e-7)
    with pytest.raises(ValueError, match="steps of 2 or more"):
        Sweeps(extrapolated=True)


def test_hessian_vector_product_is_right():
    with jax.enable_x64(True):
        theta, x0 = problem()

        def loss(theta):
            x, _ = solvers.lockstep(sweep, theta, x0, backward=Sweeps(rtol=1e-12), **TIGHT)
            return jnp.sum(jnp.sin(x))

        slope = jax.jit(jax.grad(loss))
        direction = jax.tree.map(jnp.cos, theta)
        dot = lambda a, b: sum(jax.tree.leaves(jax.tree.map(jnp.vdot, a, b)))  # noqa: E731
        got = jax.jit(jax.grad(lambda theta: dot(jax.grad(loss)(theta), direction)))(theta)
        ahead, behind = (
            slope(jax.tree.map(lambda a, b, h=h: a + h * b, theta, direction))
            for h in (1e-5, -1e-5)
        )
        expected = jax.tree.map(lambda a, b: (a - b) / 2e-5, ahead, behind)
        chex.assert_trees_all_close(got, expected, atol=1e-6)


def test_a_single_slow_direction_costs_a_few_accelerated_sweeps():
    """A rank-one map with eigenvalue 1.2: sweeps alone diverge from its fixed point."""
    direction = jnp.ones(WIDTH) / jnp.sqrt(WIDTH)

    def grow(theta, x):
        image = 1.2 * (x @ direction)[..., None] * direction + 0.1 * x + theta
        return image, Bands(jnp.zeros_like(x), jnp.zeros_like(x))

    theta = jax.random.normal(jax.random.key(1), (TIME, BATCH, WIDTH))
    x0 = jnp.zeros_like(theta)
    _, plain = solvers.lockstep(grow, theta, x0, rtol=1e-4, accelerated=False)
    x, info = solvers.lockstep(grow, theta, x0, rtol=1e-4)
    assert not np.any(plain.converged)
    assert np.all(info.converged)
    assert np.all(info.steps <= 10)
    matrix = (0.9 * jnp.eye(WIDTH)) - 1.2 * jnp.outer(direction, direction)
    np.testing.assert_allclose(x, theta @ jnp.linalg.inv(matrix), rtol=1e-3, atol=1e-3)


def test_states_of_several_leaves_and_bad_arguments():
    theta, x0 = problem(dtype=jnp.float32)

    def pair(theta, x):
        image, bands = sweep(theta, x["a"])
        return {"a": image, "b": 0.5 * x["a"]}, Bands(
            {"a": bands.lower, "b": 0 * bands.lower}, {"a": bands.upper, "b": 0 * bands.upper}
        )

    x, info = solvers.lockstep(pair, theta, {"a": x0, "b": x0}, rtol=1e-5)
    assert np.all(info.converged)
    np.testing.assert_allclose(x["b"], 0.5 * x["a"], atol=1e-4)
    with pytest.raises(ValueError, match=r"\[time, batch, channels\]"):
        solvers.lockstep(sweep, theta, x0[0])
    with pytest.raises(ValueError, match="at least 1"):
        Sweeps(steps=0)
    with pytest.raises(ValueError, match="on_failure"):
        Sweeps(on_failure="ignore")
