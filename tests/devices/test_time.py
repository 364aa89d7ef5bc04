"""One sequence over eight devices: the states, gradients and steps of one device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import implicit_rnn
from implicit_rnn import cells
from solvers.bands import bidiagonal_solve
from solvers.split import recurrence_solve, split_tridiagonal_solve
from tests.devices.problems import CELL, collectives, graded, inputs, parameters, same

MESH = jax.make_mesh((8,), ("time",), (AxisType.Auto,))


def split(function: Callable) -> Callable:
    return jax.shard_map(function, mesh=MESH, in_specs=P("time"), out_specs=P("time"))


@pytest.mark.parametrize("time", [8, 16, 24, 64])  # blocks of one, two, three and eight rows
def test_the_split_solve_is_the_dense_one(time: int):
    random = np.random.default_rng(time)
    lower, upper = 0.45 * random.uniform(-1, 1, (2, time, 2)).astype(np.float32)
    diagonal, rhs = random.uniform(1, 2, (2, time, 2)).astype(np.float32)

    def dense(lower, diagonal, upper, rhs):
        def channel(below, own, above, right):
            matrix = jnp.diag(own) + jnp.diag(below[1:], -1) + jnp.diag(above[:-1], 1)
            return jnp.linalg.solve(matrix, right)

        return jax.vmap(channel, 1, 1)(lower, diagonal, upper, rhs)

    def both(solve):
        weigh = lambda *a: jnp.sum(jnp.sin(3 * solve(*a)))  # noqa: E731
        return jax.jit(lambda *a: (solve(*a), jax.grad(weigh, (0, 1, 2, 3))(*a)))

    spread = split(lambda *bands: split_tridiagonal_solve(*bands, "time"))
    bands = (lower, diagonal, upper, rhs)
    same(both(spread)(*bands), both(dense)(*bands), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("shape", [(24, 2), (24, 2, 2)])
def test_the_scan_over_devices_is_the_recurrence(shape: tuple[int, ...], reverse: bool):
    random = np.random.default_rng(0)
    coupling = 0.7 * random.normal(size=shape).astype(np.float32)
    rhs = random.normal(size=(24, 2)).astype(np.float32)

    def both(solve):
        weigh = lambda *a: jnp.sum(jnp.sin(solve(*a, reverse=reverse)))  # noqa: E731
        return jax.jit(lambda *a: (solve(*a, reverse=reverse), jax.grad(weigh, (0, 1))(*a)))

    def spread(*arguments, reverse):
        return split(lambda *a: recurrence_solve(*a, "time", reverse=reverse))(*arguments)

    alone = lambda *a, reverse: bidiagonal_solve(*a, reverse=reverse)  # noqa: E731
    same(both(spread)(coupling, rhs), both(alone)(coupling, rhs), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("time", "length", "method", "kind"),
    [
        (4096, None, "auto", AxisType.Auto),
        (60, 37, "banded", AxisType.Auto),
        (64, None, "newton", AxisType.Explicit),
        (64, 5, "anderson", AxisType.Auto),
    ],
)
def test_a_solve_over_devices_is_that_on_one(
    time: int, length: int | None, method: str, kind: AxisType
):
    mesh = jax.make_mesh((8,), ("time",), (kind,))
    options = {"method": method, "rtol": 1e-5}
    params = parameters(CELL, 3.0 if method == "newton" else 1.5)

    def alone(*arguments):
        return implicit_rnn.implicit(*arguments, **options)

    def spread(*arguments):
        return implicit_rnn.implicit_sharded(*arguments, **options, mesh=mesh)

    expected = graded(alone, CELL)(params, inputs(time), length)
    found = graded(spread, CELL)(params, inputs(time), length)
    assert bool(found[1][1].converged)
    assert int(found[1][1].steps) == int(expected[1][1].steps)
    same(found[:1], expected[:1], rtol=1e-3, atol=3e-4)
    same(found[1][0], expected[1][0], rtol=1e-4, atol=1e-5)


def test_the_states_are_those_of_a_dense_solve():
    """Newton's method with the whole Jacobian, nothing of it shared with the solvers."""
    params, xs = parameters(CELL), inputs(16)
    edges = CELL.initial_state(params), CELL.final_state(params)

    def defect(flat: jax.Array) -> jax.Array:
        states = flat.reshape(16, 4)
        around = jnp.concatenate([edges[0][None], states, edges[1][None]])
        xi = CELL.project(params, xs)
        new = jax.vmap(lambda *at: CELL.step(params, *at))(xi, around[:-2], around[2:])
        return (new - states).ravel()

    flat = jnp.zeros(64)
    for _ in range(20):
        flat = flat - jnp.linalg.solve(jax.jacfwd(defect)(flat), defect(flat))
    states, _ = implicit_rnn.implicit_sharded(CELL, params, xs, mesh=MESH, rtol=1e-6)
    same(states, flat.reshape(16, 4), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("jacobian", ["full", "diagonal"])
def test_a_causal_cell_over_devices_is_unrolled(jacobian: str):
    cell = cells.gru(4)
    params, xs = parameters(cell, 1.3), inputs(60)

    def alone(*arguments):
        ys, last = implicit_rnn.unroll(*arguments)
        return ys + last, None  # so that both are compared, and differentiated

    def spread(*arguments):
        ys, last, info = implicit_rnn.parallel_sharded(*arguments, mesh=MESH, jacobian=jacobian)
        return ys + last, info

    expected, found = (graded(run, cell)(params, xs, 47) for run in (alone, spread))
    assert bool(found[1][1].converged)
    same((found[0], found[1][0]), (expected[0], expected[1][0]), rtol=1e-3, atol=3e-4)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_examples_and_time_are_spread_at_once(kind: AxisType):
    """A batch along one axis of a mesh, time along the other, inside a `shard_map` of one's own."""
    mesh = jax.make_mesh((2, 4), ("data", "time"), (kind, kind))
    params = parameters(CELL)
    # Solves of different length: devices along `data` must not wait for each other.
    sizes = jnp.array([0.01, 0.1, 1.0, 10.0])[:, None, None]
    batch = sizes * jax.random.normal(jax.random.key(2), (4, 32, 3))
    placed = jax.device_put(batch, NamedSharding(mesh, P("data", "time")))

    def block(params, xs):
        def one(xs):
            return implicit_rnn.implicit_sharded(CELL, params, xs, method="banded", rtol=1e-5)

        states, info = jax.vmap(one)(xs)
        return states, info.steps

    spread = jax.shard_map(
        block, mesh=mesh, in_specs=(P(), P("data", "time")),
        out_specs=(P("data", "time"), P("data")),
    )  # fmt: skip

    def by_params(run, batch):
        return jax.jit(jax.grad(lambda params: jnp.sum(jnp.sin(run(params, batch)[0]))))(params)

    def alone(params, batch):
        run = lambda xs: implicit_rnn.implicit(CELL, params, xs, method="banded", rtol=1e-5)  # noqa: E731
        states, info = jax.vmap(run)(batch)
        return states, info.steps

    found, expected = jax.jit(spread)(params, placed), alone(params, batch)
    np.testing.assert_array_equal(found[1], expected[1])
    steps = np.asarray(found[1])
    assert max(steps[:2]) != max(steps[2:])
    same(found[0], expected[0], rtol=1e-4, atol=1e-5)
    same(by_params(spread, placed), by_params(alone, batch), rtol=1e-3, atol=3e-4)


def test_what_a_solve_sends_does_not_grow_with_time():
    params = parameters(CELL)

    def run(cell, params, xs, length):
        return implicit_rnn.implicit_sharded(cell, params, xs, length, method="banded", mesh=MESH)

    sent = [collectives(graded(run, CELL), params, inputs(time), None) for time in (64, 1024)]
    short, long = ({kind: len(found) for kind, found in one.items()} for one in sent)
    assert short == long
    assert set(short) == {"all-reduce", "all-gather", "collective-permute"}
    forward = collectives(lambda xs: run(CELL, params, xs, None)[0], inputs(64))
    # A sweep hands on one row to either side, gathers two rows of every block, and has a magnitude
    # and three products added up. The first evaluation stands before the loop, and in front of it
    # the start: whether it is finite, and the sweep from zero.
    assert {kind: len(found) for kind, found in forward.items()} == {
        "collective-permute": 2 + 2, "all-gather": 1 + 1 + 1, "all-reduce": 2 + 2 + 1,
    }  # fmt: skip
    assert forward["collective-permute"] == ["f32[1,4]{1,0}"] * 4


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_the_solve_is_lowered_for_accelerators(platform: str):
    params = parameters(CELL)

    def run(cell, params, xs, length):
        return implicit_rnn.implicit_sharded(cell, params, xs, length, mesh=MESH)

    exported = jax.export.export(graded(run, CELL), platforms=[platform])(params, inputs(64), None)
    assert exported.nr_devices == 8


def test_the_page_about_scaling_runs(root: Path, run_blocks: Callable[[Path], dict]):
    found = run_blocks(root / "docs" / "scaling.md")
    assert found["info"].converged
    assert found["report"].converged
    assert found["states"].sharding.spec == P("time")


def test_what_cannot_be_spread_is_refused():
    params = parameters(CELL)
    with pytest.raises(ValueError, match="the mesh has no axis 'depth'"):
        implicit_rnn.implicit_sharded(CELL, params, inputs(8), mesh=MESH, axis="depth")
    with pytest.raises(ValueError, match=r"pass mesh=, or call inside shard_map"):
        implicit_rnn.implicit_sharded(CELL, params, inputs(8))
    with pytest.raises(ValueError, match='start must be None, "zeros" or states'):
        implicit_rnn.implicit_sharded(CELL, params, inputs(8), start="forward", mesh=MESH)
    with pytest.raises(ValueError, match="an adjoint such as implicit"):
        implicit_rnn.implicit_sharded(CELL, params, inputs(8), adjoint="bptt", mesh=MESH)
    explicit = jax.make_mesh((8,), ("time",), (AxisType.Explicit,))
    with pytest.raises(ValueError, match="60 steps cannot be divided by 8 devices: pad xs"):
        implicit_rnn.implicit_sharded(CELL, params, inputs(60), mesh=explicit)
    far = cells.igru(4, stencil=(-2, 1))
    with pytest.raises(ValueError, match="looks 2 steps far, beyond a block of 1"):
        implicit_rnn.implicit_sharded(far, far.init(jax.random.key(0), 3), inputs(8), mesh=MESH)
