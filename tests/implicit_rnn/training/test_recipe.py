"""The training recipe: what it solves, what it bounds, what it leaves out."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from implicit_rnn import cells, spectral
from implicit_rnn.experiments.walk.task import biased_walk
from implicit_rnn.training import Recipe

CELL = cells.igru(8)


def setting(recipe, learning_rate=2e-2):
    walks = biased_walk(0, 64, bias=1.0, max_length=12)
    xs, labels, length = map(jnp.asarray, walks)
    params = {"layer": CELL.init(jax.random.key(0), xs.shape[-1]), "read": jnp.zeros(8)}
    optimiser = recipe.optimiser({"layer": recipe.bounds(CELL)}, optax.adam(learning_rate))

    def objective(params, xs):
        states, info = recipe.solve(CELL, params["layer"], xs, length=length, loss=0.7)
        entropy = optax.sigmoid_binary_cross_entropy(states @ params["read"], labels)
        inside = jnp.arange(labels.shape[1]) < length[:, None]
        return jnp.sum(jnp.where(inside, entropy, 0)) / jnp.sum(inside), info

    @jax.jit
    def update(params, state, xs):
        (loss, info), gradient = jax.value_and_grad(objective, has_aux=True)(params, xs)
        changes, state = optimiser.update(gradient, state, params)
        return optax.apply_updates(params, changes), state, loss, info

    return params, jax.jit(optimiser.init)(params), xs, update


@pytest.mark.parametrize(
    "recipe",
    [
        pytest.param(Recipe(), id="default"),
        pytest.param(
            Recipe(bounded="reparametrised", tied=0.1), id="other", marks=pytest.mark.slow
        ),
    ],
)
def test_training_lowers_the_loss_and_keeps_the_bounds(recipe):
    params, state, xs, update = setting(recipe)
    losses = []
    for _ in range(60):
        params, state, loss, info = update(params, state, xs)
        losses.append(float(loss))
        assert np.all(info.converged)
    assert losses[-1] < 0.8 * losses[0]
    layer, bounds = params["layer"], recipe.bounds(CELL)
    if recipe.bounded == "reparametrised":
        layer = spectral.reparametrised(layer, bounds, steps=50)
    limits = jax.tree_util.tree_leaves_with_path(bounds)
    for name, limit in ((jax.tree_util.keystr(path), limit) for path, limit in limits):
        assert np.all(spectral.norms(layer, bounds)[name] <= 1.02 * limit)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_an_evaluation_asks_for_what_the_states_can_reach(dtype):
    cell = cells.igru(4, dtype=dtype)
    xs = jax.random.normal(jax.random.key(1), (8, 10, 3))
    recipe = Recipe().exact()
    states, info = jax.jit(lambda p: recipe.solve(cell, p, xs))(cell.init(jax.random.key(0), 3))
    assert states.dtype == dtype
    assert np.all(info.converged)
    assert np.all(info.residual <= float(jnp.finfo(dtype).eps) ** (2 / 3))


def test_update_that_is_not_finite_changes_nothing_and_is_counted():
    params, state, xs, update = setting(Recipe())
    poisoned = {**params, "read": params["read"] + jnp.nan}
    before = jax.tree.map(np.asarray, poisoned["layer"])
    after, state, _, _ = update(poisoned, state, xs)
    for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(after["layer"]), strict=True):
        np.testing.assert_array_equal(a, b)
    assert state.total_notfinite == 1


def test_tolerance_follows_the_loss_between_its_limits():
    recipe = Recipe(rtol=1e-4, tied=0.1, loosest=0.05)
    params = CELL.init(jax.random.key(0), 16)
    xs = jnp.asarray(biased_walk(1, 4, max_length=12).inputs)
    solve = jax.jit(lambda loss: recipe.solve(CELL, params, xs, loss=loss)[1].steps.max())
    steps = [int(solve(loss)) for loss in (1.0, 1e-2, 1e-9)]
    assert steps[0] < steps[1] < steps[2]
    with pytest.raises(ValueError, match="bounded"):
        Recipe(bounded="clipped")
