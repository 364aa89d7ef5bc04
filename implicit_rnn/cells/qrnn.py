"""The quasi-recurrent network with fo-pooling (Bradbury et al., 2016)."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from implicit_rnn.cells.base import Cell, Params, affine, dense, pieces
from implicit_rnn.cells.factory import cell_factory
from implicit_rnn.cells.recurrence import convolved, last_of, linear_recurrence

Scores = tuple[jax.Array, jax.Array, jax.Array]  # of z, f and o


class QRNNState(NamedTuple):
    """Output, memory, and what the inputs so far add to the scores of the next steps."""

    h: jax.Array
    c: jax.Array
    pending: tuple[Scores, ...]  # the next step's first, filter_width - 1 of them


@cell_factory
def qrnn(hidden_size: int, *, filter_width: int = 2) -> Cell:
    """`c = f c_prev + (1 - f) z`, `h = o c`, with scores from the last k inputs (equation 4):

        z = tanh(a_z), f = sigmoid(a_f), o = sigmoid(a_o),    a_t = sum_{j < k} W_j x_{t-j} + b,

    a causal convolution, of which `project` makes the products. An input's part in the scores of
    later steps waits in the state: a sequence can be cut anywhere and carried on.

    Args:
      hidden_size: width of the state.
      filter_width: k, how many inputs a step sees.

    Parameters: `input` `[in, 3 k d]` (`W_0` for z, f and o, then `W_1`, ...) and `bias` `[3 d]`.
    """
    if filter_width < 1:
        raise ValueError(f"filter_width must be at least 1, got {filter_width}")
    d, k = hidden_size, filter_width

    def init(key: jax.Array, input_size: int) -> Params:
        weights = dense(key, (input_size, 3 * k * d), gain=k**-0.5)
        return {"input": weights, "bias": jnp.zeros(3 * d)}

    def project(params: Params, x: jax.Array) -> tuple[Scores, ...]:
        wide = affine(x, params["input"], jnp.pad(params["bias"], (0, 3 * (k - 1) * d)))
        parts = pieces(wide, 3 * k)
        return tuple((parts[i], parts[i + 1], parts[i + 2]) for i in range(0, 3 * k, 3))

    def update(
        scores: Scores, c: jax.Array, pending: tuple[Scores, ...]
    ) -> tuple[QRNNState, QRNNState]:
        z, f, o = jnp.tanh(scores[0]), jax.nn.sigmoid(scores[1]), jax.nn.sigmoid(scores[2])
        c = z + f * (c - z)
        nothing = jax.tree.map(jnp.zeros_like, pending)
        return QRNNState(o * c, c, pending), QRNNState(jnp.zeros_like(f), f, nothing)

    def split_step(
        params: Params, xi: tuple[Scores, ...], state: QRNNState
    ) -> tuple[QRNNState, QRNNState]:
        # Of k sums the first is complete now; the last is begun by this input alone.
        begun: tuple[Scores, ...] = jax.tree.map(jnp.add, xi[: k - 1], state.pending)
        sums = (*begun, xi[k - 1])
        return update(sums[0], state.c, sums[1:])

    def at_rest(params: Params, xi: tuple[Scores, ...]) -> tuple[QRNNState, QRNNState]:
        return update(xi[0], jnp.zeros((), xi[0][0].dtype), xi[1:])

    def initial_state(params: Params) -> QRNNState:
        zero = jnp.zeros(d, params["bias"].dtype)
        return QRNNState(zero, zero, ((zero, zero, zero),) * (k - 1))

    def run(
        params: Params, xs: jax.Array, state: QRNNState, length: jax.Array, reverse: bool
    ) -> tuple[jax.Array, QRNNState]:
        scores, pending = convolved(project(params, xs), state.pending, length, reverse)
        z, f, o = jnp.tanh(scores[0]), jax.nn.sigmoid(scores[1]), jax.nn.sigmoid(scores[2])
        c, last = linear_recurrence(f, (1 - f) * z, state.c, length, reverse)
        h = o * c
        return h, QRNNState(last_of(h, state.h, length, reverse), last, pending)

    def remember(params: Params, lengths: jax.Array) -> Params:
        return params | {"bias": params["bias"].at[d : 2 * d].set(jnp.log(lengths))}

    return Cell(
        name="qrnn",
        hidden_size=d,
        init=init,
        project=project,
        step=lambda params, xi, state: split_step(params, xi, state)[0],
        output=lambda state: state.h,
        initial_state=initial_state,
        split_step=split_step,
        at_rest=at_rest,
        remember=remember,
        bounds={},
        run=run,
    )
