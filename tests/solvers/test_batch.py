"""The race of several starts, and the batch that shrinks."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import solvers
from solvers import Status, adjoint, linear
from tests.solvers.problems import precision, tanh_gradient, tanh_map, tanh_solution, tanh_theta

AXES = (None, 0)  # shared weight, one bias per example


def heavy_tail(batch: int = 12, dtype: str = "float32"):
    """One example in six sits where the map barely contracts."""
    weight, _ = tanh_theta(0.97)
    rng = np.random.default_rng(9)
    bias = 5 * rng.standard_normal((batch, 6))
    bias[::6] = 0.01 * rng.standard_normal((len(bias[::6]), 6))
    return jnp.asarray(weight, dtype), jnp.asarray(bias, dtype)


def plain(theta, probe=None, **settings):
    def one(theta, probe):
        x0 = jnp.zeros(6, theta[1].dtype)
        return solvers.fixed_point(tanh_map, theta, x0, probe=probe, **settings)

    return jax.vmap(one, in_axes=(AXES, 0))(theta, probe)


def shrunk(theta, probe=None, **settings):
    x0 = jnp.zeros_like(theta[1])
    return solvers.compacted(tanh_map, theta, x0, in_axes=AXES, probe=probe, levels=2, **settings)


@pytest.mark.parametrize("method", ["picard", pytest.param("auto", marks=pytest.mark.slow)])
def test_compacted_equals_vmap_in_values_steps_gradients_and_probes(method):
    theta = heavy_tail()
    settings = {"method": method, "max_steps": 300}

    def loss(run, theta, probe):
        x, info = run(theta, probe, **settings)
        return jnp.sum(jnp.sin(x)), (x, info)

    results = []
    for run in (plain, shrunk):
        both = jax.grad(lambda *a, run=run: loss(run, *a), argnums=(0, 1), has_aux=True)
        results.append(jax.jit(both)(theta, solvers.adjoint_probe((12,))))
    ((g1, p1), (x1, i1)), ((g2, p2), (x2, i2)) = results
    assert int(i1.steps.max()) >= 2 * int(np.median(i1.steps))
    np.testing.assert_array_equal(i1.status, i2.status)
    np.testing.assert_array_equal(i1.steps, i2.steps)
    np.testing.assert_array_equal(p1.steps, p2.steps)
    np.testing.assert_allclose(x1, x2, atol=1e-5)
    for a, b in zip(g1, g2, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_compacted_gradients_are_exact_and_can_be_differentiated_again():
    with precision("float64"):
        weight, bias = heavy_tail(5, "float64")
        how = adjoint.implicit(linear.richardson(rtol=1e-13, max_steps=2000))

        def loss(theta):
            x, _ = shrunk(theta, method="anderson", adjoint=how, rtol=1e-13)
            return jnp.sum(x)

        got = jax.jit(jax.grad(loss))((weight, bias))
        expected = [tanh_gradient(weight, row, np.ones(6)) for row in np.asarray(bias)]
        np.testing.assert_allclose(got[0], sum(e[0] for e in expected), rtol=1e-7, atol=1e-8)
        np.testing.assert_allclose(got[1], np.stack([e[1] for e in expected]), atol=1e-8)

        def norm_of_gradient(bias):
            return jnp.sum(jax.grad(loss)((weight, bias))[1] ** 2)

        second = jax.jit(jax.grad(norm_of_gradient))(bias)
        norm_of_gradient = jax.jit(norm_of_gradient)
        h = 1e-6
        direction = np.zeros_like(bias)
        direction[1, 2] = h
        numeric = (norm_of_gradient(bias + direction) - norm_of_gradient(bias - direction)) / (
            2 * h
        )
        np.testing.assert_allclose(second[1, 2], numeric, rtol=1e-5, atol=1e-8)


def test_compaction_saves_work():
    """Rows that the batch evaluates, counted by a callback, against the sum of single solves."""
    theta, rows = heavy_tail(48), []

    def counted(theta, x):
        jax.debug.callback(lambda _: rows.append(1), x[0])
        return tanh_map(theta, x)

    x0 = jnp.zeros((48, 6))
    x, info = jax.jit(
        lambda theta: solvers.compacted(
            counted, theta, x0, in_axes=AXES, method="picard", max_steps=300
        )
    )(theta)
    jax.block_until_ready(x)
    jax.effects_barrier()
    steps = np.asarray(info.steps)
    work = len(rows) / (steps.sum() + len(steps))
    lockstep = len(steps) * steps.max() / steps.sum()
    assert lockstep > 2.5
    assert work < 0.6 * lockstep


@pytest.mark.parametrize("batch", [0, 1, 3])
def test_compacted_takes_any_batch_size(batch):
    weight, _ = heavy_tail()
    bias = jnp.ones((batch, 6))
    x, info = jax.jit(lambda theta: shrunk(theta, method="picard"))((weight, bias))
    assert x.shape == (batch, 6)
    assert info.steps.shape == (batch,)
    assert np.all(info.converged)


@pytest.mark.slow
def test_compacted_leaves_a_failed_example_out_of_the_shared_gradient():
    weight, bias = heavy_tail(6)
    sick = bias.at[2].set(jnp.nan)
    how = adjoint.implicit(on_failure="zero")

    def loss(weight, bias):
        x, info = shrunk((weight, bias), method="picard", adjoint=how)
        return jnp.sum(x), info

    gradient = jax.jit(jax.grad(loss, has_aux=True))
    got, info = gradient(weight, sick)
    assert info.status[2] == Status.NONFINITE
    healthy = jnp.delete(bias, 2, axis=0)
    expected, _ = gradient(weight, healthy)
    np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-3)


def test_race_is_won_by_the_start_that_converges_first():
    with precision("float64"):
        theta = tanh_theta(0.9)
        solution = jnp.asarray(tanh_solution(*theta))
        starts = jnp.stack([solution + 1.0, solution + 1e-6, solution - 1.0])

        def run(starts):
            return solvers.race(tanh_map, theta, starts, method="picard", rtol=1e-9)

        x, info = jax.jit(run)(starts)
        assert info.converged
        assert info.winner == 1
        np.testing.assert_allclose(x, solution, atol=1e-7)
        _, alone = solvers.fixed_point(tanh_map, theta, starts[1], method="picard", rtol=1e-9)
        assert info.steps == alone.steps
        batch = jnp.stack([starts, starts[::-1] + 0.1, jnp.roll(starts, 1, axis=0)])
        _, info = jax.vmap(run)(batch)
        assert info.winner[0] == 1
        assert info.winner[2] == 2


@pytest.mark.slow
def test_race_survives_a_start_that_fails():
    def f(_, x):
        return jnp.where(x > 10, jnp.nan, 0.5 * x + 1)

    starts = jnp.array([[50.0], [jnp.nan], [0.0]])
    x, info = solvers.race(f, (), starts, method="picard")
    assert info.converged
    assert info.winner == 2
    np.testing.assert_allclose(x, 2.0, rtol=1e-3)
    _, info = solvers.race(
        lambda _, x: 2 * x + 1,
        (),
        starts[2:] + jnp.arange(2.0)[:, None],
        method="picard",
        max_steps=5,
    )
    assert not info.converged


@pytest.mark.parametrize("how", ["implicit", "tbptt", "tangent"])
def test_gradient_passes_a_race(how):
    with precision("float64"):
        theta = tanh_theta(0.6)
        make = {
            "implicit": lambda: adjoint.implicit(linear.gmres(rtol=1e-12)),
            "tbptt": lambda: adjoint.tbptt(60),
            "tangent": lambda: adjoint.tangent(linear.gmres(rtol=1e-12)),
        }[how]

        def loss(theta):
            starts = jnp.stack([jnp.ones(6), jnp.zeros(6)])
            x, _ = solvers.race(
                tanh_map, theta, starts, method="anderson", adjoint=make(), rtol=1e-13
            )
            return jnp.sum(x)

        got = jax.jit(jax.grad(loss))(theta)
        for g, e in zip(got, tanh_gradient(*theta, np.ones(6)), strict=True):
            np.testing.assert_allclose(g, e, atol=1e-9)


def test_bad_input_is_named():
    theta = heavy_tail(4)
    with pytest.raises(ValueError, match="common leading axis"):
        solvers.race(tanh_map, theta, (jnp.zeros((2, 6)), jnp.zeros((3, 6))))
    with pytest.raises(ValueError, match="no single row of iterations"):
        solvers.race(tanh_map, tanh_theta(), jnp.zeros((2, 6)), adjoint="bptt")
    with pytest.raises(ValueError, match="in_axes"):
        solvers.compacted(tanh_map, theta, jnp.zeros((4, 6)), in_axes=(None, 1))
    with pytest.raises(ValueError, match="compacted needs an adjoint"):
        solvers.compacted(tanh_map, theta, jnp.zeros((4, 6)), in_axes=AXES, adjoint="bptt")
    with pytest.raises(ValueError, match="levels"):
        solvers.compacted(tanh_map, theta, jnp.zeros((4, 6)), in_axes=AXES, levels=0)
    with pytest.raises(ValueError, match="common batch axis"):
        solvers.compacted(tanh_map, theta, {"a": jnp.zeros((4, 6)), "b": jnp.zeros(3)})
