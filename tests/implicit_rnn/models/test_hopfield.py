"""The Hopfield network against numpy: states, gradients of every rule, and an energy that falls."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import solvers
from implicit_rnn.experiments.hopfield.task import Patterns
from implicit_rnn.models.hopfield import descent_step, energy, hopfield, symmetric
from implicit_rnn.sequence.equilibrium import RULES
from tests.implicit_rnn.cells.equations import sigmoid

PIXELS, HIDDEN = 4, 3
FREE = PIXELS + HIDDEN
GAIN = 0.5


def problem(dtype=np.float64, size=4.0, count=3, seed=0):
    """Parameters whose weights between free neurons have norm `size`, and images."""
    rng = np.random.default_rng(seed)
    halves = rng.normal(size=(PIXELS + FREE, PIXELS + FREE))
    inner = np.linalg.norm(whole(halves)[PIXELS:, PIXELS:], 2)
    images = rng.integers(0, 2, (count, PIXELS))
    params = {"halves": (halves * size / inner).astype(dtype)}
    return params, Patterns(images.astype(dtype), rng.uniform(size=images.shape).astype(dtype))


def whole(halves):
    weights = halves + halves.T
    np.fill_diagonal(weights, 0)
    return weights


def settled(weights, image, steps=400):
    """The state of the free neurons, all of them as numpy has it."""
    h = np.concatenate([image, np.zeros(FREE)])
    for _ in range(steps):
        h[PIXELS:] = (weights @ sigmoid(GAIN * h))[PIXELS:]
    return h[PIXELS:]


def dense(params, batch, terms=None):
    """The loss, the adjoint states w and the gradient; by `terms` of Neumann's series, or exact."""
    weights = whole(np.asarray(params["halves"], np.float64))
    inner, across = weights[PIXELS:, PIXELS:], weights[:PIXELS, PIXELS:]
    loss, gradient, adjoints = 0.0, np.zeros_like(weights), []
    for image, target in zip(batch.observed, batch.target, strict=True):
        h = settled(weights, image)
        x, pixels = sigmoid(GAIN * h), sigmoid(GAIN * image)
        np.testing.assert_allclose(h, inner @ x + across.T @ pixels, atol=1e-12)
        off = h[HIDDEN:] - target
        loss += np.abs(off).mean() / len(batch.target)
        c = np.concatenate([np.zeros(HIDDEN), np.sign(off)]) / off.size / len(batch.target)
        jacobian = inner * (GAIN * x * (1 - x))
        if terms is None:
            w = np.linalg.solve(np.eye(FREE) - jacobian.T, c)
        else:
            w = sum(np.linalg.matrix_power(jacobian.T, k) @ c for k in range(terms))
        gradient += np.outer(np.concatenate([np.zeros(PIXELS), w]), np.concatenate([pixels, x]))
        adjoints.append((w, c, jacobian, pixels))
    gradient += gradient.T  # either half of a weight
    np.fill_diagonal(gradient, 0)
    return loss, gradient, adjoints


def gradient_of(model, params, batch, **settings):
    def loss(params, probe):
        return model.loss(params, batch, probe=probe, **settings)[0]

    probe = solvers.adjoint_probe((1, len(batch.target)))
    value, (grads, seen) = jax.jit(jax.value_and_grad(loss, (0, 1)))(params, probe)
    return value, grads["halves"], seen


@pytest.mark.parametrize("rule", RULES)
def test_gradient_of_every_rule_is_the_dense_one(rule):
    with jax.enable_x64(True):
        params, batch = problem()
        expected, gradient, _ = dense(params, batch)
        model = hopfield(PIXELS, HIDDEN, rule=rule, truncation=60, steps=200, tolerance=1e-14)
        loss, found, seen = gradient_of(model, params, batch)
        np.testing.assert_allclose(loss, expected, rtol=1e-10)
        assert np.linalg.norm(found - gradient) <= 1e-8 * np.linalg.norm(gradient)
        assert seen.steps.shape == (1, 3)
        if rule not in ("bptt", "tbptt"):
            assert np.all(seen.steps > 0)


@pytest.mark.parametrize("truncation", [2, 5])
@pytest.mark.parametrize("rule", [rule for rule in RULES if rule != "bptt"])
def test_truncated_rules_stay_within_the_bound(rule, truncation):
    """Proposition 2: an error in w of at most `|(I - J)^-1| |J|^terms |c|`.

    Krylov methods of as many steps have more than as many terms.
    """
    with jax.enable_x64(True):
        params, batch = problem(count=1)
        terms = truncation + 1 if rule == "neumann" else truncation
        _, _, ((exact, c, jacobian, pixels),) = dense(params, batch)
        model = hopfield(PIXELS, HIDDEN, rule=rule, truncation=truncation, tolerance=1e-14)
        _, found, _ = gradient_of(model, params, batch)
        # What a pixel sends to a free neuron is its activation times the weight.
        w = found[0, PIXELS:] / pixels[0]
        inverse = np.linalg.norm(np.linalg.inv(np.eye(FREE) - jacobian), 2)
        bound = inverse * np.linalg.norm(jacobian, 2) ** terms * np.linalg.norm(c)
        assert 0 < np.linalg.norm(w - exact) <= bound
        if rule in ("neumann", "tbptt", "rbp"):
            _, gradient, _ = dense(params, batch, terms)
            np.testing.assert_allclose(found, gradient, atol=1e-12)


def test_a_uniform_start_is_drawn_anew_with_every_key():
    params, batch = problem(np.float32)
    model = hopfield(PIXELS, HIDDEN, rule="rbp", truncation=2, uniform=True)
    first, again, other = (
        gradient_of(model, params, batch, key=jax.random.key(seed))[1] for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, other, atol=1e-3)


@pytest.mark.parametrize("rule", ["tbptt", "neumann"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_states_are_those_of_numpy_in_both_precisions(rule, dtype):
    with jax.enable_x64(dtype == np.float64):
        params, batch = problem(dtype)
        model = hopfield(PIXELS, HIDDEN, rule=rule)
        states, info = jax.jit(model.settle)(params, batch.observed)
        assert states.dtype == dtype
        assert np.all(info.converged)
        assert info.steps.shape == (3,)
        weights = whole(np.asarray(params["halves"], np.float64))
        expected = [settled(weights, image.astype(np.float64)) for image in batch.observed]
        np.testing.assert_allclose(states, expected, atol=1e-4)
        path = model.trajectory(params, batch.observed[0], 40)
        assert np.all(path[0] == 0)
        np.testing.assert_allclose(path[-1], expected[0], atol=1e-4)


def test_other_constants_change_the_speed_and_not_the_equation():
    params, batch = problem(np.float32, 1.0)
    model = hopfield(PIXELS, HIDDEN, time_constant=2.0, gain=0.3, step=0.5, steps=200)
    states, info = model.settle(params, batch.observed)
    assert np.all(info.converged)
    x = sigmoid(0.3 * np.hstack([batch.observed, states]))
    received = (x @ np.asarray(model.weights(params)))[:, PIXELS:]
    np.testing.assert_allclose(states, 2.0 * received, rtol=1e-3)


def test_weights_are_symmetric_and_observed_neurons_stay_put():
    params, batch = problem(np.float32)
    model = hopfield(PIXELS, HIDDEN, scale=1e-3)
    for halves in (params, model.init(jax.random.key(0))):
        weights = np.asarray(model.weights(halves))
        np.testing.assert_array_equal(weights, weights.T)
        assert np.all(np.diag(weights) == 0)
    assert model.init(jax.random.key(0))["halves"].std() == pytest.approx(1e-3, rel=0.2)
    # What lies between observed neurons, or on the diagonal, is of no consequence.
    other = params["halves"].copy()
    other[:PIXELS, :PIXELS] += 1
    other[np.diag_indices(len(other))] -= 1
    found, expected = (
        model.settle({"halves": halves}, batch.observed)[0] for halves in (other, params["halves"])
    )
    np.testing.assert_array_equal(found, expected)
    assert np.all(np.asarray(gradient_of(model, params, batch)[1])[:PIXELS, :PIXELS] == 0)


def test_read_out_and_sums():
    params, batch = problem(np.float32)
    for read_out, read in (("state", lambda h: h), ("activation", lambda h: sigmoid(GAIN * h))):
        model = hopfield(PIXELS, HIDDEN, read_out=read_out)
        loss, outcome = model.loss(params, batch)
        found = read(np.asarray(model.settle(params, batch.observed)[0])[:, HIDDEN:])
        np.testing.assert_allclose(loss, np.abs(found - batch.target).mean(), rtol=1e-5)
        np.testing.assert_allclose(outcome.sums["loss"] / outcome.sums["count"], loss, rtol=1e-6)
        wrong = ((found > 0.5) != (batch.target > 0.5)).mean()
        np.testing.assert_allclose(outcome.sums["error"] / outcome.sums["count"], wrong, rtol=1e-6)
        assert outcome.info.steps.shape == (1, 3)


def test_force_is_the_slope_of_the_energy():
    """dE/dh_i = -(dx_i/dh_i) dh_i/dt, term by term of equation 19; in float64."""
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        a, b, n = 1.7, 0.6, 5
        weights = whole(rng.normal(size=(n, n)))
        h, external = rng.normal(size=(2, n))
        x = sigmoid(b * h)
        speed = -h / a + weights @ x + external
        slope = jax.grad(lambda h: energy(weights, h, external, time_constant=a, gain=b))(h)
        np.testing.assert_allclose(slope, -b * x * (1 - x) * speed, rtol=1e-12)
        # At both ends of the activation the energy is finite.
        far = np.array([1e4, -1e4, 1e4, -1e4, 0.0])
        assert np.isfinite(energy(weights, far, external, time_constant=a, gain=b))


STEPS = {1.0: 8.0, 0.5: 24.0}  # Euler's step, and how far below zero eigenvalues may lie for it


@pytest.fixture(scope="module")
def energies():
    """`(step, params, image) -> energy along an inference`, compiled once each."""

    def along(step):
        model = hopfield(PIXELS, HIDDEN, step=step)

        def run(params, image):
            path = model.trajectory(params, image, 30)
            return jax.vmap(lambda state: model.energy(params, image, state))(path)

        return jax.jit(run)

    return {step: along(step) for step in STEPS}


@given(seed=st.integers(0, 10**6), share=st.floats(0.05, 1.0), step=st.sampled_from([*STEPS]))
def test_energy_never_rises_along_inference(energies, seed, share, step):
    with jax.enable_x64(True):
        params, batch = problem(seed=seed)
        inner = symmetric(params["halves"])[PIXELS:, PIXELS:]
        params["halves"] *= share * STEPS[step] / -np.linalg.eigvalsh(inner)[0]
        inner = symmetric(params["halves"])[PIXELS:, PIXELS:]
        assert step <= descent_step(inner) + 1e-12
        found = np.asarray(energies[step](params, batch.observed[0]))
        assert np.all(np.diff(found) <= 1e-13 * np.abs(found).max())
        assert found[-1] < found[0]


@given(seed=st.integers(0, 10**6))
def test_energy_never_rises_when_neurons_move_one_at_a_time(seed):
    """Whatever the weights: the diagonal is zero, so each neuron goes to its own minimum."""
    rng = np.random.default_rng(seed)
    weights = whole(20 * rng.normal(size=(6, 6)))
    h, external = rng.normal(size=(2, 6))

    def level(h):  # of the paper, in numpy
        x = np.clip(sigmoid(GAIN * h), 1e-300, 1 - 1e-16)
        integral = (x * np.log(x) + (1 - x) * np.log1p(-x)) / GAIN
        return -x @ weights @ x / 2 + np.sum(integral - external * x)

    for i in rng.permutation(np.repeat(np.arange(6), 3)):
        before = level(h)
        h[i] = weights[i] @ sigmoid(GAIN * h) + external[i]
        assert level(h) <= before + 1e-9


def test_a_longer_step_than_the_safe_one_can_raise_the_energy():
    """Two neurons that silence each other swing together; in shorter steps they do not."""
    halves = np.zeros((3, 3))
    halves[1, 2] = -40.0
    params, image = {"halves": jnp.asarray(halves)}, jnp.zeros(1)

    def rises(step):
        model = hopfield(1, 1, step=step)
        path = model.trajectory(params, image, 12)
        found = [float(model.energy(params, image, state)) for state in path]
        return np.any(np.diff(found) > 1e-3)

    safe = float(descent_step(jnp.array([[0, -40.0], [-40.0, 0]])))
    assert safe == pytest.approx(2 / (1 + 40 / 8))
    assert rises(1.0)
    assert not rises(safe)


def test_what_cannot_be_is_refused():
    for options, message in (
        ({"rule": "hebb"}, "unknown rule 'hebb'"),
        ({"truncation": -1}, "steps must be an integer of at least 0"),
        ({"pixels": 0}, "pixels must be at least 1, got 0"),
        ({"hidden": -1}, "hidden must be at least 0, got -1"),
        ({"gain": 0.0}, "must be positive"),
        ({"read_out": "loud"}, 'read_out must be "state" or "activation"'),
    ):
        with pytest.raises(ValueError, match=message):
            hopfield(**options)
