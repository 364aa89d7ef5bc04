"""Learnt hyperparameters: every rule's gradient against numpy, derivatives by complex steps."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import jax
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import solvers
from implicit_rnn.experiments.hyper.descent import Training, descend
from implicit_rnn.experiments.hyper.model import hyper_optimiser
from implicit_rnn.experiments.hyper.task import Trainings
from implicit_rnn.experiments.task import Task
from implicit_rnn.sequence.equilibrium import RULES, learning_rule
from solvers.adjoint.system import _uniform

WIDTHS = (3, 4, 3)
EXAMPLES = 12
SETTLING = {"rate": 1.0, "momentum": 0.3, "decay": 0.5, "scale": 0.5}
AT_THE_STATE = tuple(rule for rule in RULES if rule not in ("bptt", "tbptt"))


def drawn(steps, minibatch=EXAMPLES, trainings=1, dtype=np.float64, seed=0):
    """Trainings on a few examples that no network separates, and others to judge them by."""
    rng = np.random.default_rng(seed)
    order = rng.integers(0, EXAMPLES, (trainings, steps, minibatch))
    if minibatch == EXAMPLES:
        order = np.broadcast_to(np.arange(EXAMPLES), order.shape)
    inputs = rng.normal(size=(2 * EXAMPLES, WIDTHS[0])).astype(dtype)
    labels = rng.integers(0, WIDTHS[-1], 2 * EXAMPLES).astype(np.int32)
    return Trainings(
        np.ascontiguousarray(order, np.int32),
        inputs[:EXAMPLES],
        labels[:EXAMPLES],
        inputs[EXAMPLES:],
        labels[EXAMPLES:],
    )


def made(rule, truncation, **settings):
    sizes = {"input_size": WIDTHS[0], "labels": WIDTHS[-1]}
    task = Task("trainings", sizes, {}, "loss", {})
    settings = {"averaged": 1, "hidden": WIDTHS[1:-1]} | SETTLING | settings
    return hyper_optimiser(task, rule=rule, truncation=truncation, **settings)


def gradient_of(model, batch, params=None):
    params = model.init(jax.random.key(0)) if params is None else params
    found = jax.jit(jax.grad(lambda params: model.loss(params, batch)[0]))(params)
    return np.asarray(ravel_pytree(found)[0])


# The same training by hand, in complex numbers: what a derivative is does not depend on jax.


class Numbers(NamedTuple):
    """What an oracle starts from: flat hyperparameters and a flat state, and their shapes."""

    theta: np.ndarray
    start: np.ndarray
    theta_like: object
    state_like: object


@cache
def numbers():
    """Those of the model that most tests use, whatever its rule."""
    model = made("neumann", 1)
    params, state = model.init(jax.random.key(0)), jax.jit(model.start)()
    flat = [np.asarray(ravel_pytree(tree)[0], complex) for tree in (params, state)]
    return Numbers(*flat, jax.tree.map(np.asarray, params), jax.tree.map(np.asarray, state))


def filled(like, flat):
    leaves, structure = jax.tree.flatten(like)
    cuts = np.cumsum([leaf.size for leaf in leaves])[:-1]
    parts = np.split(flat, cuts)
    shaped = [part.reshape(leaf.shape) for part, leaf in zip(parts, leaves, strict=True)]
    return jax.tree.unflatten(structure, shaped)


def flattened(tree):
    return np.concatenate([leaf.reshape(-1) for leaf in jax.tree.leaves(tree)])


def slopes_and_loss(weights, inputs, labels):
    """Back-propagation by hand through tanh layers and a softmax."""
    signals = [inputs]
    for layer in weights[:-1]:
        signals.append(np.tanh(signals[-1] @ layer["weights"] + layer["biases"]))
    scores = np.exp(signals[-1] @ weights[-1]["weights"] + weights[-1]["biases"])
    shares = scores / scores.sum(axis=1, keepdims=True)
    rows = np.arange(len(labels))
    loss = -np.mean(np.log(shares[rows, labels]))
    error = shares.copy()
    error[rows, labels] -= 1
    error = error / len(labels)
    slopes = []
    for layer, signal in zip(weights[::-1], signals[::-1], strict=True):
        slopes.append({"weights": signal.T @ error, "biases": error.sum(axis=0)})
        error = (error @ layer["weights"].T) * (1 - signal**2)
    return slopes[::-1], loss


def step_by_hand(theta, state, inputs, labels):
    theta, state = filled(numbers().theta_like, theta), filled(numbers().state_like, state)
    slopes, _ = slopes_and_loss(state.weights, inputs, labels)
    weights, velocity = [], []
    for layer, parts in enumerate(slopes):
        weights.append({}), velocity.append({})
        for part, slope in parts.items():
            keep = 1 / (1 + np.exp(-theta["momentum"][part][layer]))
            slope = slope + np.exp(theta["decay"][part][layer]) * state.weights[layer][part]
            speed = keep * state.velocity[layer][part] - (1 - keep) * slope
            velocity[layer][part] = speed
            rate = np.exp(theta["rate"][part][layer])
            weights[layer][part] = state.weights[layer][part] + rate * speed
    return flattened(Training(weights, velocity))


def run_by_hand(theta, state, batch, order):
    for chosen in order:
        state = step_by_hand(theta, state, batch.inputs[chosen], batch.labels[chosen])
    return state


def meta_by_hand(state, batch):
    weights = filled(numbers().state_like, state).weights
    return slopes_and_loss(weights, batch.meta_inputs, batch.meta_labels)[1]


def jacobian(function, at):
    """Columns by complex steps: exact to rounding, no difference is taken."""
    columns = [function(at + 1e-30j * unit).imag / 1e-30 for unit in np.eye(len(at))]
    return np.stack(columns, axis=-1)


class Dense(NamedTuple):
    """The linear system of the rules, as matrices."""

    jacobian: np.ndarray  # [state, state]
    influence: np.ndarray  # dF/dtheta, [state, hyperparameters]
    cotangent: np.ndarray  # [state]

    def gradient(self):
        z = np.linalg.solve(np.eye(len(self.cotangent)) - self.jacobian.T, self.cotangent)
        return self.influence.T @ z

    def series(self, terms):
        term = total = self.cotangent
        for _ in range(terms):
            term = self.jacobian.T @ term
            total = total + term
        return self.influence.T @ total

    def bound(self, terms):
        """Proposition 2, brought to the hyperparameters."""
        norm = [np.linalg.norm(a, 2) for a in (self.influence, self.jacobian, self.cotangent)]
        inverse = np.linalg.inv(np.eye(len(self.cotangent)) - self.jacobian)
        return norm[0] * np.linalg.norm(inverse, 2) * norm[1] ** (terms + 1) * norm[2]


def dense(batch, averaged=1):
    theta, order = numbers().theta, batch.order[0]
    before = run_by_hand(theta, numbers().start, batch, order[:-1])
    last = run_by_hand(theta, before, batch, order[-1:])
    jacobians, influences = [], []
    for chosen in order[-averaged:]:
        data = (batch.inputs[chosen], batch.labels[chosen])
        jacobians.append(jacobian(lambda h, d=data: step_by_hand(theta, h, *d), before))
        influences.append(jacobian(lambda t, d=data: step_by_hand(t, before, *d), theta))
    cotangent = jacobian(lambda h: meta_by_hand(h, batch), last)
    return Dense(np.mean(jacobians, axis=0), np.mean(influences, axis=0), cotangent)


def relative(found, wanted):
    return np.linalg.norm(found - wanted) / np.linalg.norm(wanted)


@pytest.fixture(scope="module")
def moving():
    """A training of three steps, far from settled, and its dense system."""
    with jax.enable_x64(True):
        batch = drawn(3)
        return batch, dense(batch)


def test_a_step_is_that_of_numpy():
    with jax.enable_x64(True):
        batch, order = drawn(5, minibatch=4), drawn(5, minibatch=4).order[0]
        state, losses = jax.jit(descend)(
            numbers().theta_like, numbers().state_like, order, batch.inputs, batch.labels
        )
        by_hand = run_by_hand(numbers().theta, numbers().start, batch, order)
        np.testing.assert_allclose(flattened(state), by_hand.real, rtol=1e-12, atol=1e-14)
        first = (batch.inputs[order[0]], batch.labels[order[0]])
        _, loss = slopes_and_loss(numbers().state_like.weights, *first)
        np.testing.assert_allclose(losses[0], loss, rtol=1e-12)


def few(rule):
    """The others differ by their adjoint alone, which has tests of its own."""
    return [] if rule in ("neumann", "gmres") else pytest.mark.slow


@pytest.mark.parametrize("rule", [pytest.param(rule, marks=few(rule)) for rule in AT_THE_STATE])
def test_every_rule_at_the_state_reaches_the_dense_gradient(rule, moving):
    batch, system = moving
    with jax.enable_x64(True):
        found = gradient_of(made(rule, 100), batch)
    assert relative(found, system.gradient()) < 1e-8


TERMS = {"neumann": 12, "rbp": 12, "gmres": 8, "bicgstab": 4, "cg_rbp": 8, "lsqr": 8}


@pytest.mark.parametrize(
    ("rule", "truncation"), [pytest.param(*item, marks=few(item[0])) for item in TERMS.items()]
)
def test_a_truncated_rule_errs_by_no_more_than_proposition_2_allows(rule, truncation, moving):
    batch, system = moving
    with jax.enable_x64(True):
        # K + 1 steps of RBP from zero are K of Neumann (Proposition 3).
        found = gradient_of(made(rule, truncation + (rule == "rbp")), batch)
    error = np.linalg.norm(found - system.gradient())
    assert 1e-10 < error < system.bound(truncation)
    if rule in ("neumann", "rbp"):
        np.testing.assert_allclose(found, system.series(truncation), rtol=1e-9, atol=1e-13)


@pytest.mark.slow
def test_rbp_from_uniform_draws_still_remembers_them(moving):
    batch, system = moving
    with jax.enable_x64(True):
        found = gradient_of(made("rbp", 12, uniform=True), batch)
        key = learning_rule("rbp", 12, uniform=True).key
        first = flattened(jax.tree.map(np.asarray, _uniform(key, numbers().state_like)))
    assert first.min() >= 0
    assert first.max() > 0.9
    left = system.influence.T @ np.linalg.matrix_power(system.jacobian.T, 12) @ first
    np.testing.assert_allclose(found, system.series(11) + left, rtol=1e-9, atol=1e-13)
    assert np.linalg.norm(left) > 1e-6


def test_the_map_is_the_mean_of_those_of_several_mini_batches():
    with jax.enable_x64(True):
        batch = drawn(4, minibatch=5)
        system = dense(batch, averaged=3)
        found = gradient_of(made("neumann", 9, averaged=3), batch)
    np.testing.assert_allclose(found, system.series(9), rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize(
    ("rule", "truncation", "segment"),
    [("bptt", 1, 0), ("bptt", 1, 3), ("tbptt", 4, 0), ("tbptt", 50, 0)],
)
def test_back_through_time_is_the_derivative_of_the_steps_that_were_made(rule, truncation, segment):
    steps = 7
    kept = steps if rule == "bptt" else min(truncation, steps)
    with jax.enable_x64(True):
        batch, model = drawn(steps, minibatch=5), made(rule, truncation, segment=segment)
        order = batch.order[0]
        cut = run_by_hand(numbers().theta, numbers().start, batch, order[: steps - kept])
        wanted = jacobian(
            lambda theta: meta_by_hand(
                run_by_hand(theta, cut, batch, order[steps - kept :]), batch
            ),
            numbers().theta,
        )
        found = gradient_of(model, batch)
    np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-13)


@pytest.mark.slow
def test_at_a_settled_state_rules_agree_and_only_decays_count():
    """Proposition 1: K + 1 steps back through time are then K steps of Neumann."""
    slow = {"decay": 0.1}
    with jax.enable_x64(True):
        batch = drawn(2000)
        found = gradient_of(made("neumann", 6, **slow), batch)
        through_time = gradient_of(made("tbptt", 7, **slow), batch)
        every_step = gradient_of(made("bptt", 1, **slow), batch)
        exact = gradient_of(made("gmres", 80, **slow), batch)
    np.testing.assert_allclose(found, through_time, rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(exact, every_step, rtol=1e-7, atol=1e-11)
    decays, others = np.split(exact, [2 * (len(WIDTHS) - 1)])
    assert np.linalg.norm(decays) > 0.1
    assert np.linalg.norm(others) < 1e-10


def test_trainings_of_a_batch_are_averaged_and_the_probe_tells_of_each():
    batch, model = drawn(3, minibatch=5, trainings=2, dtype=np.float32), made("neumann", 4)
    params = model.init(jax.random.key(0))

    @jax.jit
    def look(batch, probe):
        return jax.value_and_grad(
            lambda params, probe: model.loss(params, batch, probe=probe), (0, 1), has_aux=True
        )(params, probe)

    (loss, outcome), (gradient, seen) = look(batch, solvers.adjoint_probe((1, 2)))
    assert outcome.info.steps.tolist() == [[3, 3]]
    assert seen.steps.tolist() == [[4.0, 4.0]]
    assert float(outcome.sums["count"]) == 2
    np.testing.assert_allclose(outcome.sums["loss"] / 2, loss, rtol=1e-6)
    np.testing.assert_allclose(outcome.sums["rate_biases_2"] / 2, 1.0, rtol=1e-6)
    twice = [np.repeat(batch.order[n : n + 1], 2, axis=0) for n in (0, 1)]
    alone = [
        ravel_pytree(look(batch._replace(order=order), solvers.adjoint_probe((1, 2)))[1][0])[0]
        for order in twice
    ]
    np.testing.assert_allclose(ravel_pytree(gradient)[0], np.mean(alone, axis=0), rtol=1e-4)


def test_all_rules_see_the_same_meta_loss():
    batch = drawn(6, minibatch=5, dtype=np.float32)
    losses = []
    for rule in ("bptt", "neumann"):
        model = made(rule, 3)
        params = model.init(jax.random.key(0))
        losses.append(float(jax.jit(lambda p, m=model: m.loss(p, batch)[0])(params)))
    np.testing.assert_allclose(losses, losses[0], rtol=1e-6)
