"""The state at which a cell stays under a fixed input, against numpy and a dense gradient."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import implicit_rnn
import solvers
from implicit_rnn import cells
from implicit_rnn.sequence.equilibrium import RULES, learning_rule

KEY = jax.random.key(0)


def vanilla(dtype, hidden=5, inputs=3, gain=0.5):
    """A tanh network whose recurrent matrix has norm `gain`, and an input."""
    cell = cells.rnn(hidden)
    params = cell.init(KEY, inputs)
    params = jax.tree.map(lambda leaf: np.asarray(leaf, dtype), params)
    recurrent = next(k for k, v in params.items() if v.shape == (hidden, hidden))
    params[recurrent] = params[recurrent] * gain / np.linalg.norm(params[recurrent], 2)
    x = np.random.default_rng(0).normal(size=inputs).astype(dtype)
    return cell, params, recurrent, x


def settled(cell, params, x, steps=500):
    """The same state by running the cell."""
    xi = jax.tree.map(lambda leaf: leaf[0], cell.project(params, x[None]))
    state = cell.initial_state(params)
    for _ in range(steps):
        state = cell.step(params, xi, state)
    return state


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("method", ["picard", "anderson", "newton"])
def test_equals_a_network_that_was_run_for_long(method, dtype):
    with jax.enable_x64(dtype == np.float64):
        cell, params, _, x = vanilla(dtype)
        found, info = jax.jit(
            lambda p, x: implicit_rnn.equilibrium(cell, p, x, method=method, rtol=1e-6)
        )(params, x)
        assert bool(info.converged)
        np.testing.assert_allclose(found, settled(cell, params, x, 60), rtol=1e-5, atol=1e-6)


def test_auto_is_the_implicit_gradient():
    cell, params, _, x = vanilla(np.float32)

    def gradient(adjoint):
        return jax.grad(
            lambda p: jnp.sum(implicit_rnn.equilibrium(cell, p, x, adjoint=adjoint)[0] ** 2)
        )(params)

    chex.assert_trees_all_equal(gradient("auto"), gradient("implicit"))


def test_every_cell_with_a_state_of_parts_has_one():
    cell = cells.lstm(4)
    params = jax.tree.map(lambda leaf: 0.3 * leaf, cell.init(KEY, 3))
    xs = jax.random.normal(KEY, (6, 3))
    states, info = jax.vmap(lambda x: implicit_rnn.equilibrium(cell, params, x))(xs)
    assert info.steps.shape == (6,)
    assert bool(info.converged.all())
    again = jax.vmap(lambda x, s: cell.step(params, cell.project(params, x[None])[0], s))(
        xs, states
    )
    for new, old in zip(jax.tree.leaves(again), jax.tree.leaves(states), strict=True):
        np.testing.assert_allclose(new, old, atol=1e-4)


@pytest.mark.parametrize("rule", RULES)
def test_gradient_of_every_rule_against_the_dense_one(rule):
    with jax.enable_x64(True):
        cell, params, recurrent, x = vanilla(np.float64)
        target = np.random.default_rng(1).normal(size=5)

        def loss(params, probe):
            state, _ = implicit_rnn.equilibrium(
                cell,
                params,
                x,
                adjoint=learning_rule(rule, 60),
                rtol=1e-15,
                max_steps=300,
                probe=probe,
            )
            return jnp.sum(target * state)

        grads, seen = jax.grad(loss, argnums=(0, 1))(params, solvers.adjoint_probe())
        state = settled(cell, params, x)

        def step(p, s):
            xi = jax.tree.map(lambda leaf: leaf[0], cell.project(p, x[None]))
            return cell.step(p, xi, s)

        jacobian = np.asarray(jax.jacobian(step, argnums=1)(params, state))
        w = np.linalg.solve(np.eye(5) - jacobian.T, target)
        by_weights = np.asarray(jax.jacobian(step)(params, state)[recurrent])
        expected = np.einsum("i,ijk->jk", w, by_weights)
        np.testing.assert_allclose(grads[recurrent], expected, rtol=1e-8, atol=1e-12)
        if rule not in ("bptt", "tbptt"):
            assert seen.steps > 0


def test_truncated_rules_stay_within_the_bound():
    """Proposition 2: after K terms the error is at most `|J|^(K+1) / (1 - |J|) |c|`."""
    with jax.enable_x64(True):
        cell, params, _, x = vanilla(np.float64, gain=0.6)
        target = np.random.default_rng(1).normal(size=5)
        state = settled(cell, params, x)
        xi = cell.project(params, x[None])[0]
        jacobian = np.asarray(jax.jacobian(lambda s: cell.step(params, xi, s))(state))
        size = np.linalg.norm(jacobian, 2)
        exact = np.linalg.solve(np.eye(5) - jacobian.T, target)

        def w(steps):
            """What the rule sends into the step: the gradient by the bias of its activation."""

            def loss(shift):
                shifted = cell._replace(step=lambda p, xi, h: cell.step(p, xi, h) + shift)
                found, _ = implicit_rnn.equilibrium(
                    shifted, params, x, adjoint=learning_rule("neumann", steps), rtol=1e-15
                )
                return jnp.sum(target * found)

            return jax.grad(loss)(jnp.zeros(5))

        for steps in (0, 1, 3, 6):
            bound = size ** (steps + 1) / (1 - size) * np.linalg.norm(target)
            assert np.linalg.norm(w(steps) - exact) <= bound


def test_uniform_start_is_for_rbp_alone_and_matters():
    cell, params, recurrent, x = vanilla(np.float32)

    def gradient(**how):
        return jax.grad(
            lambda p: jnp.sum(
                implicit_rnn.equilibrium(cell, p, x, adjoint=learning_rule("rbp", 2, **how))[0]
            )
        )(params)[recurrent]

    assert not np.allclose(gradient(), gradient(uniform=True), atol=1e-3)
    with pytest.raises(ValueError, match='only "rbp" starts from draws'):
        learning_rule("neumann", 2, uniform=True)


def test_what_cannot_be_done_is_refused():
    cell, params, _, x = vanilla(np.float32)
    with pytest.raises(ValueError, match=r"use jax\.vmap"):
        implicit_rnn.equilibrium(cell, params, x[None])
    with pytest.raises(ValueError, match="looks ahead: use implicit"):
        implicit_rnn.equilibrium(cells.igru(4), {}, x)
    with pytest.raises(ValueError, match="choose from bptt, tbptt"):
        learning_rule("adam", 3)
