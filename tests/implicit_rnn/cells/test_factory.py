"""What all factories of cells share: equality by settings, types of numbers, initialisers."""

from __future__ import annotations

import functools
import math
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import implicit_rnn
from implicit_rnn import cells

WIDTH, INPUTS, TIME = 4, 3, 3
every_cell = pytest.mark.parametrize("name", sorted(cells.CELLS))


def outputs(cell, params, xs):
    if cell.stencil == (-1,):
        return implicit_rnn.unroll(cell, params, xs)[0]
    # Two steps tell the type, and compile quickly.
    run = functools.partial(implicit_rnn.implicit, method="picard", adjoint="one_step")
    return cell.output(run(cell, params, xs, max_steps=2)[0])


@every_cell
def test_equal_settings_are_equal_cells(name):
    make = cells.CELLS[name]
    assert make(WIDTH) == make(WIDTH, dtype=None)
    assert hash(make(WIDTH)) == hash(make(WIDTH))
    assert make(WIDTH) != make(WIDTH + 1)
    assert make(WIDTH) != make(WIDTH, dtype="bfloat16")
    assert make(WIDTH)._replace(step=lambda *at: None) != make(WIDTH)


def test_combined_cells_are_equal_where_their_parts_are():
    def deep(width, bias=0.0):
        return cells.implicit(cells.stacked([cells.gru(width, update_bias=bias), cells.lstm(3)]))

    assert deep(3) == deep(3)
    assert hash(deep(3)) == hash(deep(3))
    assert deep(3) != deep(3, bias=1.0)
    compiled = []

    @functools.partial(jax.jit, static_argnums=0)
    def width_of(cell):
        compiled.append(cell)
        return jnp.zeros(cell.hidden_size)

    width_of(deep(3)), width_of(deep(3))
    assert len(compiled) == 1


@every_cell
def test_mixed_types_are_promoted_by_one_rule(name):
    """Whatever parameters and inputs are, states and outputs are what both promote to."""
    cell = cells.CELLS[name](WIDTH)
    shapes = jax.eval_shape(lambda key: cell.init(key, INPUTS), jax.random.key(0))
    for own, given, expected in (
        ("bfloat16", "float32", "float32"),
        ("float32", "bfloat16", "float32"),
        ("bfloat16", "bfloat16", "bfloat16"),
    ):
        params = jax.tree.map(lambda leaf, own=own: jax.ShapeDtypeStruct(leaf.shape, own), shapes)
        xs = jax.ShapeDtypeStruct((TIME, INPUTS), given)
        run = functools.partial(outputs, cell)
        assert jax.eval_shape(run, params, xs).dtype == expected
    with jax.enable_x64(True):
        params = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, "float32"), shapes)
        xs = jax.ShapeDtypeStruct((TIME, INPUTS), "float64")
        assert jax.eval_shape(functools.partial(outputs, cell), params, xs).dtype == "float64"


@every_cell
def test_a_cell_computes_in_its_dtype_and_keeps_parameters_in_another(name):
    cell = cells.CELLS[name](WIDTH, dtype=jnp.bfloat16, param_dtype="float32")
    params = jax.eval_shape(lambda key: cell.init(key, INPUTS), jax.random.key(0))
    xs = jax.ShapeDtypeStruct((TIME, INPUTS), "float32")

    def loss(params, xs):
        found = outputs(cell, params, xs)
        assert found.dtype == jnp.bfloat16
        return jnp.sum(found.astype(jnp.float32))

    gradient = jax.eval_shape(jax.grad(loss), params, xs)
    assert {leaf.dtype for leaf in jax.tree.leaves(gradient)} == {jnp.dtype("float32")}
    half = cells.CELLS[name](WIDTH, param_dtype=jnp.bfloat16)
    found = jax.eval_shape(lambda key: half.init(key, INPUTS), jax.random.key(0))
    assert {leaf.dtype for leaf in jax.tree.leaves(found)} == {jnp.dtype("bfloat16")}


def test_bfloat16_values_are_near_those_of_float32():
    params = cells.gru(WIDTH).init(jax.random.key(0), INPUTS)
    xs = jax.random.normal(jax.random.key(1), (TIME, INPUTS))
    half = outputs(cells.gru(WIDTH, dtype="bfloat16"), params, xs)
    np.testing.assert_allclose(
        half.astype(jnp.float32), outputs(cells.gru(WIDTH), params, xs), atol=0.02
    )


def test_a_type_that_is_not_floating_is_refused():
    with pytest.raises(ValueError, match="dtype must be a floating type such as bfloat16"):
        cells.gru(WIDTH, dtype="int32")
    with pytest.raises(ValueError, match="param_dtype must be a floating type"):
        cells.gru(WIDTH, param_dtype="brain")
    with pytest.raises(ValueError, match=r"bias_init must be an initialiser, .* got 1"):
        cells.gru(WIDTH, bias_init=1)


def test_initialisers_draw_inputs_recurrent_matrices_and_biases():
    init = jax.nn.initializers
    cell = cells.lstm(
        WIDTH,
        kernel_init=init.constant(2.0),
        bias_init=init.constant(3.0),
        recurrent_kernel_init=init.orthogonal(),
    )
    params = cell.init(jax.random.key(0), INPUTS)
    assert np.all(params["input"] == 2)
    assert np.all(params["bias"] == 3)
    blocks = np.split(np.asarray(params["recurrent"]), 4, axis=1)
    for block in blocks:
        np.testing.assert_allclose(block.T @ block, np.eye(WIDTH), atol=1e-5)
    assert not np.allclose(blocks[0], blocks[1])
    whole = cells.igru(WIDTH, kernel_init=init.zeros).init(jax.random.key(0), INPUTS)
    assert not np.any(whole["cell"]["input"])
    assert not np.any(whole["switch"]["input"])
    own = cells.igru(WIDTH).init(jax.random.key(0), INPUTS)
    np.testing.assert_array_equal(whole["cell"]["gates"], own["cell"]["gates"])


@every_cell
def test_every_matrix_and_every_bias_is_drawn_by_what_is_given(name):
    drawn = {"kernel_init": 0, "recurrent_kernel_init": 0, "bias_init": 0}

    def counting(kind):
        def init(key, shape, dtype):
            drawn[kind] += math.prod(shape)
            return jnp.zeros(shape, dtype)

        return init

    cell = cells.CELLS[name](WIDTH, **{kind: counting(kind) for kind in drawn})
    shapes = jax.eval_shape(lambda key: cell.init(key, INPUTS), jax.random.key(0))
    leaves = jax.tree_util.tree_leaves_with_path(shapes)
    matrices = sum(leaf.size for _, leaf in leaves if leaf.ndim > 1)
    biases = sum(
        leaf.size
        for path, leaf in leaves
        if leaf.ndim == 1 and jax.tree_util.keystr(path).endswith("bias']")
    )
    assert drawn["kernel_init"] + drawn["recurrent_kernel_init"] == matrices
    assert drawn["bias_init"] == biases
    assert min(drawn["kernel_init"], biases) > 0


def test_making_cells_starts_no_backend():
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from implicit_rnn import cells; from jax._src import xla_bridge; "
            "made = [make(4) for make in cells.CELLS.values()]; "
            "made += [cells.xrnn(4, depth=3, base='convolution'), cells.stacked(made[2:3])]; "
            "assert not xla_bridge.backends_are_initialized()",
        ],
        capture_output=True,
        text=True,
    )
    assert not done.returncode, done.stderr
