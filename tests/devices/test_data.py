"""Data parallel training: the parameters of one device, by one all-reduce an update."""

from __future__ import annotations

import io
import operator
import re
import shutil
from pathlib import Path

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from rich.console import Console

import implicit_rnn
from implicit_rnn import cells, models, training
from implicit_rnn.experiments.shakespeare.task import text_task
from implicit_rnn.training import Layout, ParallelSettings, SettingsError, TrainingSettings
from tests.devices.problems import (
    ONE,
    Words,
    after,
    batches,
    collectives,
    parts,
    same,
    tagger,
    task,
    words,
)


@pytest.fixture(scope="module")
def alone():
    return after(parts(ONE))


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_twenty_updates_on_eight_devices_are_those_on_one(alone, kind):
    whole = parts(Layout(jax.make_mesh((4, 2), ("a", "b"), (kind, kind))))
    assert whole.layout.mesh.size == 8
    found = after(whole)
    same(found.params, alone.params)
    for name, total in alone.totals.items():  # steps and convergence of all devices' solves
        exact = name in ("solves", "forward_steps", "backward_steps", "backward_most", "converged")
        # Residuals are differences of numbers that are almost equal.
        near = {"rtol": 0} if exact else {"rtol": 1e-4, "atol": 1e-5}
        np.testing.assert_allclose(found.totals[name], total, **near)
    valid, one = whole.task.splits["valid"], parts(ONE)
    want = pytest.approx(one.evaluate(alone, valid), rel=1e-4, abs=1e-5)
    assert whole.evaluate(found, valid) == want
    train, random = whole.task.splits["train"], np.random.default_rng(2)
    for entry in train.plan(16, 2, random):  # every device has one of the longest
        length = np.asarray(whole.load(train, entry).length).reshape(8, 2)
        assert np.ptp(length.sum(axis=1)) <= np.ptp(length)
        assert sorted(length.max(axis=1)) == sorted(length.ravel())[8:]


def test_an_update_sends_the_gradient_once_and_nothing_else():
    whole = parts()
    assert dict(whole.layout.mesh.shape) == {"data": 8}
    state, batch = whole.init(), batches(whole)[0]
    sent = collectives(whole.step, state, batch)
    assert list(sent) == ["all-reduce"]
    assert len(sent["all-reduce"]) == 1
    size = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    elements = int(re.search(r"f32\[(\d+)\]", sent["all-reduce"][0])[1])
    # Beside the gradient, the loss, the sums of a dozen numbers and two maxima of eight devices.
    assert size < elements < size + 40
    memory = jax.jit(whole.step, donate_argnums=0).lower(state, batch).compile().memory_analysis()
    assert memory.alias_size_in_bytes >= 0.9 * sum(x.nbytes for x in jax.tree.leaves(state))


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_a_table_is_sharded_by_a_rule_with_its_moments(kind):
    rules = {"embedding/": ("model", "")}
    mesh = jax.make_mesh((4, 2), ("data", "model"), (kind, kind))
    sharded = words(Layout(mesh, rules))
    alone = words(ONE)
    expected, found = after(alone), after(sharded)
    same(found.params, expected.params)
    same(found.optimiser, expected.optimiser)
    moments = optax.tree.get_all_with_path(found.optimiser, "mu")[0][1]
    for table in (found.params["embedding"]["table"], moments["embedding"]["table"]):
        assert {shard.data.shape for shard in table.addressable_shards} == {(16, 6)}
    sent = collectives(sharded.step, found, batches(sharded)[0])
    # The table is put together for the forward pass; the batch, [16, 5], never.
    assert [re.sub(r"\{.*", "", shape) for shape in sent["all-gather"]] == ["f32[32,6]"]
    train = alone.task.splits["train"]
    assert sharded.evaluate(found, train) == pytest.approx(alone.evaluate(expected, train), 1e-5)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_a_batch_that_is_spread_is_solved_as_on_one_device(kind):
    cell = cells.igru(4)
    params = cell.init(jax.random.key(0), 3)
    xs = jax.random.normal(jax.random.key(1), (8, 5, 3))
    recipe = training.Recipe()

    def loss(params, xs, solve):
        states, info = solve(params, xs)
        return jnp.sum(jnp.cos(states)), info

    for solve in (
        lambda params, xs: implicit_rnn.implicit_batch(cell, params, xs, rtol=1e-5),
        lambda params, xs: recipe.solve(cell, params, xs),
    ):
        run = jax.jit(jax.value_and_grad(lambda p, x, solve=solve: loss(p, x, solve), has_aux=True))
        (value, info), gradient = run(params, xs)
        mesh = jax.make_mesh((8,), ("batch",), (kind,))
        with jax.set_mesh(mesh):
            spread = jax.device_put(xs, NamedSharding(mesh, P("batch")))
            (found, told), other = run(params, spread)
        np.testing.assert_allclose(found, value, rtol=1e-5)
        np.testing.assert_array_equal(told.steps, info.steps)
        assert np.all(told.converged)
        same(other, gradient)


def test_an_ensemble_trains_inside_shard_map():
    one = parts(ONE)
    batch = batches(one)[0]

    def scaled(factor: jax.Array) -> training.State:
        state = one.init()
        return state._replace(params=jax.tree.map(lambda p: factor * p, state.params))

    def member(factor: jax.Array) -> dict:
        params = one.step(scaled(factor[0]), batch).params
        return jax.tree.map(lambda leaf: leaf[None], params)

    mesh = jax.make_mesh((8,), ("member",), (AxisType.Auto,))
    spread = jax.shard_map(member, mesh=mesh, in_specs=P("member"), out_specs=P("member"))
    factors = jnp.linspace(0.5, 1.5, 8)
    found = jax.jit(spread)(factors)
    for number in (0, 7):
        own = jax.tree.map(operator.itemgetter(number), found)
        same(own, one.step(scaled(factors[number]), batch).params)


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_the_step_is_lowered_for_accelerators(platform):
    whole = parts()
    state, batch = whole.init(), batches(whole)[0]
    exported = jax.export.export(jax.jit(whole.step), platforms=[platform])(state, batch)
    assert exported.nr_devices == 8
    assert exported.platforms == (platform,)


def test_a_run_goes_on_with_another_number_of_devices(tmp_path: Path):
    settings = TrainingSettings(updates=12, batch=16, buckets=1, evaluate_every=4, log_every=4)
    options = {"optimiser": optax.adam(1e-2), "settings": settings}

    def run(name: str, devices: int, **further) -> dict:
        return training.train(
            task(), tagger(), folder=tmp_path / name, console=Console(file=io.StringIO()),
            parallel=ParallelSettings(shape=(devices,)), **options, **further,
        )  # fmt: skip

    def params(name: str) -> dict:
        return training.restore(task(), tagger(), folder=tmp_path / name, **options).params

    whole = run("whole", 1)
    run("moved", 8)
    for path in (tmp_path / "moved" / "checkpoints").glob("000012*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for devices in (4, 1):
        name = f"on {devices}"
        shutil.copytree(tmp_path / "moved", tmp_path / name)
        (tmp_path / name / "result.json").unlink()
        found = run(name, devices, resume=True)
        assert found["test"] == pytest.approx(whole["test"], rel=1e-3)
        same(params(name), params("whole"), rtol=1e-3, atol=1e-4)


def test_what_cannot_be_dealt_is_refused_or_left_to_fewer_devices():
    with pytest.raises(SettingsError, match="a batch of 16 cannot be dealt over 3 devices"):
        parts(ParallelSettings(shape=(3,)))
    with pytest.raises(SettingsError, match=r"needs 16 devices; there are 8"):
        parts(ParallelSettings(shape=(16,)))
    with pytest.raises(SettingsError, match=r"'head' shards head of shape \(6,\) along"):
        words(ParallelSettings(shape=(4,), rules={"head": ("data",)})).init()
    with pytest.raises(SettingsError, match="'bed/tables' fits no parameter of embedding"):
        words(ParallelSettings(rules={"bed/tables": ("data",)})).init()
    problem = Words()
    found = training.trainer(problem, problem, settings=TrainingSettings(batch=6))
    assert found.layout.mesh.size == 6


def test_what_a_stateful_model_carries_stays_with_its_stream():
    tokens = np.random.default_rng(0).integers(0, 5, size=700)
    problem = text_task(tokens, list("abcde"), window=6, held_out=0.4)
    model = models.language_model([cells.gru(4)], 5)

    def run(devices: int) -> tuple:
        made = training.trainer(
            problem, model, optimiser=optax.sgd(0.1), parallel=ParallelSettings(shape=(devices,)),
            settings=TrainingSettings(updates=6, batch=8),
        )  # fmt: skip
        state, train = made.begin(made.init()), problem.splits["train"]
        for entry in train.plan(8, 1, np.random.default_rng(0))[:6]:
            state = made.step(state, made.load(train, entry))
        return state.params, state.carry, made.evaluate(state, problem.splits["valid"])

    same(run(8), run(1), rtol=1e-4)


@pytest.mark.parametrize("time", [9, 67])  # in one go, and in chunks
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_a_causal_cell_is_differentiated_inside_shard_map(kind, time: int):
    cell = cells.lstm(3)
    params = cell.init(jax.random.key(0), 2)
    xs = jax.random.normal(jax.random.key(1), (8, time, 2))
    lengths = jnp.array([time, 5, 0, 1, time, 3, 8, 2])

    def loss(params, xs, lengths):
        def one(x, length):
            return implicit_rnn.bidirectional(cell, cell, (params, params), x, length)[0]

        return jnp.sum(jax.vmap(one)(xs, lengths) ** 2)

    mesh = jax.make_mesh((8,), ("data",), (kind,))
    spread = jax.shard_map(
        jax.grad(lambda *given: jax.lax.psum(loss(*given), "data")),
        mesh=mesh, in_specs=(P(), P("data"), P("data")), out_specs=P(),
    )  # fmt: skip
    places = [NamedSharding(mesh, spec) for spec in (P(), P("data"), P("data"))]
    given = [jax.device_put(*pair) for pair in zip((params, xs, lengths), places, strict=True)]
    expected = jax.grad(loss)(params, xs, lengths)
    with jax.set_mesh(mesh):
        for found in (jax.jit(spread)(*given), jax.jit(jax.grad(loss))(*given)):
            chex.assert_trees_all_close(found, expected, rtol=2e-4, atol=2e-5)
