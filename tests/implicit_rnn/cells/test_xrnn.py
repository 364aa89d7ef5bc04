"""The recursive unit: its equations, its relatives, and all of its steps at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import implicit_rnn
from implicit_rnn import cells, models
from implicit_rnn.cells.recurrence import in_chunks
from implicit_rnn.cells.xrnn_unit import _CHUNK as chunk_of_steps
from implicit_rnn.models.decoder import decoder
from tests.implicit_rnn.cells import equations
from tests.implicit_rnn.cells.checks import (
    assert_gradients_are_finite_differences,
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


@pytest.mark.parametrize(
    ("precision", "tolerance"),
    [("float32", 1e-4), pytest.param("float64", 1e-11, marks=pytest.mark.slow)],
)
def test_chunks_of_whole_sequences_are_one_step_after_the_other(precision, tolerance):
    """Without lengths, and with more steps than go at once; a batch, and a gradient for each."""
    long = 2 * chunk_of_steps + 3
    with jax.enable_x64(precision == "float64"):
        cell = cells.xrnn(WIDTH, depth=2, keep="chunks", skip=True)
        params = cell.init(jax.random.key(0), INPUTS)
        batch = jax.random.normal(jax.random.key(1), (2, long, INPUTS))

        def program(cell, length):
            def loss(params, x, reverse):
                run = implicit_rnn.unroll(cell, params, x, length, reverse=reverse)
                return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(run))

            def all_of(params, batch):
                return jnp.sum(jax.vmap(lambda x: loss(params, x, True))(batch))

            each = jax.vmap(jax.grad(lambda *at: loss(*at, False), (0, 1)), (None, 0))
            total = jax.value_and_grad(all_of, (0, 1))
            return jax.jit(lambda *at: (each(*at), total(*at)))(params, batch)

        found, expected = program(cell, None), program(cell._replace(run=None), long)
        assert jax.tree.leaves(found)[0].dtype == precision
        chex.assert_trees_all_close(found, expected, atol=tolerance, rtol=tolerance)


def test_no_steps_at_all_leave_the_state():
    cell = made("convolution")
    params, _ = example(cell)
    state = drawn(cell.initial_state(params))
    ys, last = implicit_rnn.unroll(cell, params, jnp.zeros((0, INPUTS)), state=state)
    assert ys.shape == (0, WIDTH)
    chex.assert_trees_all_equal(last, state)


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
