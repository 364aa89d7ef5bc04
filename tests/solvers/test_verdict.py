"""A status is a statement about the residual beside it, at any scale, after any failure."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import solvers
from solvers import Bands, Status, Sweeps, adjoint, linear


@pytest.mark.parametrize("shift", [1e-30, 1e-20, 1e-8, 1.0, 1e20, 1e30])
@pytest.mark.parametrize("settings", [{}, {"atol": 0.0}], ids=["default", "atol=0"])
def test_halving_is_solved_at_every_scale(shift, settings):
    x, info = solvers.fixed_point(
        lambda c, x: 0.5 * x + c, jnp.float32(shift), jnp.float32(0), **settings
    )
    assert info.converged
    assert info.steps > 0
    assert info.residual < 1e-4
    np.testing.assert_allclose(x / shift, 2.0, rtol=1e-3)


@pytest.mark.parametrize("name", ["lsqr", "cgne", "bicgstab", "gmres", "cg", "dense"])
def test_linear_systems_are_solved_in_any_units(name):
    diagonal = np.array([1.0, 2.0, 3.0])

    @jax.jit
    def solve(units, scale):
        solver = linear.SOLVERS[name]()
        return solver(lambda v: units * jnp.float32(diagonal) * v, scale * jnp.ones(3))

    for units, scale in ((1e-20, 1.0), (1.0, 1e-25), (1e15, 1e-15), (1e12, 1e25), (1e-12, 1e-25)):
        x, info = solve(jnp.float32(units), jnp.float32(scale))
        assert info.converged, (units, scale)
        assert info.residual < 1e-4
        np.testing.assert_allclose(x * (units / scale), 1 / diagonal, rtol=1e-3)


def test_newton_calls_an_exact_solution_one():
    a = 1e-5
    x, info = solvers.fixed_point(
        lambda _, x: x - a * (x - 1 / a), None, jnp.float32(0), method="newton"
    )
    assert info.converged
    assert a * abs(x - 1 / a) <= 3e-5 / a  # what the default tolerance stands for


def nan_in_one(policy: str):
    """A lockstep batch of three, one example NaN: its gradient by shared and own parameters."""

    def sweep(theta, x):
        w, data = theta
        image = w * jnp.tanh(x) + data
        return image, Bands(jnp.zeros_like(x), jnp.zeros_like(x))

    data = jnp.ones((4, 3, 2)).at[:, 1].set(jnp.nan)

    def loss(theta):
        x, info = solvers.lockstep(
            sweep,
            theta,
            jnp.zeros_like(data),
            in_axes=(None, 1),
            backward=Sweeps(on_failure=policy),
        )
        return jnp.sum(x), info

    return jax.grad(loss, has_aux=True)((jnp.float32(0.5), data))


def test_a_failed_example_contributes_what_its_policy_says():
    (by_w, by_data), info = nan_in_one("zero")
    np.testing.assert_array_equal(info.converged, [True, False, True])
    assert np.all(np.isfinite(by_w))
    assert np.all(by_data[:, 1] == 0)
    assert np.all(by_data[:, 0] != 0)
    (_, by_data), _ = nan_in_one("nan")
    assert np.all(np.isnan(by_data[:, 1]))


@pytest.mark.parametrize("how", [adjoint.implicit(on_failure="zero"), adjoint.tangent(on_failure="zero"), adjoint.neumann(3, on_failure="zero"), adjoint.tbptt(3, on_failure="zero")], ids=lambda a: a.name)  # fmt: skip # noqa: E501
def test_zero_stays_zero_when_the_user_masks_the_value(how):
    data = jnp.array([1.0, jnp.nan, 2.0])

    def loss(w):
        x, info = jax.vmap(
            lambda c: solvers.fixed_point(
                lambda w, x: 0.5 * jnp.tanh(w * x) + c, w, jnp.zeros(()), adjoint=how
            )
        )(data)
        return jnp.sum(jnp.where(info.converged, x, 0.0))

    assert np.isfinite(jax.jit(jax.grad(loss))(0.7))


@pytest.mark.parametrize("form", ["compacted", "lockstep"])
def test_zero_is_zero_in_a_batch_whose_map_is_not_finite_at_zero(form):
    """`x = tanh(w x[t-1]) / 2 + w / c + log c`, the second c a NaN: `x_w` of the others remains."""

    def f(theta, x):
        w, c = theta
        past = jnp.concatenate([jnp.zeros_like(x[:1]), x[:-1]])
        return 0.5 * jnp.tanh(w * past) + w / c + jnp.log(c)

    def solve(w, c):
        if form == "compacted":
            return solvers.compacted(
                f,
                (w, c),
                jnp.zeros((3, 2)),
                in_axes=(None, 0),
                method="picard",
                adjoint=adjoint.implicit(on_failure="zero"),
            )
        x, info = solvers.lockstep(
            lambda theta, x: (f(theta, x), Bands(jnp.zeros_like(x), jnp.zeros_like(x))),
            (w, c),
            jnp.zeros((2, 3, 1)),
            in_axes=(None, 0),
            backward=Sweeps(on_failure="zero"),
        )
        return x[..., 0].T, info

    def loss(w, c):
        x, info = solve(w, c)
        return jnp.sum(jnp.where(info.converged[:, None], x, 0.0))

    data = np.array([[1.0], [np.nan], [2.0]], np.float32)
    by_w, by_c = jax.jit(jax.grad(loss, (0, 1)))(0.7, data)
    h = 1e-5
    ends = []
    for w in (0.7 + h, 0.7 - h):
        first = [w / c + np.log(c) for c in (1.0, 2.0)]
        ends.append(sum(0.5 * np.tanh(w * x) + 2 * x for x in first))
    np.testing.assert_allclose(by_w, (ends[0] - ends[1]) / (2 * h), rtol=1e-4)
    assert by_c[1] == 0
    assert np.isfinite(by_c).all()


def test_solves_that_share_a_probe_are_told_apart():
    def loss(a, probe):
        settings = {"adjoint": adjoint.implicit(linear.bicgstab(max_steps=0)), "probe": probe}
        x, _ = solvers.fixed_point(lambda a, x: jnp.cos(a * x), a, jnp.zeros(()), **settings)
        y, _ = solvers.fixed_point(lambda a, x: 0.5 * jnp.sin(a * x) + 1, a, x, **settings)
        return x + y

    _, seen = jax.grad(loss, (0, 1))(1.0, solvers.adjoint_probe())
    assert solvers.read_probe(seen).status == Status.MAX_STEPS


def test_check_inside_jit_serves_a_vmapped_solve():
    @jax.jit
    def run(gains):
        x, info = jax.vmap(
            lambda c: solvers.fixed_point(lambda c, x: c * x + 1, c, jnp.zeros(()), method="picard")
        )(gains)
        solvers.check(info)
        return x

    np.testing.assert_allclose(run(jnp.array([0.5, 0.2])), [2.0, 1.25], rtol=1e-3)
    with pytest.raises(Exception, match="1 of 2 solves did not converge"):
        jax.block_until_ready((run(jnp.array([0.5, 3.0])), jax.effects_barrier()))


def test_free_sweeps_have_the_second_derivative_of_the_solution():
    def sweep(w, x):
        return 0.5 * jnp.sin(w * x) + 1, Bands(jnp.zeros_like(x), jnp.zeros_like(x))

    with jax.enable_x64(True):
        x0 = jnp.zeros((2, 1, 1))

        def loss(w):
            settings = {"rtol": 1e-10, "backward": Sweeps(rtol=1e-12)}
            x, _ = solvers.lockstep(sweep, w, x0, free_sweeps=True, **settings)
            return jnp.sum(x**2)

        second = jax.jit(jax.grad(jax.grad(loss)))(1.2)
        h = 1e-4
        expected = (jax.grad(loss)(1.2 + h) - jax.grad(loss)(1.2 - h)) / (2 * h)
        np.testing.assert_allclose(second, expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"rtol": -1.0}, "rtol"),
        ({"rtol": float("nan")}, "rtol"),
        ({"atol": -1e-3}, "atol"),
        ({"max_steps": 10.5}, "max_steps"),
        ({"max_steps": -1}, "max_steps"),
        ({"patience": 0}, "patience"),
        ({"blowup": 0.5}, "blowup"),
    ],
)
def test_settings_out_of_range_are_refused(wrong, word):
    with pytest.raises(ValueError, match=word):
        solvers.fixed_point(lambda _, x: 0.5 * x, None, jnp.ones(2), **wrong)


def test_an_empty_compacted_batch_keeps_its_settings():
    x, info = solvers.compacted(
        lambda w, x: 0.5 * w * x, 1.0, jnp.zeros((0, 3)), in_axes=None, method="picard", max_steps=7
    )
    assert x.shape == (0, 3)
    assert info.status.shape == (0,)
    with pytest.raises(ValueError, match="max_steps"):
        solvers.compacted(lambda w, x: w * x, 1.0, jnp.zeros((0, 3)), in_axes=None, max_steps=-1)
