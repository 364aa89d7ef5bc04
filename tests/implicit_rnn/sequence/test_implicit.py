"""The implicit layer: its equation, its gradients, its padding and its failures."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import implicit_rnn
from implicit_rnn import cells
from implicit_rnn.cells.base import neighbour
from implicit_rnn.cells.implicit import share_of_two
from implicit_rnn.sequence.equation import equation_map, equation_of, extended

TIME, WIDTH, INPUTS = 7, 4, 3
CELLS = {
    "igru": cells.igru(WIDTH),
    "ilstm": cells.ilstm(WIDTH),
    "irnn": cells.irnn(WIDTH),
    "contractive": cells.contractive(WIDTH, boundary="learnt"),
    "learnt": cells.igru(WIDTH, boundary="learnt"),
    "wide": cells.igru(WIDTH, stencil=(-2, -1, 1, 3)),
    "wide_irnn": cells.irnn(WIDTH, stencil=(-1, 1, 2)),
}
FEW = [
    name
    if name in ("igru", "ilstm", "irnn", "contractive")
    else pytest.param(name, marks=pytest.mark.slow)
    for name in CELLS
]
METHODS = [
    "auto", "banded", "newton", "newton_bicgstab", "polynomial", "picard", "anderson", "broyden",
]  # fmt: skip


def example(cell, time=TIME, inputs=INPUTS, seed=0, scale=1.0):
    """Random parameters (biases and boundaries too) and inputs."""
    keys = jax.random.split(jax.random.key(seed), 3)
    params = cell.init(keys[0], inputs)
    noise = [
        0.3 * jax.random.normal(k, leaf.shape)
        for k, leaf in zip(
            jax.random.split(keys[1], len(jax.tree.leaves(params))),
            jax.tree.leaves(params),
            strict=True,
        )
    ]
    shift = jax.tree.unflatten(jax.tree.structure(params), noise)
    params = jax.tree.map(lambda p, n: scale * p + (n if p.ndim == 1 else 0 * p), params, shift)
    return params, jax.random.normal(keys[2], (time, inputs))


def run(cell, params, xs, **settings):
    """`implicit` as one compiled program."""
    return jax.jit(lambda params, xs: implicit_rnn.implicit(cell, params, xs, **settings))(
        params, xs
    )


def residual(cell, params, xs, states):
    """`F(H) - H` from `step` alone, time by time: no sweep, no mask, no bands."""
    xi = cell.project(params, xs)
    time = xs.shape[0]

    def at(t):
        if t < 0:
            return cell.initial_state(params)
        if t >= time:
            return cell.final_state(params)
        return jax.tree.map(lambda leaf: leaf[t], states)

    def row(t):
        here = jax.tree.map(lambda leaf: leaf[t], xi)
        return cell.step(params, here, *[at(t + k) for k in cell.stencil])

    rows = [row(t) for t in range(time)]
    images = jax.tree.map(lambda *leaves: jnp.stack(leaves), *rows)
    return jax.tree.map(jnp.subtract, images, states)


def dense_solution(cell, params, xs):
    """Newton with a dense Jacobian in float64."""
    zero = jax.tree.map(
        lambda leaf: jnp.zeros((xs.shape[0], *leaf.shape)), cell.initial_state(params)
    )
    flat, unravel = ravel_pytree(zero)

    def g(flat):
        return ravel_pytree(residual(cell, params, xs, unravel(flat)))[0]

    g, jacobian = jax.jit(g), jax.jit(jax.jacobian(g))
    for _ in range(30):
        flat = flat - jnp.linalg.solve(jacobian(flat), g(flat))
    assert float(jnp.abs(g(flat)).max()) < 1e-12
    return unravel(flat)


def exact(cell):
    """A backward solve to rounding level that is cheap to compile."""
    return implicit_rnn.sequence.banded_adjoint(cell, rtol=1e-12, cascade=False)


def sigmoid(a):
    return 1 / (1 + np.exp(-a))


def test_igru_is_equation_2_of_the_paper():
    cell = CELLS["igru"]
    params, xs = example(cell)
    before, after = np.random.default_rng(0).standard_normal((2, WIDTH))
    got = cell.step(
        params, jax.tree.map(lambda leaf: leaf[0], cell.project(params, xs)), before, after
    )
    p = jax.tree.map(np.asarray, params)
    x, d, inner, switch = np.asarray(xs[0]), WIDTH, p["cell"], p["switch"]
    wz, wr, w = np.split(inner["input"], 3, axis=1)
    bz, br, b = np.split(inner["bias"], 3)
    uz, ur = np.split(inner["gates"], 2, axis=1)
    wp, wn = np.split(switch["input"], 2, axis=1)
    up, un = np.split(switch["recurrent"], 2, axis=1)
    bp, bn = np.split(switch["bias"], 2)
    sp, sn = sigmoid(x @ wp + before @ up + bp), sigmoid(x @ wn + after @ un + bn)
    s = sp / (sp + sn)
    mix = s * before + (1 - s) * after
    z, r = sigmoid(x @ wz + mix @ uz + bz), sigmoid(x @ wr + mix @ ur + br)
    candidate = np.tanh(x @ w + (r * mix) @ inner["candidate"] + b)
    np.testing.assert_allclose(got, (1 - z) * mix + z * candidate, rtol=1e-5, atol=1e-6)
    assert got.shape == (d,)


@pytest.mark.parametrize("name", FEW)
def test_sweep_is_the_step_at_every_time_and_bands_are_part_of_its_jacobian(name):
    with jax.enable_x64(True):
        cell = CELLS[name]
        params, xs = example(cell)
        states = jax.tree.map(
            lambda leaf: 0.5 * jax.random.normal(jax.random.key(2), (TIME, *leaf.shape)),
            cell.initial_state(params),
        )
        equation = equation_of(cell, params, xs)
        around = extended(cell, equation, states)
        swept, with_sweep = jax.jit(cell.sweep)(params, equation.xi, around)
        gap = jax.jit(lambda params, xs, states: residual(cell, params, xs, states))
        expected = jax.tree.map(jnp.add, gap(params, xs, states), states)
        for a, b in zip(jax.tree.leaves(swept), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-12)
        near = neighbour(around, -1, cell.reach)
        for leaf, state in zip(jax.tree.leaves(near), jax.tree.leaves(states), strict=True):
            np.testing.assert_array_equal(leaf[1:], state[:-1])
        found = jax.jit(cell.bands)(params, equation.xi, around)
        chex.assert_trees_all_close(found, with_sweep)
        assert jax.tree.structure(found.lower) == jax.tree.structure(states)
        assert all(np.all(np.abs(leaf) <= 1) for leaf in jax.tree.leaves(found))


@pytest.mark.parametrize("name", FEW)
def test_a_cell_at_rest_is_a_sweep_from_zero(name):
    cell = CELLS[name]
    params, xs = example(cell)
    xi = cell.project(params, xs)
    around = jax.tree.map(
        lambda leaf: jnp.zeros((TIME + sum(cell.reach), *leaf.shape)), cell.initial_state(params)
    )
    chex.assert_trees_all_close(
        jax.jit(cell.at_rest)(params, xi), jax.jit(cell.sweep)(params, xi, around), atol=1e-6
    )


def test_share_of_two_is_right_where_sigmoids_underflow():
    with jax.enable_x64(True):
        past, future = (
            jnp.array([0.3, -2.0, -800.0, -900.0, 50.0]),
            jnp.array([1.0, 3.0, -801.0, 10.0, 60.0]),
        )
        logs = [-np.logaddexp(0, -np.asarray(score)) for score in (past, future)]
        expected = np.exp(logs[0] - np.logaddexp(*logs))
        np.testing.assert_allclose(share_of_two(past, future), expected, rtol=1e-9, atol=1e-300)
        h = 1e-6
        for k in (0, 1):
            step = jnp.array([h, 0.0]) if k == 0 else jnp.array([0.0, h])
            numeric = (
                share_of_two(past + step[0], future + step[1])
                - share_of_two(past - step[0], future - step[1])
            ) / (2 * h)
            slope = jax.vmap(jax.grad(share_of_two, k))(past, future)
            np.testing.assert_allclose(slope, numeric, atol=1e-8)


@pytest.mark.parametrize("name", FEW)
def test_solution_equals_a_dense_newton_solve(name):
    with jax.enable_x64(True):
        cell = CELLS[name]
        params, xs = example(cell)
        expected = dense_solution(cell, params, xs)
        states, info = run(cell, params, xs, rtol=1e-12, method="banded")
        assert info.converged
        for a, b in zip(jax.tree.leaves(states), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-9)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_finds_the_same_states(method):
    cell = CELLS["igru"]
    params, xs = example(cell)
    expected, _ = run(cell, params, xs, rtol=1e-6, method="banded")
    states, info = run(cell, params, xs, method=method)
    assert info.converged
    np.testing.assert_allclose(states, expected, atol=1e-3)


@pytest.mark.parametrize(("time", "width"), [(1, 1), (2, 3), (10_000, 2), (5, 300)])
def test_any_length_and_width(time, width):
    cell = cells.igru(width)
    params, xs = example(cell, time)
    states, info = run(cell, params, xs, rtol=1e-4, method="banded")
    assert info.converged
    assert states.shape == (time, width)
    image = equation_map(cell)(equation_of(cell, params, xs), states)
    assert jnp.linalg.norm(image - states) <= 2e-4 * jnp.linalg.norm(states)


@pytest.mark.parametrize("garbage", [pytest.param(1e3, marks=pytest.mark.slow), np.nan])
@pytest.mark.parametrize("length", [0, 1, 4])
def test_padding_changes_nothing(length, garbage):
    cell = CELLS["learnt"]
    params, xs = example(cell)
    padded = xs.at[length:].set(garbage)

    how = implicit_rnn.sequence.banded_adjoint(cell, rtol=1e-6, cascade=False)

    def loss(params, xs, length):
        states, info = implicit_rnn.implicit(
            cell, params, xs, length=length, method="banded", adjoint=how
        )
        return jnp.sum(jnp.sin(2 * states)), (states, info)

    both = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))
    (value, (states, info)), (params_bar, xs_bar) = both(params, padded, length)
    assert np.all(states[length:] == 0)
    assert np.all(xs_bar[length:] == 0)
    assert info.converged
    if length == 0:
        assert value == 0
        assert all(np.all(leaf == 0) for leaf in jax.tree.leaves(params_bar))
        return
    (short, (short_states, short_info)), (short_params_bar, short_xs_bar) = both(
        params, xs[:length], length
    )
    assert info.steps == short_info.steps
    np.testing.assert_allclose(value, short, rtol=1e-5)
    np.testing.assert_allclose(states[:length], short_states, atol=1e-6)
    np.testing.assert_allclose(xs_bar[:length], short_xs_bar, atol=1e-5)
    pairs = zip(jax.tree.leaves(params_bar), jax.tree.leaves(short_params_bar), strict=True)
    for a, b in pairs:
        np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.slow
def test_batches_by_vmap_and_by_compaction_agree():
    cell = CELLS["igru"]
    params, _ = example(cell)
    xs = jax.random.normal(jax.random.key(5), (6, TIME, INPUTS))
    lengths = jnp.array([7, 0, 3, 1, 5, 7])
    how = implicit_rnn.sequence.banded_adjoint(cell, cascade=False)

    def by_vmap(params):
        states, info = jax.vmap(
            lambda x, n: implicit_rnn.implicit(
                cell, params, x, length=n, method="banded", adjoint=how
            )
        )(xs, lengths)
        return jnp.sum(states**2), (states, info)

    def compacted(params):
        states, info = implicit_rnn.implicit_batch(
            cell, params, xs, length=lengths, method="banded", adjoint=how, levels=2
        )
        return jnp.sum(states**2), (states, info)

    g1, (h1, i1) = jax.jit(jax.grad(by_vmap, has_aux=True))(params)
    g2, (h2, i2) = jax.jit(jax.grad(compacted, has_aux=True))(params)
    np.testing.assert_array_equal(i1.steps, i2.steps)
    np.testing.assert_allclose(h1, h2, atol=1e-5)
    for a, b in zip(jax.tree.leaves(g1), jax.tree.leaves(g2), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)


def test_switch_values_are_shares():
    cell = CELLS["wide"]
    params, xs = example(cell)
    states, _ = run(cell, params, xs, length=5, method="banded")
    values = implicit_rnn.switch(cell, params, xs, states, length=5)
    assert values.shape == (TIME, 4, WIDTH)
    np.testing.assert_allclose(values[:5].sum(axis=1), 1, rtol=1e-5)
    assert np.all(values[5:] == 0)
    extreme = jax.tree.map(lambda leaf: -300 * jnp.ones_like(leaf), params["switch"])
    values = implicit_rnn.switch(cell, {**params, "switch": extreme}, jnp.abs(xs), states)
    assert np.all(np.isfinite(values))


def test_unroll_equals_a_python_loop_in_both_directions():
    for cell in (cells.gru(WIDTH), cells.lstm(WIDTH)):
        params, xs = example(cell)
        for reverse in (False, True):
            ys, last = implicit_rnn.unroll(cell, params, xs, length=5, reverse=reverse)
            state, outputs = cell.initial_state(params), {}
            for t in reversed(range(5)) if reverse else range(5):
                state = cell.step(params, cell.project(params, xs[t]), state)
                outputs[t] = cell.output(state)
            expected = jnp.stack([outputs[t] for t in range(5)])
            np.testing.assert_allclose(ys[:5], expected, atol=1e-6)
            assert np.all(ys[5:] == 0)
            np.testing.assert_allclose(cell.output(last), cell.output(state), atol=1e-6)


def test_bad_input_is_named():
    cell = CELLS["igru"]
    params, xs = example(cell)
    with pytest.raises(ValueError, match=r"one sequence \[time, features\]"):
        implicit_rnn.implicit(cell, params, xs[None])
    with pytest.raises(ValueError, match="length must be a scalar"):
        implicit_rnn.implicit(cell, params, xs, length=jnp.array([1, 2]))
    with pytest.raises(ValueError, match="does not look ahead"):
        implicit_rnn.implicit(cells.gru(WIDTH), params["cell"], xs)
    with pytest.raises(ValueError, match="looks ahead"):
        implicit_rnn.unroll(cell, params, xs)
    with pytest.raises(ValueError, match="unknown method"):
        implicit_rnn.implicit(cell, params, xs, method="newtn")
    with pytest.raises(ValueError, match="pass key"):
        implicit_rnn.implicit(cell, params, xs, start="random")
    with pytest.raises(ValueError, match="start must be"):
        implicit_rnn.implicit(cell, params, xs, start="ones")
    with pytest.raises(ValueError, match="causal cell"):
        cells.implicit(cell)
    with pytest.raises(ValueError, match="stencil"):
        cells.implicit(cells.gru(3), stencil=(-1, 0))
