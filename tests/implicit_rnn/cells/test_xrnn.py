"""The recursive unit: its equations, its relatives, and all of its steps at once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.flatten_util import ravel_pytree

import implicit_rnn
from implicit_rnn import cells, models
from implicit_rnn.cells.recurrence import in_chunks
from implicit_rnn.experiments import plots
from implicit_rnn.models.decoder import decoder
from tests.implicit_rnn.cells import equations
from tests.implicit_rnn.cells.checks import (
    assert_gradients_are_finite_differences,
    assert_implicit_solves_its_equation,
    assert_rest_is_the_step_from_zero,
    drawn,
)
from tests.implicit_rnn.cells.equations import sigmoid

TIME, LENGTH, WIDTH, INPUTS = 6, 4, 3, 2
LETTERS = {"forget": "L", "output": "R"}


# Equations of the base units in numpy: `(params, xs, t, h before) -> f, o and z` before sigmoid
# and tanh.


def linear(p, xs, t, h):
    return np.split(xs[t] @ p["input"] + p["bias"], 3)


def linear_state(p, xs, t, h):
    return np.split(xs[t] @ p["input"] + h @ p["recurrent"] + p["bias"], 3)


def convolution(p, xs, t, h):
    taps = np.split(p["input"], p["input"].shape[1] // (3 * WIDTH), axis=1)
    return np.split(sum(xs[t - j] @ tap for j, tap in enumerate(taps) if j <= t) + p["bias"], 3)


def three(outputs):
    """A base unit of three networks of their own."""
    parts = ("forget", "output", "candidate")
    return lambda p, xs, t, h: [list(outputs(p[part], xs[: t + 1], WIDTH))[-1] for part in parts]


def recursion(options, p, xs, t):
    """Alpha and beta of a unit at a step."""
    kind = options.get("recursion", "dynamic")
    if not isinstance(kind, str):
        return np.broadcast_to(kind, 2)
    if kind == "scalar":
        found = p["recursion"]
    else:
        seen = xs[t] if kind == "dynamic" else sum(xs)
        found = seen @ p["recursion"]["weights"] + p["recursion"]["bias"]
    return sigmoid(found) if options.get("squash") else found


def by_hand(base, options, p, xs):
    """Outputs of a unit, from those of the units below it."""
    below = [by_hand(base, options, p[child], xs) for child in LETTERS if child in p]
    bend = {"identity": lambda a: a, "tanh": np.tanh}[options.get("candidate", "tanh")]
    h, c, outputs = np.zeros(WIDTH), np.zeros(WIDTH), []
    for t, x in enumerate(xs):
        f, o, z = base(p["base"], xs, t, h)
        if below:
            alpha, beta = recursion(options, p, xs, t)
            f = alpha * below[0][t] + (1 - alpha) * f
            o = beta * below[1][t] + (1 - beta) * o
        before = c if options.get("carries") == "memory" else h
        c = (1 - sigmoid(f)) * before + sigmoid(f) * bend(z)
        h = sigmoid(o) * c
        if options.get("skip"):
            h = h + (x @ p["skip"] if "skip" in p else x)
        outputs.append(h)
    return outputs


# Options of a cell, and the equations of its base unit.
CASES: Mapping[str, tuple[dict[str, Any], Any]] = {
    "linear": ({"depth": 3}, linear),
    "depth 1": ({"depth": 1, "skip": True}, linear),
    "static": ({"recursion": "static", "skip": True, "squash": True}, linear),
    "state": ({"base": "linear_state", "skip": True, "recursion": 0.3}, linear_state),
    "convolution": (
        {"base": "convolution", "filter_width": 3, "carries": "memory", "skip": True},
        convolution,
    ),
    "rnn": ({"base": "rnn", "recursion": "scalar"}, three(equations.rnn)),
    "gru": ({"base": "gru", "recursion": "scalar", "squash": True}, three(equations.gru)),
    "lstm": ({"base": "lstm", "carries": "memory", "squash": True}, three(equations.lstm)),
    "mingru": (
        {"base": cells.mingru(WIDTH), "candidate": "identity", "recursion": (0.7, -0.2)},
        three(equations.mingru),
    ),
}


def but_slow(names, *slow):
    """Names as parameters, some of which are for the slow tests."""
    return [pytest.param(n, marks=pytest.mark.slow if n in slow else []) for n in names]


def example(cell, inputs=INPUTS):
    """Parameters, and inputs that are NaN past their length."""
    params = drawn(jax.eval_shape(lambda key: cell.init(key, inputs), jax.random.key(0)))
    xs = np.random.default_rng(1).normal(size=(TIME, inputs))
    xs[LENGTH:] = np.nan
    return params, jnp.asarray(xs)


def made(name):
    return cells.xrnn(WIDTH, **CASES[name][0])


@pytest.mark.parametrize("name", list(CASES))
def test_outputs_are_those_of_the_equations(name):
    options, base = CASES[name]
    with jax.enable_x64(True):
        cell = made(name)
        params, xs = example(cell)
        ys, last = jax.jit(lambda p, x: implicit_rnn.unroll(cell, p, x, length=LENGTH))(params, xs)
        expected = by_hand(base, options, jax.tree.map(np.asarray, params), np.asarray(xs[:LENGTH]))
        np.testing.assert_allclose(ys[:LENGTH], np.stack(expected), atol=1e-12)
        assert np.all(ys[LENGTH:] == 0)
        np.testing.assert_array_equal(last.h, ys[LENGTH - 1])


def in_fours(cell):
    """The same cell, four steps at once."""
    return cell._replace(run=in_chunks(cell.run, 4))


# What can do all steps at once.
AT_ONCE = {
    "in chunks": lambda: in_fours(cells.xrnn(WIDTH, **CASES["convolution"][0] | {"depth": 1})),
    "a tree in chunks": lambda: in_fours(cells.xrnn(WIDTH, depth=2, keep="everything")),
    "keeping inputs": lambda: cells.xrnn(WIDTH, depth=2, keep="inputs"),
    "keeping everything": lambda: cells.xrnn(WIDTH, depth=2, keep="everything"),
    "convolution": lambda: cells.xrnn(WIDTH, **CASES["convolution"][0] | {"depth": 1}),
    "mingru as base": lambda: cells.xrnn(WIDTH, depth=1, base=cells.mingru(WIDTH)),
    "depth 3": lambda: made("linear"),
    "static": lambda: made("static"),
    "mingru": lambda: cells.mingru(WIDTH),
    "sru": lambda: cells.sru(WIDTH, peephole=False),
    "qrnn": lambda: cells.qrnn(WIDTH, filter_width=3),
}


@pytest.mark.parametrize(
    "name",
    but_slow(
        AT_ONCE,
        "a tree in chunks",
        "keeping everything",
        "convolution",
        "depth 3",
        "static",
        "mingru",
    ),
)
def test_all_steps_at_once_are_one_step_after_the_other(name):
    """Values and gradients, in both directions, for every length, from a given state."""
    lengths = jnp.array([0, 1, LENGTH, TIME])
    with jax.enable_x64(True):
        cell = AT_ONCE[name]()
        assert cell.run is not None
        params, xs = example(cell)
        batch = jnp.stack([xs, xs, xs, xs.at[LENGTH:].set(0.5)])
        batch = batch.at[1, 1:].set(jnp.nan)
        state = drawn(cell.initial_state(params), seed=2)

        def program(cell):
            def one(params, x, n, state, reverse):
                return implicit_rnn.unroll(cell, params, x, length=n, state=state, reverse=reverse)

            def loss(at):
                params, batch, state = at
                found = [
                    jax.vmap(lambda x, n, r=r: one(params, x, n, state, r))(batch, lengths)
                    for r in (False, True)
                ]
                weighed = jax.tree.map(
                    lambda leaf: jnp.sum(jnp.sin(leaf + jnp.arange(leaf.size).reshape(leaf.shape))),
                    found,
                )
                return sum(jax.tree.leaves(weighed)), found

            return jax.jit(jax.grad(loss, has_aux=True))((params, batch, state))

        at_once, one_by_one = program(cell), program(cell._replace(run=None))
        chex.assert_trees_all_close(at_once, one_by_one, atol=1e-11)
        gradient, found = at_once
        assert np.all(gradient[1][2, LENGTH:] == 0)
        for _, last in found:
            chex.assert_trees_all_equal(jax.tree.map(lambda leaf: leaf[0], last), state)


def test_no_steps_at_all_leave_the_state():
    cell = made("convolution")
    params, _ = example(cell)
    state = drawn(cell.initial_state(params))
    ys, last = implicit_rnn.unroll(cell, params, jnp.zeros((0, INPUTS)), state=state)
    assert ys.shape == (0, WIDTH)
    chex.assert_trees_all_equal(last, state)


def test_chunks_and_truncation_take_steps_one_by_one():
    cell = made("depth 1")
    params, xs = example(cell)
    broken = cell._replace(run=lambda *at: pytest.fail("all at once"))
    expected, _ = implicit_rnn.unroll(cell, params, xs, length=LENGTH)
    for setting in ({"chunk": 2}, {"truncate": 2}):
        ys, _ = implicit_rnn.unroll(broken, params, xs, length=LENGTH, **setting)
        np.testing.assert_allclose(ys, expected, atol=1e-6)


@pytest.mark.parametrize(
    "name", but_slow(["static", "lstm", "convolution", "state"], "convolution", "state")
)
def test_gradients_are_finite_differences(name):
    with jax.enable_x64(True):
        cell = made(name)
        assert_gradients_are_finite_differences(cell, *example(cell), LENGTH)


@pytest.mark.parametrize("base", ["linear", "linear_state"])
def test_a_candidate_may_be_learnt(base):
    def loss(slope):
        cell = cells.xrnn(WIDTH, base=base, candidate=lambda scores: slope * jnp.tanh(scores))
        params, xs = example(cell)
        return jnp.sum(implicit_rnn.unroll(cell, params, xs, length=LENGTH)[0] ** 2)

    with jax.enable_x64(True):
        slope, step = jnp.asarray(0.7), 1e-5
        expected = (loss(slope + step) - loss(slope - step)) / (2 * step)
        np.testing.assert_allclose(jax.jit(jax.grad(loss))(slope), expected, rtol=1e-7)


def kept_by_steps(depth):
    """Arrays `[time, width]` that a gradient through steps one by one keeps."""
    long, width = 101, 7
    cell = cells.xrnn(width, depth=depth, base="linear_state")
    params = jax.eval_shape(lambda key: cell.init(key, INPUTS), jax.random.key(0))

    def backward(params, xs):
        return jax.vjp(lambda *at: implicit_rnn.unroll(cell, *at)[0], params, xs)[1]

    pull = jax.eval_shape(backward, params, jax.ShapeDtypeStruct((long, INPUTS), jnp.float32))
    return sum(leaf.size == long * width and leaf.dtype != bool for leaf in jax.tree.leaves(pull))


def test_steps_one_by_one_keep_few_arrays_of_a_unit():
    # A state, four factors and the slope of the candidate; above the maximum depth two differences;
    # and once a mask of the outputs.
    assert kept_by_steps(1) <= 6 + 1
    assert kept_by_steps(3) <= 6 * 7 + 2 * 3 + 1


def count(tree):
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_shapes_and_numbers_of_parameters_follow_from_the_depth(depth):
    units, inner = 2**depth - 1, 2 ** (depth - 1) - 1
    n, d = INPUTS, WIDTH
    weighing = {"dynamic": 2 * (n + 1), "static": 2 * (n + 1), "scalar": 2, 0.5: 0}
    for kind, weights in weighing.items():
        cell = cells.xrnn(d, depth=depth, recursion=kind, skip=True)
        params = jax.eval_shape(lambda key, cell=cell: cell.init(key, n), jax.random.key(0))
        assert count(params) == units * (3 * d * (n + 1) + n * d) + inner * weights
        ys, last = jax.eval_shape(
            lambda p, x, cell=cell: implicit_rnn.unroll(cell, p, x),
            params,
            jax.ShapeDtypeStruct((TIME, n), jnp.float32),
        )
        assert ys.shape == (TIME, d)
        assert [leaf.shape for leaf in jax.tree.leaves(last)] == [(d,)] * units
    per_unit = {
        "linear_state": 3 * d * (n + 1 + d),
        "convolution": 3 * d * (4 * n + 1),
        "rnn": 3 * d * (n + d + 1),
        "gru": 9 * d * (n + d + 1),
        "lstm": 12 * d * (n + d + 1),
    }
    for base, expected in per_unit.items():
        cell = cells.xrnn(d, depth=depth, base=base, recursion=0.5, filter_width=4)
        params = jax.eval_shape(lambda key, cell=cell: cell.init(key, n), jax.random.key(0))
        assert count(params) == units * expected


def test_every_unit_starts_with_numbers_of_its_own():
    params = cells.xrnn(WIDTH, depth=2).init(jax.random.key(0), INPUTS)
    leaves = [p for p in jax.tree.leaves(params) if p.shape == (INPUTS, 3 * WIDTH)]
    assert len({float(leaf[0, 0]) for leaf in leaves}) == len(leaves) == 3


def test_biases_begin_where_they_are_told_to():
    cell = cells.xrnn(WIDTH, update_bias=(-3, 1), output_bias=2)
    params = cell.init(jax.random.key(0), INPUTS)
    expected = [-3, -1, 1, 2, 2, 2, 0, 0, 0]
    for unit in (params, params["forget"], params["output"]):
        np.testing.assert_allclose(unit["base"]["bias"], expected)


@pytest.mark.parametrize("kind", ["dynamic", "scalar"])
def test_parameters_have_the_types_that_updates_give_them(kind):
    """A weak type would go with the first update, and every program be compiled once more."""
    cell = cells.xrnn(WIDTH, recursion=kind)
    params = jax.eval_shape(lambda key: cell.init(key, INPUTS), jax.random.key(0))
    assert not any(leaf.weak_type for leaf in jax.tree.leaves(params))


def sequences_kept(depth, keep):
    """How many activations of the whole sequence wait for the backward pass."""
    cell = cells.xrnn(WIDTH, depth=depth, keep=keep)
    long = 101
    params = jax.eval_shape(lambda key: cell.init(key, INPUTS), jax.random.key(0))

    def backward(params, xs):
        return jax.vjp(lambda *at: implicit_rnn.unroll(cell, *at)[0], params, xs)[1]

    pull = jax.eval_shape(backward, params, jax.ShapeDtypeStruct((long, INPUTS), jnp.float32))
    activations = [
        leaf.size / (long * WIDTH)
        for leaf in jax.tree.leaves(pull)
        if leaf.shape[-2:] == (long, WIDTH) and leaf.dtype != bool
    ]
    return sum(activations)


def test_a_gradient_does_not_keep_a_copy_of_activations_for_every_unit():
    assert sequences_kept(4, "inputs") == sequences_kept(1, "inputs") <= 1
    assert sequences_kept(4, "chunks") == sequences_kept(1, "chunks") <= 1
    on_cpu = jax.default_backend() == "cpu"
    for depth, elsewhere in ((4, "inputs"), (3, "outputs")):
        expected = sequences_kept(depth, "chunks" if on_cpu else elsewhere)
        assert sequences_kept(depth, "auto") == expected
    # Of each unit but the root what it gives, and nothing else.
    assert sequences_kept(4, "outputs") == sequences_kept(1, "outputs") + 14
    assert sequences_kept(4, "everything") > 5 * 15


@pytest.mark.slow
def test_peak_memory_at_depth_4_is_a_part_of_that_of_all_activations():
    def peak(keep):
        cell = cells.xrnn(8, depth=4, keep=keep)
        params = cell.init(jax.random.key(0), INPUTS)
        loss = jax.grad(lambda p, x: jnp.sum(jnp.sin(implicit_rnn.unroll(cell, p, x)[0])))
        program = jax.jit(loss).lower(params, jnp.zeros((256, INPUTS))).compile()
        return program.memory_analysis().temp_size_in_bytes

    assert peak("inputs") < 0.5 * peak("everything")


def influence(name):
    """Which inputs `[TIME]` each output `[TIME]` depends on."""
    cell = made(name)
    params, _ = example(cell)
    xs = jax.random.normal(jax.random.key(0), (TIME, INPUTS))
    slopes = jax.jit(jax.jacobian(lambda x: implicit_rnn.unroll(cell, params, x)[0]))(xs)
    return np.abs(slopes).max(axis=(1, 3)) > 0


@pytest.mark.parametrize("name", but_slow(["linear", "convolution", "lstm"], "lstm"))
def test_outputs_do_not_see_later_inputs(name):
    assert made(name).causal
    np.testing.assert_array_equal(influence(name), np.tri(TIME, dtype=bool))


def test_static_recursion_sees_the_whole_sequence():
    assert np.all(influence("static"))


def test_static_recursion_is_refused_where_inputs_are_yet_to_be_made():
    cell = made("static")
    assert cell.whole
    assert not cell.causal
    assert not models.encoder("xrnn", WIDTH, recursion="static").causal
    params, xs = example(cell)
    takers = {
        "causal cells; xrnn looks ahead": lambda: models.language_model([cell], 5),
        "causal cell; this xrnn depends on the whole sequence": lambda: decoder(cell, 5, 2, 2),
        "xrnn looks ahead: use a tagger": lambda: models.output_recurrence(cell, 2, 2),
        "only a causal cell": lambda: implicit_rnn.stateful([cell], [params], xs, [None]),
        "stacked takes causal cells": lambda: cells.stacked([cell]),
        "depends on the whole sequence": lambda: cell.project(params, xs[0]),
    }
    for message, take in takers.items():
        with pytest.raises(ValueError, match=message):
            take()


def test_static_recursion_without_units_below_is_causal():
    assert cells.xrnn(WIDTH, depth=1, recursion="static").causal


# Relatives at depth 1, each by its own equations.


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


def test_recursion_weights_are_named_by_their_place_in_the_tree():
    cell = made("linear")
    params, xs = example(cell)
    weights = cells.recursion_weights(cell, params, xs, length=LENGTH)
    assert list(weights) == ["L", "R", "LL", "LR", "RL", "RR"]
    of_left = params["forget"]["recursion"]
    expected = xs[:LENGTH] @ of_left["weights"] + of_left["bias"]
    np.testing.assert_allclose(weights["LL"][:LENGTH], expected[:, 0], atol=1e-6)
    np.testing.assert_allclose(weights["LR"][:LENGTH], expected[:, 1], atol=1e-6)
    assert all(np.all(found[LENGTH:] == 0) for found in weights.values())
    other = cells.gru(WIDTH)
    with pytest.raises(ValueError, match="gru is none"):
        cells.recursion_weights(other, example(other)[0], xs)


def test_static_weights_are_those_of_the_steps_that_count():
    cell = made("static")
    params, xs = example(cell)
    weights = cells.recursion_weights(cell, params, xs, length=LENGTH)
    own = params["recursion"]
    expected = sigmoid(np.sum(xs[:LENGTH], axis=0) @ own["weights"] + own["bias"])
    np.testing.assert_allclose(weights["R"][:LENGTH], np.full(LENGTH, expected[1]), atol=1e-6)


def test_recursion_weights_are_drawn(tmp_path: Path):
    cell = cells.xrnn(WIDTH, depth=4)
    params, _ = example(cell)
    xs = jax.random.normal(jax.random.key(0), (TIME, INPUTS))
    weights = cells.recursion_weights(cell, params, xs)
    path = plots.recursion(weights, tmp_path / "made" / "figure.png", "A title")
    assert path.read_bytes().startswith(b"\x89PNG")
    plots.recursion({}, path, "Depth 1 has none")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"depth": 0}, "depth must be an integer of at least 1"),
        ({"base": "tree"}, "base must be one of .*'linear_state'.* or a cell"),
        ({"base": cells.gru(5)}, "must be 3 wide"),
        ({"base": cells.igru(3)}, "a base unit is causal"),
        ({"base": "convolution", "filter_width": 0}, "filter_width must be at least 1"),
        ({"recursion": "always"}, "a number or a pair of numbers"),
        ({"recursion": (1, 2, 3)}, "a number or a pair of numbers"),
        ({"candidate": "sine"}, "candidate must be in"),
        ({"carries": "nothing"}, '"output" or "memory"'),
        ({"keep": "half"}, "keep must be"),
        ({"keep": "chunks", "recursion": "static"}, "cannot go in chunks"),
        ({"update_bias": (1, 2, 3)}, "a number or a pair of numbers"),
        ({"base": "gru", "output_bias": 1.0}, "no bias of its own"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        cells.xrnn(3, **options)
