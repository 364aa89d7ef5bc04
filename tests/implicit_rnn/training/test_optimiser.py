"""Optimisers by name do what optax does; schedules start and end where they are told to."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from implicit_rnn import cells, nn
from implicit_rnn.training import Recipe
from implicit_rnn.training.guard import clipped, guarded
from implicit_rnn.training.optimiser import (
    OPTIMISERS,
    OptimiserSettings,
    left_of_rate,
    lowered,
    optimiser_of,
    schedule,
)


@pytest.mark.parametrize("name", OPTIMISERS)
def test_every_optimiser_descends(name):
    settings = OptimiserSettings(name=name, rate=0.1, schedule="constant")
    made, params = optimiser_of(settings, 100), jnp.array([1.0, -2.0])
    state = made.init(params)
    for _ in range(30):
        changes, state = made.update(2 * params, state, params)
        params = optax.apply_updates(params, changes)
    assert float(jnp.sum(params**2)) < 1


def test_sgd_is_the_plain_formula_and_momentum_accumulates():
    gradient = jnp.array([1.0, 2.0])
    plain = optimiser_of(OptimiserSettings("sgd", rate=0.5, schedule="constant"), 10)
    np.testing.assert_allclose(plain.update(gradient, plain.init(gradient))[0], -0.5 * gradient)
    heavy = optimiser_of(OptimiserSettings("momentum", 0.5, "constant", momentum=0.9), 10)
    _, state = heavy.update(gradient, heavy.init(gradient))
    np.testing.assert_allclose(heavy.update(gradient, state)[0], -0.5 * 1.9 * gradient)


@pytest.mark.parametrize("name", OPTIMISERS)
def test_l2_is_the_gradient_of_the_squared_parameters(name):
    params, gradient = jnp.array([1.0, -2.0, 0.5]), jnp.array([0.3, 0.2, -0.4])
    settings = OptimiserSettings(name, rate=0.1, schedule="constant", l2=0.7)
    made = optimiser_of(settings, 10)
    plain = optimiser_of(dataclasses.replace(settings, l2=0.0), 10)
    penalised = gradient + 0.7 * params
    np.testing.assert_allclose(
        made.update(gradient, made.init(params), params)[0],
        plain.update(penalised, plain.init(params), params)[0],
        rtol=1e-6,
    )


@pytest.mark.parametrize(
    ("kind", "middle", "end"),
    [("constant", 1.0, 1.0), ("cosine", 0.505, 0.01), ("linear", 0.505, 0.01),
     ("exponential", 0.1, 0.01), ("plateau", 1.0, 1.0)],
)  # fmt: skip
def test_schedules_go_where_they_are_told(kind, middle, end):
    rate = schedule(OptimiserSettings(rate=1.0, schedule=kind, final=0.01, warmup=10), 110)
    np.testing.assert_allclose([rate(0), rate(5), rate(10)], [0, 0.5, 1], atol=1e-6)
    np.testing.assert_allclose([rate(60), rate(110)], [middle, end], rtol=1e-5)


@pytest.mark.parametrize("name", ["adam", "adamw", "radam"])
def test_betas_and_epsilon_are_those_of_the_optimiser(name):
    gradient, params = jnp.array([0.3, -2.0]), jnp.array([1.0, 2.0])
    made = optimiser_of(
        OptimiserSettings(name, 0.1, "constant", beta1=0.0, beta2=0.5, epsilon=0.2), 10
    )
    theirs = OPTIMISERS[name](0.1, b1=0.0, b2=0.5, eps=0.2)
    states = made.init(params), theirs.init(params)
    for _ in range(2):
        (found, one), (expected, other) = (
            each.update(gradient, state, params)
            for each, state in zip((made, theirs), states, strict=True)
        )
        states = one, other
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_a_plateau_lowers_the_rate_after_so_many_evaluations_in_vain():
    settings = OptimiserSettings("sgd", 0.5, "plateau", factor=0.1, wait=2)
    made, gradient = guarded(optimiser_of(settings, 10)), jnp.array([1.0, 2.0])
    state, left = made.init(gradient), []
    for waited in (0, 1, 2, 3, 4, 0, 1):
        state = lowered(settings, state, waited)
        left.append(left_of_rate(state))
        np.testing.assert_allclose(
            jax.jit(made.update)(gradient, state)[0], -0.5 * left[-1] * gradient, rtol=1e-6
        )
    np.testing.assert_allclose(left, [1, 1, 0.1, 0.1, 0.01, 0.01, 0.01], rtol=1e-6)
    constant = OptimiserSettings("sgd", 0.5, "constant")
    plain = optimiser_of(constant, 10).init(gradient)
    assert lowered(constant, plain, 2) is plain
    assert left_of_rate(plain) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"rate": 0.0}, {"ema": 1.0}, {"clip": -1.0}, {"l2": -1.0}, {"schedule": "exponential"},
        {"beta1": 1.0}, {"beta2": -0.1}, {"epsilon": 0.0}, {"factor": 1.0}, {"wait": 0},
    ],
)  # fmt: skip
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        OptimiserSettings(**wrong)


def test_the_guard_clips_and_skips_like_optax():
    ours = guarded(optax.chain(clipped(1.5), optax.adam(0.1)))
    theirs = optax.apply_if_finite(
        optax.chain(optax.clip_by_global_norm(1.5), optax.adam(0.1)), max_consecutive_errors=10
    )
    params = {"table": jnp.ones((3, 2)), "bias": jnp.zeros(2)}
    states = ours.init(params), theirs.init(params)
    for size in (0.1, 4.0, np.nan, np.inf, 1.0, np.nan):
        gradient = {"table": jnp.arange(6.0).reshape(3, 2), "bias": jnp.array([size, -1.0])}
        (mine, state), (other, known) = (
            made.update(gradient, state, params)
            for made, state in zip((ours, theirs), states, strict=True)
        )
        states = state, known
        seen = state._replace(norm=None)
        for a, b in zip(
            jax.tree.leaves((mine, seen)), jax.tree.leaves((other, known)), strict=True
        ):
            np.testing.assert_allclose(a, b, rtol=1e-6)
    assert int(states[0].total_notfinite) == 3
    assert int(states[0].notfinite_count) == 1


@pytest.mark.parametrize(("own", "wide"), [("bfloat16", False), ("float32", True)])
def test_types_of_parameters_and_state_stay_what_they_are(own, wide):
    """Half-precision parameters, and single ones while jax computes schedules in double."""
    with jax.enable_x64(wide):
        cell = cells.igru(3)
        params = cell.init(jax.random.key(0), 2)
        params = jax.tree.map(lambda leaf: leaf.astype(own), params)
        inner = optax.adam(optax.cosine_decay_schedule(1e-3, 10))
        made = Recipe().optimiser(cell.bounds, inner)
        state = made.init(params)
        changes, after = jax.jit(made.update)(params, state, params)
        for old, new in ((params, changes), (state, after)):
            kinds = [[leaf.dtype for leaf in jax.tree.leaves(tree)] for tree in (old, new)]
            assert kinds[0] == kinds[1]


def test_the_guard_passes_on_what_an_optimiser_of_optax_is_given():
    made = guarded(optax.contrib.reduce_on_plateau(patience=1, factor=0.5, cooldown=0))
    params = {"w": jnp.ones(2)}
    state = made.init(params)
    for _ in range(3):
        changes, state = made.update(params, state, params, value=1.0)
    assert np.all(changes["w"] < 1), "the value has not improved"


def test_the_recipe_serves_modules_of_nnx():
    layer = nn.Implicit(cells.igru(3), 2, rngs=nnx.Rngs(0))
    params = nnx.state(layer, nnx.Param)
    large = jax.tree.map(lambda leaf: 100 * leaf, params)
    bounds = {"params": layer.cell.bounds}
    optimiser = nnx.Optimizer(layer, Recipe().optimiser(bounds, optax.sgd(1.0)), wrt=nnx.Param)
    optimiser.update(layer, large)
    limit = 1.01 * layer.cell.bounds["cell"]["candidate"]
    assert np.linalg.norm(layer.values()["cell"]["candidate"], 2) <= limit
