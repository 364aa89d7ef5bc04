"""Newton's method over time: `x[t] = f_t(x[t-1])`."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import solvers
from solvers import bands
from solvers.fixed_point import FixedPointProblem

TIME, WIDTH = 8, 3


def example(scale):
    rng = np.random.default_rng(0)
    weights = jnp.asarray(scale * rng.standard_normal((WIDTH, WIDTH)) / np.sqrt(WIDTH))
    return weights, jnp.asarray(rng.standard_normal((TIME, WIDTH)))


def following(theta, x):
    weights, inputs = theta
    before = jnp.concatenate([jnp.zeros((1, WIDTH), x.dtype), x[:-1]])
    return jnp.tanh(inputs + before @ weights)


def newton_sweep(theta, x):
    image = following(theta, x)
    return image, (1 - image**2)[..., None] * theta[0].T


def diagonal_sweep(theta, x):
    image, coupling = newton_sweep(theta, x)
    return image, jnp.diagonal(coupling, axis1=1, axis2=2)


def runaway_sweep(theta, x):
    """Couplings that are wrong, and so large that the recurrence overflows."""
    return following(theta, x), jnp.full((TIME, WIDTH), 1e200)


def by_hand(theta):
    weights, inputs = map(np.asarray, theta)
    x, result = np.zeros(WIDTH), []
    for row in inputs:
        x = np.tanh(row + x @ weights)
        result.append(x)
    return np.stack(result)


@pytest.mark.parametrize("damping", [1.0, 0.5])
@pytest.mark.parametrize("sweep", [newton_sweep, diagonal_sweep, runaway_sweep])
def test_after_k_steps_the_first_k_entries_are_exact(sweep, damping):
    with jax.enable_x64(True):
        theta = example(scale=5.0)
        expected = by_hand(theta)
        method = solvers.recurrence(sweep, damping)
        problem = FixedPointProblem(
            lambda x: following(theta, x), lambda x: following(theta, x) - x, theta
        )
        state, _ = method.init(problem, jnp.zeros((TIME, WIDTH)))
        for k in range(1, TIME + 1):
            found = state.next
            assert np.all(np.isfinite(found))
            np.testing.assert_allclose(found[:k], expected[:k], atol=1e-12)
            state, _ = method.step(problem, state, None)


def test_exact_couplings_converge_quadratically():
    with jax.enable_x64(True):
        theta = example(scale=0.8)
        x, info = solvers.fixed_point(
            following,
            theta,
            jnp.zeros((TIME, WIDTH)),
            method=solvers.recurrence(newton_sweep),
            rtol=1e-13,
            trace=9,
        )
        assert info.converged
        np.testing.assert_allclose(x, by_hand(theta), atol=1e-12)
        trace = np.asarray(info.trace)[: int(info.steps) + 1]
        falling = trace[(trace < 0.1) & (trace > 1e-7)]
        assert np.all(trace[1:][np.isin(trace[:-1], falling)] < 5 * falling**2)


def test_damping_out_of_range_is_named():
    with pytest.raises(ValueError, match="damping must be at least 0"):
        solvers.recurrence(newton_sweep, damping=-0.1)


@pytest.mark.parametrize("blocks", [True, False])
@pytest.mark.parametrize("reverse", [True, False])
@pytest.mark.parametrize("algorithm", ["sequential", "associative"])
def test_gradient_of_a_linear_recurrence_is_that_of_its_steps(algorithm, reverse, blocks):
    with jax.enable_x64(True):
        rng = np.random.default_rng(1)
        shape = (TIME, WIDTH, WIDTH) if blocks else (TIME, WIDTH)
        coupling = jnp.asarray(0.5 * rng.standard_normal(shape))
        rhs = jnp.asarray(rng.standard_normal((TIME, WIDTH)))

        def loop(coupling, rhs):
            x, result = jnp.zeros(WIDTH), [jnp.zeros(WIDTH)] * TIME
            for t in reversed(range(TIME)) if reverse else range(TIME):
                x = result[t] = (coupling[t] @ x if blocks else coupling[t] * x) + rhs[t]
            return jnp.sum(jnp.sin(jnp.stack(result)))

        def direct(coupling, rhs):
            x = bands.bidiagonal_solve(coupling, rhs, reverse=reverse, algorithm=algorithm)
            return jnp.sum(jnp.sin(x))

        expected = jax.jit(jax.grad(loop, (0, 1)))(coupling, rhs)
        found = jax.jit(jax.grad(direct, (0, 1)))(coupling, rhs)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-12), found, expected)


def test_linear_recurrence_is_a_scan_without_a_loop_on_accelerators():
    shapes = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((16, 3, 3), (16, 3))]
    program = jax.jit(jax.grad(lambda a, b: jnp.sum(bands.bidiagonal_solve(a, b)), (0, 1)))
    for platform, looped in (("cpu", True), ("cuda", False), ("tpu", False)):
        text = jax.export.export(program, platforms=[platform])(*shapes).mlir_module()
        assert ("stablehlo.while" in text) == looped


def test_unknown_algorithm_is_named():
    with pytest.raises(ValueError, match="associative"):
        bands.bidiagonal_solve(jnp.ones((2, 1)), jnp.ones((2, 1)), algorithm="cyclic")
