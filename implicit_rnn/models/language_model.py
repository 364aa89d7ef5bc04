"""The next token of a stream: a stack of causal cells, its states carried from window to window."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from implicit_rnn import sequence
from implicit_rnn.cells.base import Cell, Params, State, affine, dense
from implicit_rnn.models.base import NO_SETTINGS, Outcome, label_sums
from implicit_rnn.models.decoding import perturbed
from implicit_rnn.sequence.stack import drop
from solvers import Info


class TokenBatch(NamedTuple):
    """A window of each of several parallel streams; the next begins with the last token of this."""

    tokens: jax.Array  # int [batch, time + 1]


class LanguageModel(NamedTuple):
    """A `Model` of streams of tokens.

    Attributes:
      init, loss, bounds, solves: as for every `Network`; a batch has `tokens` `[batch, time + 1]`,
        of which all but the last are inputs and all but the first are what is to be said; sums are
        `loss` (nats), `bits`, `error` (tokens that are not the likeliest) and `count` (tokens).
        With `carry=` the states start there, no gradient passes, and `Outcome.carry` is where they
        ended; without, streams begin afresh.
      carry: `(params, batch size) -> carry` of streams that begin.
      scores: `(params, tokens [batch, time], *, carry=None, key=None) -> (scores [batch, time,
        vocabulary], carry)`.
      step: `(params, states, token) -> (log-probabilities, states)` for one stream, for `decoding`;
        `start(params)` are the states before the first.
      start: see `step`.
      sample: `(params, key, prompt [n], count, temperature=1) -> tokens [count]` that follow a
        prompt of at least one token; temperature 0 takes the likeliest and needs no key (None).
    """

    init: Callable[[jax.Array], Params]
    loss: Callable[..., tuple[jax.Array, Outcome]]
    bounds: Any
    solves: int
    carry: Callable[[Params, int], Any]
    scores: Callable[..., tuple[jax.Array, Any]]
    step: Callable[[Params, State, jax.Array], tuple[jax.Array, State]]
    start: Callable[[Params], State]
    sample: Callable[..., jax.Array]


def language_model(
    cells: Sequence[Cell],
    vocabulary: int,
    *,
    embedding_size: int | None = None,
    tied: bool = False,
    dropout: float = 0.0,
    truncate: int | None = None,
) -> LanguageModel:
    """A recurrent language model (a "char-RNN").

    Args:
      cells: causal, one a layer, the lowest first: `[cells.lstm(128)] * 2`.
      vocabulary: how many tokens.
      embedding_size: width of an embedded token; None gives the first layer one-hot vectors.
      tied: read out with the embedding, which then is as wide as the last layer.
      dropout: chance that an entry of what a layer gives is dropped, on its way to the next layer
        or to the read-out.
      truncate: no gradient passes from a step to the one before it every so many steps of a window.

    Parameters: `layers`, a list; `read` with `weights` `[width, vocabulary]` (unless tied) and
    `bias`; `embedding` `[vocabulary, embedding_size]` where there is one.
    """
    cells = tuple(cells)
    if not cells:
        raise ValueError("cells must hold at least one cell")
    for cell in cells:
        if not cell.causal:
            raise ValueError(f"a language model takes causal cells; {cell.name} looks ahead")
    if vocabulary < 1:
        raise ValueError(f"vocabulary must be at least 1, got {vocabulary}")
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout must be at least 0 and below 1, got {dropout}")
    if truncate is not None and truncate < 1:
        raise ValueError(f"truncate must be at least 1, or None; got {truncate}")
    width = cells[-1].hidden_size
    if tied and embedding_size != width:
        raise ValueError(
            f"a tied embedding is as wide as the last layer: embedding_size must be {width}, "
            f"got {embedding_size}"
        )

    def init(key: jax.Array) -> Params:
        keys = jax.random.split(key, 3)
        params: Params = {
            "layers": sequence.init_stack(cells, keys[0], embedding_size or vocabulary),
            "read": {"bias": jnp.zeros(vocabulary)},
        }
        if not tied:
            params["read"]["weights"] = dense(keys[1], (width, vocabulary))
        if embedding_size is not None:
            scale = width**-0.5 if tied else 1.0
            shape = (vocabulary, embedding_size)
            params["embedding"] = scale * jax.random.normal(keys[2], shape)
        return params

    def start(params: Params) -> State:
        return tuple(
            cell.initial_state(own) for cell, own in zip(cells, params["layers"], strict=True)
        )

    def carry(params: Params, batch_size: int) -> State:
        return jax.tree.map(
            lambda leaf: jnp.broadcast_to(leaf, (batch_size, *leaf.shape)), start(params)
        )

    def table(params: Params) -> jax.Array:
        """A vector for every token."""
        if embedding_size is None:
            return jnp.eye(vocabulary, dtype=params["read"]["bias"].dtype)
        return jnp.asarray(params["embedding"])

    def project(params: Params, tokens: jax.Array) -> Any:
        """What the first layer makes of tokens of any shape."""
        cell, own, vectors = cells[0], params["layers"][0], table(params)
        if tokens.size < vocabulary:
            return cell.project(own, vectors[tokens])
        # Every token of the vocabulary once, instead of every token of the window.
        return jax.tree.map(lambda leaf: leaf[tokens], cell.project(own, vectors))

    def read(params: Params, outputs: jax.Array) -> jax.Array:
        weights = params["embedding"].T if tied else params["read"]["weights"]
        return affine(outputs, weights, params["read"]["bias"])

    def forward(
        params: Params, tokens: jax.Array, states: State, key: jax.Array | None
    ) -> tuple[jax.Array, State]:
        """Scores `[time, batch, vocabulary]` of tokens `[time, batch]`, and the last states."""
        outputs: Any = None
        lasts = []
        for number, (cell, own) in enumerate(zip(cells, params["layers"], strict=True)):
            if cell.run is not None and truncate is None:  # all steps at once
                xs = outputs if number else table(params)[tokens]
                given, last = _unrolled(cell, own, xs, states[number])
            else:
                xi = cell.project(own, outputs) if number else project(params, tokens)
                passed, last = _scan(cell, own, xi, states[number], truncate)
                given = cell.output(passed)
            lasts.append(last)
            outputs = drop(given, dropout, None if key is None else jax.random.fold_in(key, number))
        return read(params, outputs), tuple(lasts)

    def begun(params: Params, carried: State | None, batch_size: int) -> State:
        return carry(params, batch_size) if carried is None else lax.stop_gradient(carried)

    def scores(
        params: Params,
        tokens: jax.Array,
        *,
        carry: State | None = None,
        key: jax.Array | None = None,
    ) -> tuple[jax.Array, State]:
        states = begun(params, carry, tokens.shape[0])
        found, last = forward(params, tokens.T, states, key)
        return jnp.swapaxes(found, 0, 1), last

    def loss(
        params: Params,
        batch: Any,
        *,
        key: jax.Array | None = None,
        probe: Info | None = None,
        solve: Mapping[str, Any] = NO_SETTINGS,
        carry: State | None = None,
    ) -> tuple[jax.Array, Outcome]:
        tokens = batch.tokens.T  # time first, as the scan goes: no step transposes anything
        states = begun(params, carry, tokens.shape[1])
        found, last = forward(params, tokens[:-1], states, key)
        mean, sums = label_sums(found, tokens[1:], jnp.ones(tokens[1:].shape, bool))
        return mean, Outcome(sums | {"bits": sums["loss"] / math.log(2)}, carry=last)

    def advance(params: Params, states: State, token: jax.Array) -> tuple[jax.Array, State]:
        """Scores of what follows one token, and the new states."""
        xi = project(params, token)
        new: list[State] = []
        for number, (cell, own) in enumerate(zip(cells, params["layers"], strict=True)):
            if number:
                xi = cell.project(own, cells[number - 1].output(new[-1]))
            new.append(cell.step(own, xi, states[number]))
        return read(params, cells[-1].output(new[-1])), tuple(new)

    def step(params: Params, states: State, token: jax.Array) -> tuple[jax.Array, State]:
        found, states = advance(params, states, token)
        return jax.nn.log_softmax(found), states

    def sample(
        params: Params,
        key: jax.Array | None,
        prompt: jax.Array,
        count: int,
        temperature: float | jax.Array = 1.0,
    ) -> jax.Array:
        prompt = jnp.asarray(prompt)
        if prompt.ndim != 1 or not prompt.size:
            raise ValueError(f"prompt must be one or more tokens [n], got shape {prompt.shape}")
        if key is None and not (isinstance(temperature, int | float) and temperature == 0):
            raise ValueError("a sample is drawn: pass a key, or temperature=0 for the likeliest")
        known = prompt.size

        def body(carried: tuple, time: jax.Array) -> tuple[tuple, jax.Array]:
            states, drawn = carried
            token = jnp.where(time < known, prompt[jnp.minimum(time, known - 1)], drawn)
            found, states = advance(params, states, token)
            own = None if key is None else jax.random.fold_in(key, time)
            drawn = jnp.argmax(perturbed(own, found, temperature)).astype(prompt.dtype)
            return (states, drawn), drawn

        begin = (start(params), prompt[0])
        _, tokens = lax.scan(body, begin, jnp.arange(known - 1 + count))
        return tokens[known - 1 :]

    return LanguageModel(init, loss, {}, 0, carry, scores, step, start, sample)


def _unrolled(cell: Cell, params: Params, xs: jax.Array, start: State) -> tuple[jax.Array, State]:
    """Outputs `[time, batch, hidden_size]` of inputs `[time, batch, features]`, and last states."""
    run = jax.vmap(lambda x, state: sequence.unroll(cell, params, x, state=state), (1, 0), (1, 0))
    return run(xs, start)


def _scan(
    cell: Cell, params: Params, xi: Any, start: State, truncate: int | None
) -> tuple[State, State]:
    """All states, `[time, batch, ...]`, and the last; every stream is as long as the window."""

    def body(state: State, row: tuple) -> tuple[State, State]:
        xi, cut = row
        if truncate is not None:
            state = jax.tree.map(lambda s: jnp.where(cut, lax.stop_gradient(s), s), state)
        new = cell.step(params, xi, state)
        return new, new

    time = jnp.arange(jax.tree.leaves(xi)[0].shape[0])
    cut = (time > 0) & (time % (truncate or 1) == 0)
    last, states = lax.scan(body, start, (xi, cut))
    return states, last
