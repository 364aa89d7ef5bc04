"""What the tests of several models share: oracles in numpy, finite differences, a few updates."""

from __future__ import annotations

import jax
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from tests.implicit_rnn.cells.equations import sigmoid


def log_softmax(x):
    shifted = x - x.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def lstm_by_hand(params, xs, h=None, c=None):
    """Outputs `[time, d]`, last h and last c."""
    params = jax.tree.map(np.asarray, params)
    d = params["recurrent"].shape[0]
    h, c = (np.zeros(d) if v is None else np.asarray(v) for v in (h, c))
    outputs = []
    for x in xs:
        z = x @ params["input"] + h @ params["recurrent"] + params["bias"]
        i, f, g, o = np.split(z, 4)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        outputs.append(h)
    return np.array(outputs).reshape(len(xs), d), h, c


def begin(made, *sizes):
    """Parameters shaped as the first ones, but drawn by numpy: nothing to compile, no bias zero."""
    shapes = jax.eval_shape(lambda key: made.init(key, *sizes), jax.random.key(0))
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: rng.normal(0, 0.6, leaf.shape).astype(leaf.dtype), shapes)


def assert_gradient(loss, params, directions=3, step=1e-5, rtol=1e-6):
    """The gradient of `loss(params)` along random directions is that of central differences."""
    flat, restore = ravel_pytree(params)
    assert flat.dtype == np.float64
    value = jax.jit(lambda flat: loss(restore(flat)))
    gradient = np.asarray(jax.jit(jax.grad(lambda flat: loss(restore(flat))))(flat))
    assert np.linalg.norm(gradient) > 1e-3
    rng = np.random.default_rng(0)
    for _ in range(directions):
        along = rng.normal(size=flat.shape)
        slope = (value(flat + step * along) - value(flat - step * along)) / (2 * step)
        np.testing.assert_allclose(gradient @ along, slope, rtol=rtol, atol=1e-8)


def assert_learns(model, batch, steps=8, rate=0.05):
    """A few updates by Adam from `init` lower the loss of one batch, and its sums say so."""
    params = jax.jit(model.init)(jax.random.key(0))
    optimiser = optax.adam(rate)

    @jax.jit
    def update(params, state):
        (loss, outcome), gradient = jax.value_and_grad(model.loss, has_aux=True)(params, batch)
        change, state = optimiser.update(gradient, state)
        return optax.apply_updates(params, change), state, loss, outcome.sums

    state = optimiser.init(params)
    losses = []
    for _ in range(steps):
        params, state, loss, sums = update(params, state)
        np.testing.assert_allclose(loss, sums["loss"] / sums["count"], rtol=1e-5)
        losses.append(float(loss))
    assert losses[-1] < 0.9 * losses[0]


def value_and_gradient(model, **settings):
    """Compiled `(params, batch) -> ((loss, sums), gradient)`."""

    def run(params, batch):
        loss, outcome = model.loss(params, batch, **settings)
        return loss, outcome.sums

    return jax.jit(jax.value_and_grad(run, has_aux=True))


def spoilt(values, length, garbage):
    """The same with garbage past the length, along the second axis."""
    values = np.asarray(values)
    past = np.arange(values.shape[1]) >= np.asarray(length)[:, None]
    return np.where(past.reshape(past.shape + (1,) * (values.ndim - 2)), garbage, values)
