"""What backward solves tell, and what becomes of those that fail."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import solvers
from solvers import Status, adjoint, linear
from tests.solvers.problems import precision, tanh_gradient, tanh_map, tanh_theta
from tests.solvers.test_adjoint import EXACT, RADIUS


@pytest.mark.parametrize(
    ("how", "steps"),
    [("implicit", None), ("neumann", 60), ("cg_rbp_rtol", None), ("tbptt", 60), ("bptt", None)],
)
def test_probe_receives_what_the_backward_solve_did(how, steps):
    with precision("float64"):
        theta = tanh_theta(RADIUS)
        make = {**EXACT, "bptt": adjoint.bptt}[how]

        def loss(theta, probe):
            x, info = solvers.fixed_point(
                tanh_map,
                theta,
                jnp.zeros(6),
                method="picard",
                adjoint=make(),
                probe=probe,
                max_steps=80,
            )
            return jnp.sum(x), info

        probe = solvers.adjoint_probe()
        (_, seen), info = jax.grad(loss, argnums=(0, 1), has_aux=True)(theta, probe)
        assert seen.steps > 0
        assert steps is None or seen.steps == steps
        assert seen.residual < 1e-6
        assert seen.converged
        assert how != "bptt" or seen.steps == info.steps


def test_probe_of_a_batch_has_one_entry_per_example():
    thetas = [tanh_theta(radius) for radius in (0.1, 0.95)]
    batch = jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves), jnp.float32), *thetas)

    def loss(theta, probe):
        how = adjoint.implicit(linear.richardson(max_steps=500))
        x, _ = solvers.fixed_point(
            tanh_map, theta, jnp.zeros(6), method="picard", adjoint=how, probe=probe
        )
        return jnp.sum(x)

    def total(theta, probe):
        return jnp.sum(jax.vmap(loss)(theta, probe))

    seen = jax.jit(jax.grad(total, argnums=1))(batch, solvers.adjoint_probe((2,)))
    assert np.all(seen.converged)
    assert seen.steps[0] < seen.steps[1]


@pytest.mark.parametrize("policy", ["best", "zero", "nan"])
def test_failed_backward_solve_follows_its_policy_and_spares_the_others(policy):
    weight, bias = tanh_theta(0.98)
    thetas = [tanh_theta(0.5), (weight, 0.01 * bias)]
    batch = jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves), jnp.float32), *thetas)

    def loss(theta, probe):
        how = adjoint.implicit(linear.richardson(rtol=1e-4, max_steps=15), on_failure=policy)
        x, _ = solvers.fixed_point(
            tanh_map, theta, jnp.zeros(6), method="anderson", adjoint=how, probe=probe
        )
        return jnp.sum(x)

    (got, seen) = jax.jit(jax.vmap(jax.grad(loss, argnums=(0, 1))))(
        batch, solvers.adjoint_probe((2,))
    )
    assert list(seen.status) == [Status.CONVERGED, Status.MAX_STEPS]
    expected = tanh_gradient(*thetas[0], np.ones(6))
    for g, e in zip(got, expected, strict=True):
        np.testing.assert_allclose(g[0], e, atol=2e-3)
    test = {"best": np.isfinite, "zero": lambda v: v == 0, "nan": np.isnan}[policy]
    assert all(np.all(test(np.asarray(g[1]))) for g in got)
