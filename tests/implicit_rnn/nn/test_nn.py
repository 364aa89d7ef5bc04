"""flax modules give the values of the pure functions and train with optax."""

from __future__ import annotations

import chex
import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint
import pytest
from flax import nnx
from jax.sharding import PartitionSpec

import implicit_rnn
import solvers
from implicit_rnn import cells, nn

CELL = cells.igru(4)
SETTINGS = {"method": "banded", "adjoint": solvers.Sweeps(), "rtol": 1e-6}


def data():
    return jax.random.normal(jax.random.key(0), (3, 6, 2)), jnp.array([6, 0, 4])


@jax.jit
def expected(params, xs, length):
    """The states, by another method and one sequence at a time."""
    return jax.vmap(
        lambda x, n: implicit_rnn.implicit(CELL, params, x, length=n, method="picard", rtol=1e-6)[0]
    )(xs, length)


def test_nnx_layer_trains():
    xs, length = data()
    layer = nn.Implicit(CELL, 2, rngs=nnx.Rngs(0), **SETTINGS)
    optimiser = nnx.Optimizer(layer, optax.adam(1e-2), wrt=nnx.Param)

    @nnx.jit
    def step(layer, optimiser):
        def loss(layer):
            outputs, info = layer(xs, length)
            return jnp.mean((outputs[:, :, 0] - 0.5) ** 2), info

        (value, info), gradient = nnx.value_and_grad(loss, has_aux=True)(layer)
        optimiser.update(layer, gradient)
        return value, info

    values = []
    for _ in range(15):
        value, info = step(layer, optimiser)
        assert np.all(info.converged)
        values.append(float(value))
    assert values[-1] < values[0]
    outputs, _ = nnx.jit(layer)(xs, length)
    np.testing.assert_allclose(outputs, expected(layer.values(), xs, length), atol=1e-5)


def test_linen_layer_equals_the_pure_function():
    xs, length = data()
    layer = nn.LinenImplicit(CELL, SETTINGS)
    variables = jax.jit(layer.init)(jax.random.key(1), xs)
    outputs, info = jax.jit(layer.apply)(variables, xs, length)
    assert np.all(info.converged)
    params = variables["params"]["cell"]
    np.testing.assert_allclose(outputs, expected(params, xs, length), atol=1e-5)
    assert np.all(outputs[1] == 0)


# Compiled for long, and not unlike the others.
slow = ("contractive", "igru", "ilstm", "irnn")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in slow else []) for name in cells.CELLS],
)
def test_every_cell_trains_a_step_in_both_kinds_of_module(name):
    cell = cells.CELLS[name](2)
    xs, length = data()
    optimiser = optax.sgd(0.1)
    solved = cell.final_state is not None
    settings = SETTINGS if solved else {}
    layer = (nn.Implicit if solved else nn.Recurrent)(cell, 2, rngs=nnx.Rngs(0), **settings)
    module = (nn.LinenImplicit if solved else nn.LinenRecurrent)(cell, settings)
    params = layer.values()

    def distance(outputs):
        return jnp.mean((outputs - 0.5) ** 2)

    @nnx.jit
    def nnx_step(layer):
        def loss(layer):
            outputs, _ = layer(xs, length)
            return distance(outputs), outputs

        (value, outputs), gradient = nnx.value_and_grad(loss, has_aux=True)(layer)
        nnx.Optimizer(layer, optimiser, wrt=nnx.Param).update(layer, gradient)
        return value, outputs

    def pure(params):
        if solved:
            states, _ = implicit_rnn.implicit_batch(cell, params, xs, length=length, **settings)
            return cell.output(states)
        return jax.vmap(lambda x, n: implicit_rnn.unroll(cell, params, x, length=n)[0])(xs, length)

    @jax.jit
    def linen_step(variables):
        def loss(variables):
            outputs, _ = module.apply(variables, xs, length)
            return distance(outputs), outputs

        gradient, outputs = jax.grad(loss, has_aux=True)(variables)
        updates, _ = optimiser.update(gradient, optimiser.init(variables))
        return outputs, optax.apply_updates(variables, updates), pure(params)

    variables = {"params": {"cell": params}}
    made = jax.eval_shape(module.init, jax.random.key(0), xs)
    chex.assert_trees_all_equal_shapes_and_dtypes(made, variables)
    before, outputs = nnx_step(layer)
    others, variables, expected = linen_step(variables)
    np.testing.assert_allclose(outputs, expected, atol=1e-6)
    np.testing.assert_allclose(others, expected, atol=1e-6)
    chex.assert_trees_all_close(layer.values(), variables["params"]["cell"], atol=1e-6)
    assert nnx_step(layer)[0] < before


def test_causal_layers_take_a_state_and_give_the_last():
    cell = cells.lstm(3)
    xs, length = data()
    layer = nn.Recurrent(cell, 2, rngs=nnx.Rngs(0), reverse=True)
    module = nn.LinenRecurrent(cell, {"reverse": True})
    start = cells.LSTMState(*jax.random.normal(jax.random.key(1), (2, 3, 3)))
    params = layer.values()

    @jax.jit
    def pure(params):
        return jax.vmap(
            lambda x, n, s: implicit_rnn.unroll(cell, params, x, length=n, state=s, reverse=True)
        )(xs, length, start)

    expected = nn.Unrolled(*pure(params))
    chex.assert_trees_all_close(nnx.jit(layer)(xs, length, start), expected, atol=1e-6)
    got = jax.jit(module.apply)({"params": {"cell": params}}, xs, length, start)
    chex.assert_trees_all_close(got, expected, atol=1e-6)
    chex.assert_trees_all_equal(
        jax.tree.map(lambda leaf: leaf[1], got[1]), jax.tree.map(lambda leaf: leaf[1], start)
    )


def test_bidirectional_layers_equal_the_pure_function():
    pair = cells.gru(3), cells.mingru(2)
    xs, length = data()
    layer = nn.Bidirectional(*pair, 2, rngs=nnx.Rngs(0))
    module = nn.LinenBidirectional(*pair)
    params = layer.values()

    @jax.jit
    def pure(params):
        both = params["forward"], params["backward"]
        return jax.vmap(lambda x, n: implicit_rnn.bidirectional(*pair, both, x, length=n))(
            xs, length
        )

    outputs, states = pure(params)
    expected = nn.Unrolled(outputs, nn.Ends(*states))
    assert expected[0].shape == (3, 6, 5)
    chex.assert_trees_all_close(nnx.jit(layer)(xs, length), expected, atol=1e-6)
    variables = {"params": {"cell": params}}
    chex.assert_trees_all_equal_shapes(
        jax.eval_shape(module.init, jax.random.key(0), xs), variables
    )
    chex.assert_trees_all_close(jax.jit(module.apply)(variables, xs, length), expected, atol=1e-6)


PARTITION = {"cell/recurrent": (None, "model"), "switch/input": ("data", None)}


def test_partitioning_of_nnx_is_what_was_asked_for():
    mesh = jax.make_mesh((1, 1), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    with jax.set_mesh(mesh):
        layer = nn.Implicit(cells.ilstm(2), 3, rngs=nnx.Rngs(0), partition=PARTITION)
    _, state = nnx.split(layer)
    found = nnx.to_pure_dict(nnx.get_partition_spec(state))["params"]
    assert found["cell"]["recurrent"] == PartitionSpec(None, "model")
    assert found["switch"]["input"] == PartitionSpec("data", None)
    assert found["cell"]["input"] == PartitionSpec()
    assert layer.params["cell"]["recurrent"][...].sharding.spec == PartitionSpec(None, "model")


def test_partitioning_of_linen_is_what_was_asked_for():
    partition = {"forward/recurrent": (None, "model")}
    module = nn.LinenBidirectional(cells.lstm(2), cells.mingru(2), partition=partition)
    xs = jnp.ones((1, 3, 2))
    variables = jax.jit(module.init)(jax.random.key(0), xs)
    found = flax.linen.get_partition_spec(variables)["params"]["cell"]
    assert found["forward"]["recurrent"] == PartitionSpec(None, "model")
    assert found["backward"]["input"] == PartitionSpec()
    apply = jax.jit(module.apply)
    boxed, plain = apply(variables, xs), apply(flax.linen.unbox(variables), xs)
    chex.assert_trees_all_equal(boxed, plain)
    gradient = jax.grad(lambda variables: jnp.sum(apply(variables, xs)[0]))(variables)
    assert flax.linen.get_partition_spec(gradient)["params"]["cell"] == found


def test_partitioning_that_fits_no_parameter_is_named():
    with pytest.raises(ValueError, match=r"\['weights'\], but the parameters are \['bias', 'in"):
        nn.Recurrent(cells.lstm(2), 3, rngs=nnx.Rngs(0), partition={"weights": (None, None)})
    with pytest.raises(ValueError, match="each of the 2 axes of input"):
        nn.Recurrent(cells.lstm(2), 3, rngs=nnx.Rngs(0), partition={"input": ("model",)})


def test_modules_are_saved_and_restored_by_orbax(tmp_path):
    """With boundary states that are learnt, and so a state among the parameters."""
    cell = cells.ilstm(2, boundary="learnt")
    layer, other = (nn.Implicit(cell, 3, rngs=nnx.Rngs(seed)) for seed in (0, 1))
    graph, state = nnx.split(layer)
    module = nn.LinenRecurrent(cells.sru(2), partition={"input": (None, "model")})
    variables = jax.jit(module.init)(jax.random.key(0), jnp.ones((1, 2, 3)))
    with orbax.checkpoint.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "nnx", state)
        checkpointer.save(tmp_path / "linen", variables)
        checkpointer.wait_until_finished()
        restored = checkpointer.restore(tmp_path / "nnx", nnx.split(other)[1])
        again = checkpointer.restore(tmp_path / "linen", variables)
    chex.assert_trees_all_equal(nnx.to_pure_dict(restored), nnx.to_pure_dict(state))
    chex.assert_trees_all_equal(nnx.merge(graph, restored).values(), layer.values())
    chex.assert_trees_all_equal(again, variables)
    assert flax.linen.get_partition_spec(again) == flax.linen.get_partition_spec(variables)


def test_wrong_shapes_are_named():
    layers = (
        nn.Implicit(CELL, 2, rngs=nnx.Rngs(0)),
        nn.Recurrent(cells.mingru(2), 2, rngs=nnx.Rngs(0)),
    )
    for layer in layers:
        with pytest.raises(ValueError, match=r"\[batch, time, features\]"):
            layer(jnp.ones((5, 2)))
        with pytest.raises(ValueError, match="length must have shape"):
            layer(jnp.ones((3, 5, 2)), jnp.array(4))


def test_what_a_layer_could_not_be_called_with_is_refused_when_it_is_made():
    with pytest.raises(TypeError, match=r"unknown settings \['metod'\]; there are .*'method'"):
        nn.Implicit(CELL, 2, rngs=nnx.Rngs(0), metod="banded")
    with pytest.raises(ValueError, match="gru does not look ahead: use Recurrent"):
        nn.Implicit(cells.gru(2), 2, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="igru looks ahead: use Implicit"):
        nn.Recurrent(CELL, 2, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="does not look ahead"):
        nn.LinenImplicit(cells.gru(2))
    with pytest.raises(ValueError, match="igru looks ahead: use Implicit"):
        nn.LinenRecurrent(CELL)
    with pytest.raises(TypeError, match=r"unknown settings \['revers'\]; there are .*'reverse'"):
        nn.LinenBidirectional(cells.gru(2), cells.gru(2), {"revers": True})


def test_a_solved_layer_takes_a_warm_start_and_a_probe():
    xs, length = data()
    layer = nn.Implicit(CELL, 2, rngs=nnx.Rngs(0), **SETTINGS)
    outputs, cold = layer(xs, length)
    _, warm = layer(xs, length, start=outputs)
    assert np.sum(warm.steps) < np.sum(cold.steps)
    _, drawn = layer(xs, length, start="random", key=jax.random.key(1))
    assert np.all(drawn.converged)
    probe = solvers.adjoint_probe((3,))
    seen = jax.grad(lambda probe: jnp.sum(layer(xs, length, probe=probe)[0]))(probe)
    assert np.sum(seen.steps) > 0


def test_layers_are_tabulated():
    xs, _ = data()
    both = nn.Bidirectional(cells.lstm(4), cells.gru(4), 2, rngs=nnx.Rngs(0))
    for layer, name in ((nn.Implicit(CELL, 2, rngs=nnx.Rngs(0)), "residual"), (both, "backward")):
        table = nnx.tabulate(layer, xs)
        count = sum(leaf.size for leaf in jax.tree.leaves(layer.values()))
        assert name in table
        assert f"Total Parameters: {count} " in table


@pytest.mark.parametrize("name", cells.CELLS)
def test_layers_compute_in_the_type_of_their_cell_and_keep_parameters_in_another(name):
    cell = cells.CELLS[name](2, dtype="bfloat16", param_dtype="float32")
    solved = cell.final_state is not None
    short = {"method": "picard", "adjoint": "one_step", "max_steps": 2, "levels": 2}
    settings = short if solved else {}
    make, module = (nn.Implicit, nn.LinenImplicit) if solved else (nn.Recurrent, nn.LinenRecurrent)
    xs, length = data()
    layer = nnx.eval_shape(lambda: make(cell, 2, rngs=nnx.Rngs(0), **settings))
    graph, state = nnx.split(layer)
    module = module(cell, settings)
    variables = jax.eval_shape(module.init, jax.random.key(0), xs)
    kinds = {leaf.dtype for leaf in jax.tree.leaves((state, variables))}
    assert kinds == {jnp.dtype("float32")}
    outputs = (
        jax.eval_shape(lambda state: nnx.merge(graph, state)(xs, length), state)[0],
        jax.eval_shape(module.apply, variables, xs, length)[0],
    )
    assert {leaf.dtype for leaf in outputs} == {jnp.dtype("bfloat16")}
