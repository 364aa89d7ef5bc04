"""Every causal cell against its equations, against flax and torch, and as an implicit one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import chex
import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import implicit_rnn
from implicit_rnn import cells
from tests.implicit_rnn.cells import equations
from tests.implicit_rnn.cells.checks import (
    assert_gradients_are_finite_differences,
    assert_implicit_solves_its_equation,
    assert_rest_is_the_step_from_zero,
    drawn,
)

TIME, LENGTH, WIDTH, INPUTS = 6, 4, 4, 3


class Case(NamedTuple):
    make: Callable[..., cells.Cell]
    equations: Callable
    options: Mapping[str, Any] = MappingProxyType({})
    inputs: int = INPUTS


CASES = {
    "rnn": Case(cells.rnn, equations.rnn),
    "rnn, relu": Case(cells.rnn, equations.relu_rnn, {"activation": "relu"}),
    "rnn, output": Case(cells.rnn, equations.output_rnn, {"output_recurrence": True}),
    "lstm": Case(cells.lstm, equations.lstm),
    "gru": Case(cells.gru, equations.gru, {"update_bias": -1.0}),
    "gru, after": Case(cells.gru, equations.gru_after, {"reset": "after"}),
    "sru": Case(cells.sru, equations.sru),
    "sru, plain": Case(cells.sru, equations.sru, {"peephole": False}, inputs=WIDTH),
    "qrnn": Case(cells.qrnn, equations.qrnn),
    "qrnn, 1": Case(cells.qrnn, equations.qrnn, {"filter_width": 1}),
    "qrnn, 3": Case(cells.qrnn, equations.qrnn, {"filter_width": 3}),
    "onlstm": Case(cells.onlstm, equations.onlstm),
    "onlstm, 2": Case(cells.onlstm, equations.onlstm, {"chunk": 2}),
    "mgu": Case(cells.mgu, equations.mgu),
    "mingru": Case(cells.mingru, equations.mingru),
}
every_case = pytest.mark.parametrize("name", list(CASES))
near_duplicates = ("rnn, relu", "qrnn, 1", "qrnn, 3", "onlstm, 2")


def example(name, width=WIDTH):
    """A cell, parameters of which none is zero, and inputs that are NaN past their length."""
    case = CASES[name]
    cell = case.make(width, **case.options)
    shapes = jax.eval_shape(lambda key: cell.init(key, case.inputs), jax.random.key(0))
    params = drawn(shapes, scale=0.5)
    xs = np.random.default_rng(1).normal(size=(TIME, case.inputs))
    xs[LENGTH:] = np.nan
    return cell, params, jnp.asarray(xs)


def unrolled(cell):
    return jax.jit(lambda params, xs: implicit_rnn.unroll(cell, params, xs, length=LENGTH))


@pytest.mark.parametrize(
    ("name", "width"),
    [(name, WIDTH) for name in CASES] + [(name, 1) for name in CASES if "," not in name],
)
def test_outputs_are_those_of_the_equations(name, width):
    with jax.enable_x64(True):
        cell, params, xs = example(name, width)
        ys, last = unrolled(cell)(params, xs)
        expected = np.stack(
            list(CASES[name].equations(jax.tree.map(np.asarray, params), np.asarray(xs), width))
        )
        np.testing.assert_allclose(ys[:LENGTH], expected[:LENGTH], atol=1e-12)
        assert np.all(ys[LENGTH:] == 0)
        np.testing.assert_array_equal(cell.output(last), ys[LENGTH - 1])


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in near_duplicates else [])
        for name in CASES
    ],
)
def test_gradients_are_finite_differences(name):
    with jax.enable_x64(True):
        assert_gradients_are_finite_differences(*example(name), LENGTH)


@every_case
def test_rest_is_the_step_from_zero(name):
    cell, params, xs = example(name)
    assert_rest_is_the_step_from_zero(cell, params, xs[:LENGTH])


@every_case
def test_retention_is_the_derivative_where_nothing_else_depends_on_the_state(name):
    cell, params, xs = example(name)
    own = ("input", "bias", "skip", "output", "output_bias", "candidate_bias")
    params = {key: leaf if key in own else jnp.zeros_like(leaf) for key, leaf in params.items()}
    state, xi = drawn(cell.initial_state(params)), cell.project(params, xs[0])
    jacobian = jax.jit(jax.jacobian(lambda state: cell.step(params, xi, state)))(state)
    kept = jax.tree.leaves(cell.split_step(params, xi, state)[1])
    # Blocks row by row, those of a component with itself on the diagonal.
    blocks = jax.tree.leaves(jacobian)[:: len(kept) + 1]
    for block, expected in zip(blocks, kept, strict=True):
        np.testing.assert_allclose(block, np.diag(expected), atol=1e-6)


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_a_plain_network_keeps_the_diagonal_of_its_jacobian(activation):
    cell = cells.rnn(WIDTH, activation=activation)
    params = cell.init(jax.random.key(0), INPUTS)
    h, xi = jnp.array([0.3, -0.5, 0.9, 0.0]), jnp.array([0.1, 0.2, -0.4, 1.0])
    jacobian = jax.jacobian(lambda h: cell.step(params, xi, h))(h)
    kept = cell.split_step(params, xi, h)[1]
    np.testing.assert_allclose(kept, np.diagonal(jacobian), atol=1e-6)
    large = {**params, "recurrent": -5 * jnp.eye(WIDTH)}
    assert np.all(np.abs(cell.split_step(large, 0 * xi, 0 * h)[1]) < 1), "or bands are singular"


def ways():
    """Each kind of cell by sweeps; all else, which compiles for longer, with the slow tests."""
    quick = ("rnn", "sru", "qrnn", "onlstm", "mgu", "mingru", "gru, after")
    for name in CASES:
        yield pytest.param(name, "banded", marks=[] if name in quick else pytest.mark.slow)
        yield pytest.param(name, "auto", marks=pytest.mark.slow)


@pytest.mark.parametrize(("name", "method"), list(ways()))
def test_implicit_of_every_cell_solves_its_equation(name, method):
    cell, _, xs = example(name)
    assert_implicit_solves_its_equation(cell, xs, LENGTH, method)


@pytest.mark.parametrize("name", ["qrnn, 3", "sru, plain", "onlstm, 2", "rnn, output"])
def test_a_sequence_can_be_cut_anywhere_and_carried_on(name):
    cell, params, xs = example(name)
    whole, last = unrolled(cell)(params, xs)
    state, pieces = None, []
    for piece in (xs[:1], xs[1:LENGTH]):
        ys, state = implicit_rnn.unroll(cell, params, piece, state=state)
        pieces.append(ys)
    np.testing.assert_allclose(jnp.concatenate(pieces), whole[:LENGTH], atol=1e-6)
    chex.assert_trees_all_close(state, last, atol=1e-6)


@pytest.mark.parametrize("name", ["mingru", "sru, plain", "qrnn"])
def test_steps_that_see_the_input_alone_are_linear_in_the_state(name):
    cell, params, xs = example(name)
    xi = cell.project(params, xs[0])
    zero = cell.initial_state(params)
    a, b = (
        zero._replace(c=jnp.arange(4.0) * k) if hasattr(zero, "c") else jnp.arange(4.0) * k
        for k in (1, -3)
    )
    both = jax.tree.map(jnp.add, a, b)
    steps = [cell.step(params, xi, state) for state in (a, b, both, zero)]
    sums = jax.tree.map(lambda a, b, both, zero: a + b - both - zero, *steps)
    assert all(np.allclose(leaf, 0, atol=1e-5) for leaf in jax.tree.leaves(sums))


def test_forward_pass_by_hand():
    """The lecture's exercise: `tanh([h, x] W)` with a 4 x 2 matrix."""
    weights = jnp.array([[1.5, -2], [0, 1], [-1, 0.5], [2, 0]])
    params = {"recurrent": weights[:2], "input": weights[2:], "bias": jnp.zeros(2)}
    ys, last = implicit_rnn.unroll(
        cells.rnn(2), params, jnp.array([[1.0, 0.0]]), state=jnp.array([0.0, 1.0])
    )
    np.testing.assert_allclose(ys[0], np.tanh([-1, 1.5]), atol=1e-6)
    np.testing.assert_array_equal(last, ys[0])


# Peers. Each map of parameters is a permutation with signs: gradients map as the weights do.


def flax_lstm(params):
    pieces = {key: jnp.split(leaf, 4, axis=-1) for key, leaf in params.items()}
    tree = {f"i{n}": {"kernel": pieces["input"][k]} for k, n in enumerate("ifgo")}
    for k, n in enumerate("ifgo"):
        tree[f"h{n}"] = {"kernel": pieces["recurrent"][k], "bias": pieces["bias"][k]}
    return tree


def flax_gru(params):
    pieces = {key: jnp.split(params[key], 3, axis=-1) for key in ("input", "bias", "recurrent")}
    for leaf in pieces.values():
        leaf[0] = -leaf[0]  # what updates here keeps there
    tree = {
        f"i{n}": {"kernel": pieces["input"][k], "bias": pieces["bias"][k]}
        for k, n in enumerate("zrn")
    }
    tree |= {f"h{n}": {"kernel": pieces["recurrent"][k]} for k, n in enumerate("zrn")}
    tree["hn"]["bias"] = params["candidate_bias"]
    return tree


def torch_lstm(params):
    return {
        "weight_ih_l0": params["input"].T,
        "weight_hh_l0": params["recurrent"].T,
        "bias_ih_l0": params["bias"],
        "bias_hh_l0": 0 * params["bias"],
    }


def torch_gru(params):
    def ordered(leaf):
        z, r, n = jnp.split(leaf, 3, axis=-1)
        return jnp.concatenate([r, -z, n], axis=-1).T

    zero = 0 * params["candidate_bias"]
    return {
        "weight_ih_l0": ordered(params["input"]),
        "weight_hh_l0": ordered(params["recurrent"]),
        "bias_ih_l0": ordered(params["bias"]),
        "bias_hh_l0": jnp.concatenate([zero, zero, params["candidate_bias"]]),
    }


def ours(name, lengths):
    """Parameters, a batch, outputs, last states, and gradients of a loss over the outputs."""
    cell, params, _ = example(name)
    xs = jax.random.normal(jax.random.key(1), (len(lengths), TIME, INPUTS))

    def loss(params, xs):
        ys, last = jax.vmap(lambda x, n: implicit_rnn.unroll(cell, params, x, length=n))(
            xs, jnp.array(lengths)
        )
        return jnp.sum(jnp.sin(ys)), (ys, last)

    gradients, (ys, last) = jax.jit(jax.grad(loss, (0, 1), has_aux=True))(params, xs)
    return params, xs, ys, last, gradients


@pytest.mark.parametrize(
    ("name", "peer", "mapped"),
    [
        ("lstm", flax.linen.OptimizedLSTMCell, flax_lstm),
        pytest.param("lstm", flax.linen.LSTMCell, flax_lstm, marks=pytest.mark.slow),
        ("gru, after", flax.linen.GRUCell, flax_gru),
    ],
)
def test_the_weights_of_flax_give_the_outputs_and_gradients_of_flax(name, peer, mapped):
    with jax.enable_x64(True):
        lengths = [TIME, 1, 4]
        params, xs, ys, last, gradients = ours(name, lengths)
        module = flax.linen.RNN(peer(WIDTH, param_dtype=jnp.float64), return_carry=True)
        inside = np.arange(TIME)[:, None] < np.array(lengths)[:, None, None]

        def loss(weights, xs):
            carry, theirs = module.apply(
                {"params": {"cell": weights}}, xs, seq_lengths=jnp.array(lengths)
            )
            theirs = jnp.where(inside, theirs, 0)  # flax leaves what is past the length
            return jnp.sum(jnp.sin(theirs)), (theirs, carry)

        expected, (theirs, carry) = jax.jit(jax.grad(loss, (0, 1), has_aux=True))(
            mapped(params), xs
        )
        np.testing.assert_allclose(ys, theirs, atol=1e-12)
        if isinstance(last, cells.LSTMState):
            last = last.c, last.h
        chex.assert_trees_all_close(last, carry, atol=1e-12)
        chex.assert_trees_all_close((mapped(gradients[0]), gradients[1]), expected, atol=1e-11)


@pytest.mark.parametrize(
    ("name", "peer", "mapped"), [("lstm", "LSTM", torch_lstm), ("gru, after", "GRU", torch_gru)]
)
def test_the_weights_of_torch_give_the_outputs_and_gradients_of_torch(name, peer, mapped):
    torch = pytest.importorskip("torch")
    with jax.enable_x64(True):
        lengths = [TIME, 1, 4]
        params, xs, ys, _, gradients = ours(name, lengths)
        layer = getattr(torch.nn, peer)(INPUTS, WIDTH, batch_first=True).double()
        with torch.no_grad():
            for key, value in mapped(params).items():
                getattr(layer, key).copy_(torch.from_numpy(np.array(value)))
        given = torch.from_numpy(np.array(xs)).requires_grad_()
        packed = torch.nn.utils.rnn.pack_padded_sequence(
            given, torch.tensor(lengths), batch_first=True, enforce_sorted=False
        )
        theirs, _ = torch.nn.utils.rnn.pad_packed_sequence(
            layer(packed)[0], batch_first=True, total_length=TIME
        )
        torch.sin(theirs).sum().backward()
        np.testing.assert_allclose(ys, theirs.detach().numpy(), atol=1e-12)
        np.testing.assert_allclose(gradients[1], given.grad.numpy(), atol=1e-11)
        for key, value in mapped(gradients[0]).items():
            expected = getattr(layer, key).grad.numpy()
            if key == "bias_hh_l0":  # the rest of it is added to the other bias
                expected = np.where(np.asarray(value) == 0, 0, expected)
            np.testing.assert_allclose(value, expected, atol=1e-11)


def test_two_leading_batch_dimensions_are_two_vmaps():
    cell, params, _ = example("qrnn")
    xs = jax.random.normal(jax.random.key(1), (2, 3, TIME, INPUTS))
    length = jnp.array([[6, 0, 1], [3, 5, 2]])

    def run(x, n):
        ys, last = implicit_rnn.unroll(cell, params, x, length=n)
        both, _ = implicit_rnn.bidirectional(cell, cell, (params, params), x, length=n)
        return ys, last, both

    nested = jax.jit(jax.vmap(jax.vmap(run)))(xs, length)
    flat = jax.jit(jax.vmap(run))(xs.reshape(6, TIME, INPUTS), length.reshape(6))
    chex.assert_trees_all_close(
        jax.tree.map(lambda leaf: leaf.reshape(6, *leaf.shape[2:]), nested), flat, atol=1e-6
    )


def test_two_leading_batch_dimensions_of_a_solve():
    cell = cells.igru(WIDTH)
    params = cell.init(jax.random.key(0), INPUTS)
    xs = jax.random.normal(jax.random.key(1), (2, 3, TIME, INPUTS))
    length = jnp.array([[6, 0, 1], [3, 5, 2]])
    run = jax.vmap(
        lambda x, n: implicit_rnn.implicit(cell, params, x, length=n, method="banded", rtol=1e-6)
    )
    nested, info = jax.jit(jax.vmap(run))(xs, length)
    flat, same = jax.jit(run)(xs.reshape(6, TIME, INPUTS), length.reshape(6))
    np.testing.assert_allclose(nested.reshape(flat.shape), flat, atol=1e-5)
    np.testing.assert_array_equal(info.converged.reshape(6), same.converged)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: cells.rnn(4, activation="sine"), '"tanh" or "relu"'),
        (lambda: cells.gru(4, reset="never"), '"before" or "after"'),
        (lambda: cells.qrnn(4, filter_width=0), "at least 1"),
        (lambda: cells.onlstm(4, chunk=3), "chunk must divide the width 4"),
    ],
)
def test_bad_options_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
