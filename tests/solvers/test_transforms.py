"""The transform matrix: every method, linear solver and adjoint under what users combine."""

from __future__ import annotations

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import solvers
from tests.solvers.transforms import ADJOINTS, LINEAR, METHODS, ROWS, oracle, slopes, value

W = 0.7
DATA = np.array([-1.0, 0.5, 2.0, 0.5])
SCALES = np.array([1.0, 1e-30, 1e30, 1e-8], np.float32)
# Compiling takes the time: these rows are tried with every transform, all of them by `make
# test-slow`, and all of them under the commonest transform always.
SOME = ("method:auto", "linear:bicgstab", "adjoint:tangent", "adjoint:neumann", "batch:lockstep")
every_row = pytest.mark.parametrize("row", ROWS)
rows = pytest.mark.parametrize(
    "row", [row if row in SOME else pytest.param(row, marks=pytest.mark.slow) for row in ROWS]
)


def expected(row: str, data=DATA) -> tuple[float, np.ndarray]:
    """The gradient of the sum over `data` by `w`, and by each of the data."""
    parts = np.array([slopes(row, W, c) for c in data])
    return parts[:, 0].sum(), parts[:, 1]


def test_the_matrix_has_a_row_for_everything_there_is():
    assert set(solvers.METHODS) <= set(METHODS)
    assert set(solvers.linear.SOLVERS) <= set(LINEAR)
    assert set(solvers.adjoint.ADJOINTS) <= set(ADJOINTS)


@every_row
def test_gradients_pass_maps_that_close_over_batch_data_of_any_scale(row, caplog):
    """`grad(vmap(solve))`, eager, with `jax_debug_nans`; the second call compiles nothing."""

    # Algorithm 1 starts from [0, 1]: its cotangents have to be of order one.
    scales = jnp.asarray(np.ones_like(SCALES) if row == "adjoint:rbp_uniform" else SCALES)

    def total(w, data):
        y, info = jax.vmap(lambda c, s: value(row, w, c, s))(data, scales)
        return jnp.sum(y), (y, info)

    run = jax.value_and_grad(total, (0, 1), has_aux=True)
    arguments = jnp.float32(W), jnp.asarray(DATA, jnp.float32)
    with jax.debug_nans(True):
        (_, (y, info)), (by_w, by_data) = run(*arguments)
    assert np.all(info.converged), info
    np.testing.assert_allclose(y, [oracle(row, W, c) for c in DATA], rtol=3e-4, atol=3e-5)
    want_w, want_data = expected(row)
    np.testing.assert_allclose(by_w, want_w, rtol=3e-3, atol=3e-4)
    np.testing.assert_allclose(by_data, want_data, rtol=3e-3, atol=1e-4)
    with jax.log_compiles(), caplog.at_level("WARNING"):
        run(*arguments)
    compiled = [r.getMessage() for r in caplog.records if "Compiling" in r.getMessage()]
    assert not compiled, compiled


@rows
def test_integers_and_keys_of_a_jitted_scan_can_be_closed_over(row):
    @jax.jit
    def total(w, n, key):
        def body(sum, number):
            return sum + value(row, w, number + n, key=key)[0], None

        return lax.scan(body, 0.0, jnp.arange(2))[0]

    by_w = jax.grad(total)(jnp.float32(W), 1, jax.random.key(0))
    want, _ = expected(row, np.array([1.0, 2.0]))
    np.testing.assert_allclose(by_w, want, rtol=2e-3, atol=2e-4)


@rows
def test_a_solve_inside_a_solve_with_all_defaults(row):
    def outer(w):
        def f(w, v):
            return 0.4 * jnp.sin(value(row, w, v)[0]) + 0.2

        v, info = solvers.fixed_point(f, w, jnp.zeros(()))
        return v, info

    (v, info), by_w = jax.jit(jax.value_and_grad(outer, has_aux=True))(jnp.float32(W))
    assert info.converged

    def dense(w):
        v = 0.0
        for _ in range(60):
            v = 0.4 * np.sin(oracle(row, w, v)) + 0.2
        return v

    want_v = dense(W)
    np.testing.assert_allclose(v, want_v, rtol=1e-3)
    # (1 - f_v) v' = f_w, with the inner derivatives as the row has them.
    inner_w, inner_c = slopes(row, W, want_v)
    factor = 0.4 * np.cos(oracle(row, W, want_v))
    want = factor * inner_w / (1 - factor * inner_c)
    np.testing.assert_allclose(by_w, want, rtol=1e-2, atol=1e-3)


@rows
@pytest.mark.parametrize(("state", "parameter"), [("bfloat16", "float32"), ("float32", "float64")])
def test_state_and_parameters_of_different_precision(row, state, parameter):
    with jax.enable_x64(parameter == "float64"):
        rtol = 0.2 if state == "bfloat16" else 3e-3

        def y(w):
            return value(row, w, 0.5, dtype=state)[0].astype(parameter)

        by_w = jax.jit(jax.grad(y))(jnp.asarray(W, parameter))
        assert by_w.dtype == parameter
        np.testing.assert_allclose(by_w, slopes(row, W, 0.5)[0], rtol=rtol, atol=0.05 * rtol)


@rows
def test_inside_shard_map_with_its_checks(row):
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))

    def shard(w, data):
        return lax.psum(jnp.sum(jax.vmap(lambda c: value(row, w, c)[0])(data)), "data")

    total = jax.shard_map(shard, mesh=mesh, in_specs=(P(), P("data")), out_specs=P())
    arguments = jnp.float32(W), jnp.asarray(DATA, jnp.float32)
    if row == "adjoint:rbp_uniform":
        with pytest.raises(ValueError, match='use start="zeros"'):
            total(*arguments)
        return
    by_w = jax.jit(jax.grad(total))(*arguments)
    np.testing.assert_allclose(by_w, expected(row)[0], rtol=3e-3, atol=3e-4)


@rows
def test_on_a_mesh_with_explicit_axes(row):
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Explicit,))
    with jax.set_mesh(mesh):
        data = jax.device_put(jnp.asarray(DATA, jnp.float32), NamedSharding(mesh, P("data")))

        def total(w, data):
            return jnp.sum(jax.vmap(lambda c: value(row, w, c)[0])(data))

        if row == "batch:compacted":
            with pytest.raises(ValueError, match="reorders examples"):
                total(jnp.float32(W), data)
            return
        by_w = jax.jit(jax.grad(total))(jnp.float32(W), data)
    np.testing.assert_allclose(by_w, expected(row)[0], rtol=3e-3, atol=3e-4)


def test_a_start_goes_where_its_image_lies_on_a_mesh_with_explicit_axes():
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Explicit,))
    with jax.set_mesh(mesh):
        data = jnp.ones((4, 2)) + jnp.arange(2.0)
        data = jax.device_put(data, NamedSharding(mesh, P("data")))

        def total(w, data):
            f = lambda w, x: 0.5 * jnp.tanh(x @ w) + data  # noqa: E731
            return jnp.sum(solvers.fixed_point(f, w, jnp.zeros((4, 2)))[0])

        by_w = jax.jit(jax.grad(total))(0.3 * jnp.eye(2), data)

    def oracle(w):
        x = np.zeros(2)
        for _ in range(99):
            x = 0.5 * np.tanh(x @ w) + np.array([1.0, 2.0])
        return 4 * x.sum()

    h, zero = 1e-5, np.zeros((2, 2))
    for index in np.ndindex(2, 2):
        step = zero.copy()
        step[index] = h
        want = (oracle(0.3 * np.eye(2) + step) - oracle(0.3 * np.eye(2) - step)) / (2 * h)
        np.testing.assert_allclose(by_w[index], want, rtol=1e-3)


@rows
def test_second_derivatives_are_those_of_the_solution(row):
    if row == "adjoint:one_step":
        pytest.skip("one evaluation is not the solution: its derivative has no second one")
    with jax.enable_x64(True):
        y = lambda w: value(row, w, 0.5, dtype="float64")[0]  # noqa: E731
        second = jax.jit(jax.grad(jax.grad(y)))(W)
        h = 1e-4
        want = (slopes(row, W + h, 0.5)[0] - slopes(row, W - h, 0.5)[0]) / (2 * h)
        np.testing.assert_allclose(second, want, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("row", ["adjoint:tangent", "linear:bicgstab", "linear:dense"])
def test_forward_mode_where_it_is_promised(row):
    y = lambda w, c: value(row, w, c)[0]  # noqa: E731
    _, dot = jax.jit(lambda w, c: jax.jvp(y, (w, c), (1.0, 2.0)))(W, 0.5)
    by_w, by_c = slopes(row, W, 0.5)
    np.testing.assert_allclose(dot, by_w + 2 * by_c, rtol=2e-3)


@pytest.mark.slow
def test_the_rows_on_meshes_hold_on_several_devices():
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=4"
    command = [sys.executable, "-m", "pytest", "-q", "-n0", __file__]
    command += ["-m", "slow or not slow", "-k", "shard_map or explicit"]
    done = subprocess.run(
        command, env={**os.environ, "XLA_FLAGS": flags}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-3000:]
