"""Arguments that do not fit: the error names the argument and what would fit."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import implicit_rnn as library
from implicit_rnn import cells

KEY = jax.random.key(0)
GRU, IGRU, LSTM = cells.gru(4), cells.igru(4), cells.lstm(4)
FIVE = jnp.ones((7, 5))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: library.implicit(IGRU, IGRU.init(KEY, 6), FIVE), r"xs has 5 features.* for 6"),
        (lambda: library.implicit_batch(IGRU, IGRU.init(KEY, 6), FIVE[None]), r"xs has 5.* for 6"),
        (lambda: library.unroll(LSTM, LSTM.init(KEY, 6), FIVE), r"xs has 5 features.* for 6"),
        (lambda: library.equilibrium(GRU, GRU.init(KEY, 6), FIVE[0]), r"xs has 5 features"),
        (
            lambda: library.unroll(cells.gru(3), GRU.init(KEY, 5), FIVE),
            r"params\['bias'\] has shape \(12,\).* gru of hidden size 3 has \(9,\)",
        ),
        (
            lambda: library.implicit(IGRU, GRU.init(KEY, 5), FIVE),
            r"params have no .*\['switch'\].* not those of igru",
        ),
        (
            lambda: library.unroll(GRU, GRU.init(KEY, 5), FIVE, state=jnp.zeros(3)),
            r"state must be an array of shape \(4,\) for gru, got an array of shape \(3,\)",
        ),
        (
            lambda: library.unroll(LSTM, LSTM.init(KEY, 5), FIVE, state=jnp.zeros(4)),
            r"state must be a tree with .h \(4,\), .c \(4,\) for lstm",
        ),
        (
            lambda: library.implicit(IGRU, IGRU.init(KEY, 5), FIVE, start=jnp.zeros((7, 3))),
            r"start must be an array of shape \(7, 4\)",
        ),
    ],
)
def test_an_argument_that_does_not_fit_is_named(call, message) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_other_errors_keep_their_words() -> None:
    with pytest.raises(ValueError, match="unknown method 'magic'"):
        library.implicit(IGRU, IGRU.init(KEY, 5), FIVE, method="magic")
