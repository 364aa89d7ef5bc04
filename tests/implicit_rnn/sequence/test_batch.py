"""The batched layer, stacks of layers, and both over several devices."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

import implicit_rnn
import solvers
from implicit_rnn import cells
from implicit_rnn.sequence import banded_adjoint
from solvers import Status, Sweeps
from solvers.batch.rows import in_groups

TIME, WIDTH, INPUTS = 6, 4, 3
LENGTH = jnp.array([6, 0, 3, 1, 5])
CELLS = {
    "igru": cells.igru(WIDTH),
    "ilstm": cells.ilstm(WIDTH),
    "irnn": cells.irnn(WIDTH, boundary="learnt"),
    "wide": cells.igru(WIDTH, stencil=(-2, -1, 1)),
}


def example(cell):
    params = cell.init(jax.random.key(0), INPUTS)
    return params, jax.random.normal(jax.random.key(1), (len(LENGTH), TIME, INPUTS))


def program(cell, solve):
    """Value, gradients and everything else of a loss over a batch, compiled."""

    def loss(params, xs):
        states, info = solve(cell, params, xs)
        return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(states)), (states, info)

    return jax.jit(jax.grad(loss, (0, 1), has_aux=True))


def in_lockstep(cell, params, xs, **settings):
    settings = {"method": "banded", "adjoint": Sweeps(rtol=1e-11), "rtol": 1e-11} | settings
    return implicit_rnn.implicit_batch(cell, params, xs, length=LENGTH, **settings)


def one_by_one(cell, params, xs):
    how = banded_adjoint(cell, rtol=1e-11, cascade=False)
    return jax.vmap(
        lambda x, n: implicit_rnn.implicit(
            cell, params, x, length=n, method="picard", adjoint=how, rtol=1e-11
        )
    )(xs, LENGTH)


@pytest.mark.parametrize(
    "name",
    ["igru", *(pytest.param(n, marks=pytest.mark.slow) for n in ("ilstm", "irnn", "wide"))],
)
def test_batch_equals_single_sequences(name):
    with jax.enable_x64(True):
        cell = CELLS[name]
        params, xs = example(cell)
        expected, (states, _) = program(cell, one_by_one)(params, xs)
        got, (batched, info) = program(cell, in_lockstep)(params, xs)
        assert np.all(info.converged)
        chex.assert_trees_all_close(batched, states, atol=1e-9)
        chex.assert_trees_all_close(got, expected, atol=1e-8)


@pytest.mark.parametrize("garbage", [pytest.param(1e3, marks=pytest.mark.slow), np.nan])
def test_padding_and_neighbours_change_nothing(garbage):
    cell = CELLS["igru"]
    params, xs = example(cell)
    run = program(cell, lambda *a: in_lockstep(*a, rtol=1e-5, adjoint=Sweeps(rtol=1e-5)))
    clean, (states, info) = run(params, xs)
    past = np.arange(TIME)[:, None] >= np.asarray(LENGTH)[:, None, None]
    dirty, (same, again) = run(params, jnp.where(past, garbage, xs))
    np.testing.assert_array_equal(states, same)
    np.testing.assert_array_equal(info.steps, again.steps)
    chex.assert_trees_all_equal(clean, dirty)
    assert np.all(np.where(past, states, 0) == 0)


def test_input_that_is_not_finite_spares_the_others():
    cell = CELLS["igru"]
    params, xs = example(cell)
    run = program(cell, lambda *a: in_lockstep(*a, rtol=1e-5, adjoint=Sweeps(rtol=1e-5)))
    _, (states, _) = run(params, xs)
    gradient, (found, info) = run(params, xs.at[2, 1].set(jnp.inf))
    assert info.status[2] == Status.NONFINITE
    others = np.array([0, 1, 3, 4])
    assert np.all(info.converged[others])
    np.testing.assert_array_equal(states[others], found[others])
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(gradient))


@pytest.mark.slow
def test_stiff_examples_are_rescued_forwards_and_backwards():
    """Inputs that switch one example's gates make it slow; Newton and BiCGSTAB take over."""
    with jax.enable_x64(True):
        cell = cells.igru(WIDTH, split=0.0, update_bias=0.0)
        params, xs = example(cell)
        params = jax.tree.map(lambda leaf: 3 * leaf, params)
        limited = {"rtol": 1e-10, "accelerated": False, "max_steps": 100}

        def loss(params, probe):
            states, info = implicit_rnn.implicit_batch(
                cell, params, xs, method="auto", adjoint="auto", probe=probe, **limited
            )
            return jnp.sum(jnp.sin(states)), (states, info)

        (gradient, seen), (states, info) = jax.jit(jax.grad(loss, (0, 1), has_aux=True))(
            params, solvers.adjoint_probe((len(LENGTH),))
        )
        assert np.all(info.converged)
        assert np.all(seen.status == Status.CONVERGED)
        assert np.any(info.steps > 30) or np.any(seen.steps > 20)

        def single(params):
            how = solvers.adjoint.implicit(solvers.linear.gmres(rtol=1e-11))
            found, _ = jax.vmap(
                lambda x, h: implicit_rnn.implicit(
                    cell, params, x, start=h, method="newton", adjoint=how, rtol=1e-11
                )
            )(xs, jax.lax.stop_gradient(states))
            return jnp.sum(jnp.sin(found))

        chex.assert_trees_all_close(
            gradient, jax.jit(jax.grad(single))(params), rtol=1e-5, atol=1e-6
        )


@pytest.mark.parametrize("pending", [[], [2], list(range(0, 19, 2)), list(range(19))])
def test_what_has_not_converged_is_solved_again_a_few_at_a_time(pending):
    """Each such example once, whatever their number; the others are not touched."""
    batch = 19  # no multiple of the examples that are solved together
    status = np.full(batch, int(Status.CONVERGED))
    status[pending] = int(Status.MAX_STEPS)
    value = jnp.arange(3.0 * batch * 2).reshape(3, batch, 2)
    counts = jnp.arange(batch)
    info = solvers.Info(counts, jnp.full(batch, 0.5), jnp.asarray(status), counts)

    def solve(index, part, before):
        few = index.shape
        np.testing.assert_array_equal(part.shape, (3, *few, 2))
        done = jnp.full(few, int(Status.CONVERGED))
        return part + 100 + index[:, None], solvers.Info(
            before.steps + 7, jnp.zeros(few), done, before.evaluations + 9
        )

    found, later = jax.jit(partial(in_groups, solve, axis=1))(value, info)
    again = np.isin(np.arange(batch), pending)
    np.testing.assert_array_equal(
        found, np.where(again[:, None], value + 100 + counts[:, None], value)
    )
    np.testing.assert_array_equal(later.steps, counts + 7 * again)
    np.testing.assert_array_equal(later.evaluations, counts + 9 * again)
    np.testing.assert_array_equal(later.residual, np.where(again, 0, 0.5))
    assert np.all(later.converged)


def test_batch_lowers_for_cuda_and_tpu():
    cell = CELLS["igru"]
    params, xs = example(cell)

    def loss(params, xs, length):
        states, info = implicit_rnn.implicit_batch(cell, params, xs, length=length)
        return jnp.sum(states), info

    lowered = export.export(jax.jit(jax.grad(loss, has_aux=True)), platforms=["cuda", "tpu"])
    assert lowered(params, xs, LENGTH).platforms == ("cuda", "tpu")


@pytest.mark.slow
def test_stack_is_its_layers_one_after_the_other():
    layers = [cells.igru(WIDTH), cells.gru(WIDTH), cells.irnn(WIDTH)]
    params = implicit_rnn.init_stack(layers, jax.random.key(0), INPUTS)
    xs = jax.random.normal(jax.random.key(1), (TIME, INPUTS))
    settings = {"method": "banded", "rtol": 1e-6}

    @jax.jit
    def by_hand(params, xs):
        first, _ = implicit_rnn.implicit(layers[0], params[0], xs, length=4, **settings)
        second = first + implicit_rnn.unroll(layers[1], params[1], first, length=4)[0]
        third, info = implicit_rnn.implicit(layers[2], params[2], second, length=4, **settings)
        return second + third, info

    @jax.jit
    def stacked(params, xs, length):
        return implicit_rnn.stack(layers, params, xs, length=length, residual=True, **settings)

    expected, info = by_hand(params, xs)
    ys, told = stacked(params, xs, 4)
    np.testing.assert_allclose(ys, expected, atol=1e-5)
    assert told[2].steps == info.steps
    batch, _ = stacked(params, xs[None], jnp.array([4]))
    np.testing.assert_allclose(batch[0], ys, atol=1e-4)


def test_dropout_drops_between_layers_only_and_needs_a_key():
    layers = [cells.igru(WIDTH), cells.igru(WIDTH)]
    params = implicit_rnn.init_stack(layers, jax.random.key(0), INPUTS)
    xs = jax.random.normal(jax.random.key(1), (TIME, INPUTS))

    def run(key, dropout=0.5):
        return implicit_rnn.stack(layers, params, xs, dropout=dropout, key=key, method="banded")[0]

    @jax.jit
    def by_hand(kept):
        between, _ = implicit_rnn.implicit(layers[0], params[0], xs, method="banded")
        given = jnp.where(kept, 2 * between, 0)
        return implicit_rnn.implicit(layers[1], params[1], given, method="banded")[0]

    a, b, same = map(jax.jit(run), map(jax.random.key, (0, 1, 0)))
    assert np.any(a != b)
    np.testing.assert_array_equal(a, same)
    kept = jax.random.bernoulli(jax.random.fold_in(jax.random.key(0), 1), 0.5, (TIME, WIDTH))
    np.testing.assert_allclose(a, by_hand(kept), atol=1e-5)
    with pytest.raises(ValueError, match="pass key"):
        run(None)
    with pytest.raises(ValueError, match="below 1"):
        run(jax.random.key(0), dropout=1.0)
    with pytest.raises(ValueError, match="parameters for 1"):
        implicit_rnn.stack(layers, params[:1], xs)


def test_bad_batches_are_named():
    cell = CELLS["igru"]
    params, xs = example(cell)
    with pytest.raises(ValueError, match=r"\[batch, time, features\]"):
        implicit_rnn.implicit_batch(cell, params, xs[0])
    with pytest.raises(ValueError, match="length must have shape"):
        implicit_rnn.implicit_batch(cell, params, xs, length=jnp.array([1, 2]))
    with pytest.raises(ValueError, match="lockstep"):
        implicit_rnn.implicit_batch(cell, params, xs, method="picard")
    with pytest.raises(ValueError, match="lockstep"):
        implicit_rnn.implicit_batch(cell, params, xs, adjoint="neumann")


def test_time_and_batch_can_be_sharded_over_eight_devices():
    """In a process of its own: the number of devices is fixed when jax starts."""
    script = """
        import jax, jax.numpy as jnp, numpy as np, implicit_rnn, solvers
        from jax.sharding import NamedSharding, PartitionSpec
        assert len(jax.devices()) == 8
        mesh = jax.make_mesh((8,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
        cell = implicit_rnn.cells.igru(4)
        params = cell.init(jax.random.key(0), 3)
        xs = jax.random.normal(jax.random.key(1), (8, 16, 3))

        def loss(params, xs):
            states, info = implicit_rnn.implicit_batch(
                cell, params, xs, method="banded", adjoint=solvers.Sweeps(rtol=1e-6), rtol=1e-6)
            return jnp.sum(jnp.sin(states)), (states, info)

        run = jax.jit(jax.grad(loss, (0, 1), has_aux=True))
        expected = run(params, xs)
        for spec in (("d",), (None, "d")):
            sharding = NamedSharding(mesh, PartitionSpec(*spec))
            sharded = jax.device_put(xs, sharding)
            assert len(sharded.sharding.device_set) == 8
            got = run(params, sharded)
            for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
                np.testing.assert_allclose(a, b, atol=2e-5)
        print("same")
    """
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=8"
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env=os.environ | {"XLA_FLAGS": flags},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == "same"


@pytest.mark.parametrize("levels", [1, 2])
def test_one_example_that_is_nan_spoils_no_gradient(levels):
    """Also compacted, and with a cell whose bands are estimated."""
    cell = cells.implicit(cells.deep_rnn(2)) if levels == 1 else cells.igru(2)
    params, xs = cell.init(jax.random.key(0), 2), jnp.ones((3, 4, 2)).at[1, 2].set(jnp.nan)

    @jax.jit
    def gradient(params):
        def total(params):
            states, info = implicit_rnn.implicit_batch(
                cell,
                params,
                xs,
                levels=levels,
                method="picard" if levels > 1 else "auto",
                adjoint="one_step" if levels > 1 else "auto",
                start="random",
                key=jax.random.key(1),
            )
            return jnp.sum(cell.output(states)), info

        return jax.grad(total, has_aux=True)(params)

    found, info = gradient(params)
    assert info.status[1] == solvers.Status.NONFINITE
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(found))


def test_the_switch_sees_given_boundary_states():
    cell = cells.igru(2)
    params, xs = cell.init(jax.random.key(0), 2), jnp.ones((3, 2))
    ends = {"initial_state": jnp.full(2, 5.0), "final_state": jnp.full(2, -5.0)}
    states = jnp.zeros((3, 2))
    share = implicit_rnn.switch(cell, params, xs, states, **ends)
    usual = implicit_rnn.switch(cell, params, xs, states)
    assert not np.allclose(share[0], usual[0])
    assert not np.allclose(share[-1], usual[-1])
    np.testing.assert_array_equal(share[1], usual[1])
