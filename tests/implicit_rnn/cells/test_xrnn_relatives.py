"""A recursive unit of depth one is a cell that others have published, and one like any other."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.flatten_util import ravel_pytree

import implicit_rnn
from implicit_rnn import cells
from tests.implicit_rnn.cells import equations
from tests.implicit_rnn.cells.checks import (
    assert_implicit_solves_its_equation,
    assert_rest_is_the_step_from_zero,
    drawn,
)
from tests.implicit_rnn.cells.equations import sigmoid
from tests.implicit_rnn.cells.test_xrnn import (
    CASES,
    INPUTS,
    LENGTH,
    TIME,
    WIDTH,
    but_slow,
    example,
    made,
)


def relative(inputs=INPUTS, **options):
    cell = cells.xrnn(WIDTH, depth=1, carries="memory", **options)
    params, xs = example(cell, inputs)
    ys, _ = implicit_rnn.unroll(cell, params, xs, length=LENGTH)
    return jax.tree.map(np.asarray, params["base"]), np.asarray(xs[:LENGTH]), ys[:LENGTH]


def test_linear_base_is_an_sru_without_highway_and_peephole():
    """`c = f c_prev + (1 - f) W x`, `h = r c`: the `f` of SRU is one minus that of X-RNN."""
    with jax.enable_x64(True):
        p, xs, ys = relative(candidate="identity")
        of_f, of_r, of_x = np.split(p["input"], 3, axis=1)
        b_f, b_r, b_x = np.split(p["bias"], 3)
        c = np.zeros(WIDTH)
        for x, y in zip(xs, ys, strict=True):
            f, r = sigmoid(-(x @ of_f + b_f)), sigmoid(x @ of_r + b_r)
            c = f * c + (1 - f) * (x @ of_x + b_x)
            np.testing.assert_allclose(y, r * c, atol=1e-12)


@pytest.mark.parametrize("width", [1, 3])
def test_convolution_base_is_a_qrnn(width):
    """With fo-pooling; the `f` of QRNN is one minus that of X-RNN."""
    with jax.enable_x64(True):
        p, xs, ys = relative(base="convolution", filter_width=width)
        padded = np.concatenate([np.zeros((width - 1, INPUTS)), xs])
        # The filters as one tensor [width, in, 3 d], the earliest input first.
        filters = np.stack(np.split(p["input"], width, axis=1)[::-1])
        scores = np.stack(
            [np.einsum("ki,kio->o", padded[t : t + width], filters) for t in range(len(xs))]
        )
        f, o, z = np.split(scores + p["bias"], 3, axis=1)
        f, o, z = sigmoid(-f), sigmoid(o), np.tanh(z)
        c = np.zeros(WIDTH)
        for t in range(len(xs)):
            c = f[t] * c + (1 - f[t]) * z[t]
            np.testing.assert_allclose(ys[t], o[t] * c, atol=1e-12)


@pytest.mark.parametrize(("base", "network"), [("lstm", equations.lstm), ("gru", equations.gru)])
def test_recurrent_base_is_a_recurrently_controlled_network(base, network):
    """RCRN: two networks control the gates with which a third one's outputs are pooled."""
    with jax.enable_x64(True):
        p, xs, ys = relative(base=base, candidate="identity")
        control = [np.stack(list(network(p[part], xs, WIDTH))) for part in ("forget", "output")]
        listened = np.stack(list(network(p["candidate"], xs, WIDTH)))
        c = np.zeros(WIDTH)
        for t in range(len(xs)):
            f, o = sigmoid(-control[0][t]), sigmoid(control[1][t])
            c = f * c + (1 - f) * listened[t]
            np.testing.assert_allclose(ys[t], o * c, atol=1e-12)


@pytest.mark.parametrize("name", ["linear", "state", "convolution", "lstm"])
def test_rest_is_the_step_from_zero(name):
    cell = made(name)
    params, xs = example(cell)
    assert_rest_is_the_step_from_zero(cell, params, xs[:LENGTH])


@pytest.mark.parametrize("name", ["linear", "convolution"])
def test_retention_is_the_derivative_of_a_state_with_respect_to_itself(name):
    cell = made(name)
    params, xs = example(cell)
    state, xi = drawn(cell.initial_state(params)), cell.project(params, xs[0])
    flat, unravel = ravel_pytree(state)

    @jax.jit
    @jax.jacobian
    def slopes(flat):
        return ravel_pytree(cell.step(params, xi, unravel(flat)))[0]

    # The states of a unit one after the other: a block of rows and columns each.
    blocks = slopes(flat).reshape(flat.size // WIDTH, WIDTH, flat.size // WIDTH, WIDTH)
    kept = jax.tree.leaves(cell.split_step(params, xi, state)[1])
    for i, expected in enumerate(kept):
        np.testing.assert_allclose(blocks[i, :, i], np.diag(expected), atol=1e-6)


@pytest.mark.parametrize("name", but_slow(["linear", "static", "lstm"], "static", "lstm"))
def test_implicit_recursive_unit_solves_its_equation(name):
    cell = cells.xrnn(WIDTH, **CASES[name][0] | {"depth": 2})
    assert_implicit_solves_its_equation(cell, example(cell)[1], LENGTH, "banded")


def test_programs_for_accelerators_have_no_loop():
    cell = cells.xrnn(WIDTH, **CASES["convolution"][0], keep="everything")
    params = jax.eval_shape(lambda key: cell.init(key, INPUTS), jax.random.key(0))

    @jax.jit
    @jax.grad
    def program(params, xs, length):
        run = jax.vmap(lambda x, n: implicit_rnn.unroll(cell, params, x, length=n)[0])
        return jnp.sum(jnp.sin(run(xs, length)))

    shapes = (
        jax.ShapeDtypeStruct((2, TIME, INPUTS), jnp.float32),
        jax.ShapeDtypeStruct((2,), jnp.int32),
    )
    exported = export.export(program, platforms=["cuda", "tpu"])(params, *shapes)
    assert exported.platforms == ("cuda", "tpu")
    assert "stablehlo.while" not in exported.mlir_module()
