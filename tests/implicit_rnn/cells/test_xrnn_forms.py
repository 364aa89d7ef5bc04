"""The forms of the recursive unit: the paper's, and what its authors published, piece by piece."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import implicit_rnn
from implicit_rnn import cells
from tests.implicit_rnn.cells import equations
from tests.implicit_rnn.cells.checks import drawn
from tests.implicit_rnn.cells.equations import sigmoid

TIME, LENGTH, WIDTH = 6, 4, 4
LETTERS = ("forget", "output")


def joint(p, xs):
    """Scores of one LSTM, three times as wide: [time, 3, d]."""
    return np.stack(list(equations.lstm(p, xs, 3 * WIDTH))).reshape(len(xs), 3, WIDTH)


def both_ways(p, xs):
    """Scores of two LSTMs, one and a half times as wide, side by side within each score."""
    half = 3 * WIDTH // 2
    ahead = np.stack(list(equations.lstm(p["ahead"], xs, half)))
    back = np.stack(list(equations.lstm(p["back"], xs[::-1], half)))[::-1]
    parts = [found.reshape(len(xs), 3, WIDTH // 2) for found in (ahead, back)]
    return np.concatenate(parts, axis=-1)


def linear(p, xs):
    return (xs @ p["input"] + p["bias"]).reshape(len(xs), 3, WIDTH)


def weights(p, x):
    return sigmoid(x @ p["recursion"]["weights"] + p["recursion"]["bias"])


def encoder(base, p, xs):
    """The prototype's encoder: a unit's whole sequence, from those of the units below."""
    scores, c, outputs = base(p["base"], xs), np.zeros(WIDTH), []
    below = [encoder(base, p[letter], xs) for letter in LETTERS if letter in p]
    for t, x in enumerate(xs):
        f, o, z = scores[t]
        if below:
            alpha, beta = weights(p, x)
            f = alpha * below[0][t] + (1 - alpha) * f
            o = beta * below[1][t] + (1 - beta) * o
        f = sigmoid(f)
        c = f * np.maximum(z, 0) + (1 - f) * c
        h = sigmoid(o) * c
        outputs.append(h + x if len(x) == WIDTH else h)
    return outputs


def decoder_step(p, x, h):
    """One step of the prototype's decoder: every unit is given the root's h."""
    f, o, z = linear(p["base"], x[None])[0]
    if "recursion" in p:
        alpha, beta = weights(p, x)
        f = f + alpha * decoder_step(p["forget"], x, h)
        o = o + beta * decoder_step(p["output"], x, h)
    f = sigmoid(f)
    return sigmoid(o) * (f * np.tanh(z) + (1 - f) * h)


def decoder(_, p, xs):
    outputs = [np.zeros(WIDTH)]
    for x in xs:
        outputs.append(decoder_step(p, x, outputs[-1]))
    return outputs[1:]


CASES = {
    "prototype": ({"form": "prototype", "base": "lstm"}, encoder, joint, WIDTH),
    "other width": ({"form": "prototype", "base": "lstm"}, encoder, joint, 3),
    "linear": ({"form": "prototype"}, encoder, linear, WIDTH),
    "both ways": (
        {"form": "prototype", "base": "lstm", "two_way": True}, encoder, both_ways, WIDTH,
    ),
    "decoder": ({"form": "prototype_decoder"}, decoder, linear, WIDTH),
    "pieces": (
        {
            "squash": True, "candidate": "relu", "carries": "memory", "skip": "equal",
            "joint": True, "base": cells.lstm(3 * WIDTH),
        },
        encoder, joint, WIDTH,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_form_is_what_was_published(name):
    options, by_hand, base, inputs = CASES[name]
    with jax.enable_x64(True):
        cell = cells.xrnn(WIDTH, depth=3, **options)
        like = jax.eval_shape(lambda key: cell.init(key, inputs), jax.random.key(0))
        params = drawn(like)
        xs = np.random.default_rng(1).normal(size=(TIME, inputs))
        xs[LENGTH:] = np.nan

        def run(params, xs):
            return implicit_rnn.unroll(cell, params, xs, length=LENGTH)

        ys, _ = jax.jit(run)(params, xs)
        expected = by_hand(base, jax.tree.map(np.asarray, params), xs[:LENGTH])
        np.testing.assert_allclose(ys[:LENGTH], expected, atol=1e-12)
        assert np.all(ys[LENGTH:] == 0)
        # A batch, and a gradient that padding leaves alone.
        slope = jax.jit(jax.grad(lambda p, x: jnp.sum(jax.vmap(run, (None, 0))(p, x)[0])))
        one, two = slope(params, xs[None]), slope(params, np.stack([xs, xs]))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(2 * a, b, rtol=1e-9), one, two)
        assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(one))


@pytest.mark.parametrize("form", ["paper", "prototype", "prototype_decoder"])
@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_a_depth_is_so_many_levels_in_every_form(form, depth):
    cell = cells.xrnn(WIDTH, depth=depth, form=form, base="lstm")
    params = jax.eval_shape(lambda key: cell.init(key, WIDTH), jax.random.key(0))

    def units(params):
        return 1 + sum(units(params[letter]) for letter in LETTERS if letter in params)

    assert units(params) == 2**depth - 1
    state = jax.eval_shape(cell.initial_state, params)
    carried = {"paper": None, "prototype": (WIDTH,), "prototype_decoder": None}[form]
    assert getattr(state.c, "shape", None) == carried
    skips = jax.tree_util.tree_flatten_with_path(params)[0]
    assert not [path for path, _ in skips if "skip" in str(path)]


def test_a_form_says_what_it_is_made_of_and_pieces_replace_its_own():
    whole = cells.xrnn(WIDTH, form="prototype", base="lstm")
    pieces = {"squash": True, "candidate": "relu", "skip": "equal", "carries": "memory"}
    params = whole.init(jax.random.key(0), WIDTH)
    xs = jax.random.normal(jax.random.key(1), (TIME, WIDTH))
    found = implicit_rnn.unroll(whole, params, xs)[0]
    same = cells.xrnn(WIDTH, base="lstm", joint=True, **pieces)
    np.testing.assert_array_equal(implicit_rnn.unroll(same, params, xs)[0], found)
    for piece, other in {"candidate": "tanh", "skip": False, "squash": False}.items():
        cell = cells.xrnn(WIDTH, form="prototype", base="lstm", **{piece: other})
        assert not np.allclose(implicit_rnn.unroll(cell, params, xs)[0], found)


def test_a_base_that_reads_both_ways_marks_a_cell_as_whole_and_cannot_take_a_step():
    cell = cells.xrnn(WIDTH, form="prototype", base="gru", two_way=True)
    params = cell.init(jax.random.key(0), WIDTH)
    assert cell.whole
    assert not cell.causal
    xs = jax.random.normal(jax.random.key(1), (TIME, WIDTH))
    slope = jax.jacobian(lambda xs: implicit_rnn.unroll(cell, params, xs)[0][0].sum())(xs)
    assert np.all(np.abs(slope).sum(axis=1) > 0), "the first output depends on every input"
    assert set(cells.recursion_weights(cell, params, xs)) == {"L", "R"}
    with pytest.raises(ValueError, match="reads both ways needs the whole sequence"):
        cell.step(params, cell.project(params, xs[0]), cell.initial_state(params))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"form": "book"}, "form must be one of paper, prototype, prototype_decoder"),
        ({"combine": "multiply"}, '"mix" or "add"'),
        ({"skip": "often"}, 'True, False or "equal"'),
        ({"shared": True, "carries": "memory"}, "cannot carry a memory"),
        ({"two_way": True, "base": "lstm"}, "joint=True"),
        ({"two_way": True}, "two_way needs a base of cells"),
        ({"joint": True, "base": cells.gru(3)}, "must be 9 wide"),
        ({"joint": True, "base": "gru", "two_way": True}, "needs an even width, not 3"),
    ],
)
def test_bad_pieces_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        cells.xrnn(3, **options)
