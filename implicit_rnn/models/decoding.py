"""Sequences out of a model of the next token: greedy, drawn, and by beam search.

All take `step(state, token) -> (log-probabilities [tokens], state)` of one example; `jax.vmap`
makes batches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

State = Any
Step = Callable[[State, jax.Array], tuple[jax.Array, State]]


class Decoded(NamedTuple):
    """What was found; a beam search has a leading axis of beams, the best first.

    Attributes:
      tokens: `[max_length]`, the end token at and past the length.
      length: how many tokens come before the end; `max_length` if the end never came.
      score: log-probability, that of the end included; of a beam divided by its length penalty.
    """

    tokens: jax.Array
    length: jax.Array
    score: jax.Array


def greedy(
    step: Step, state: State, start: int | jax.Array, end: int | jax.Array, max_length: int
) -> Decoded:
    """The likeliest token, step after step.

    Args:
      step: the model.
      state: before the first step.
      start: the token given to the first step.
      end: the token that ends a sequence.
      max_length: how many steps at most; the end token takes one.
    """
    return _follow(step, state, start, end, max_length, lambda time, found: found)


def sample(
    step: Step,
    state: State,
    start: int | jax.Array,
    end: int | jax.Array,
    max_length: int,
    key: jax.Array,
    temperature: float | jax.Array = 1.0,
) -> Decoded:
    """Tokens drawn with probabilities proportional to `p^(1 / temperature)`; 0 is greedy.

    Args:
      key: draws.
      temperature: at least 0.
      step, state, start, end, max_length: as for `greedy`.

    Returns:
      As `greedy`; the score is the log-probability under the model itself, at temperature 1.
    """

    def noisy(time: jax.Array, found: jax.Array) -> jax.Array:
        return perturbed(jax.random.fold_in(key, time), found, temperature)

    return _follow(step, state, start, end, max_length, noisy)


def perturbed(
    key: jax.Array | None, scores: jax.Array, temperature: float | jax.Array
) -> jax.Array:
    """Scores whose largest is a draw: `argmax(scores + temperature * Gumbel noise)`."""
    if key is None:
        return scores
    return scores + temperature * jax.random.gumbel(key, scores.shape, scores.dtype)


def _follow(
    step: Step,
    state: State,
    start: int | jax.Array,
    end: int | jax.Array,
    max_length: int,
    rank: Callable[[jax.Array, jax.Array], jax.Array],
) -> Decoded:
    """One sequence: each token is the one that ranks first."""

    def body(carry: tuple, time: jax.Array) -> tuple[tuple, jax.Array]:
        state, token, done, length, score = carry
        found, state = step(state, token)
        token = jnp.where(done, end, jnp.argmax(rank(time, found))).astype(jnp.int32)
        score = score + jnp.where(done, 0, found[token])
        done = done | (token == end)
        return (state, token, done, length + ~done, score), token

    first = jnp.asarray(start, jnp.int32)  # whatever integers a vocabulary is kept as
    dtype = jax.eval_shape(step, state, first)[0].dtype
    begin = (state, first, jnp.asarray(False), jnp.asarray(0), jnp.zeros((), dtype))
    (*_, length, score), tokens = lax.scan(body, begin, jnp.arange(max_length))
    return Decoded(tokens, length, score)


def beam(
    step: Step,
    state: State,
    start: int | jax.Array,
    end: int | jax.Array,
    max_length: int,
    width: int,
    length_penalty: float = 0.6,
) -> Decoded:
    """The best sequences by beam search, ranked by (Wu et al., 2016, equation 14)

        log p(tokens) / ((5 + n) / 6)^length_penalty,    n tokens, the end among them.

    At every step all continuations of all beams compete; a beam that has ended stays as it is and
    competes with its final score.

    Args:
      width: how many beams.
      length_penalty: 0 ranks by probability alone, which favours short sequences.
      step, state, start, end, max_length: as for `greedy`.

    Returns:
      All beams, fields `[width, ...]`, the best first. Beams for which there are not enough
      sequences are empty, with a score of -inf.
    """
    if width < 1:
        raise ValueError(f"width must be at least 1, got {width}")

    def body(carry: tuple, time: jax.Array) -> tuple[tuple, None]:
        state, tokens, last, length, total, done, _ = carry
        found, state = jax.vmap(step)(state, last)
        kinds = found.shape[-1]
        # A beam that has ended has one continuation, the end again, at no cost.
        ended = jnp.where(jnp.arange(kinds) == end, 0, -jnp.inf)
        totals = total[:, None] + jnp.where(done[:, None], ended, found)
        count = jnp.where(done, length + 1, time + 1)
        ranked = totals / penalty(count, totals.dtype)[:, None]
        score, best = lax.top_k(ranked.reshape(-1), width)
        parent, token = best // kinds, best % kinds
        ends = token == end
        tokens = tokens[parent].at[:, time].set(token)
        length = jnp.where(done[parent], length[parent], time + ~ends)
        state = jax.tree.map(lambda leaf: leaf[parent], state)
        return (state, tokens, token, length, totals.reshape(-1)[best], ends, score), None

    def penalty(count: jax.Array, dtype: Any) -> jax.Array:
        return ((5 + count.astype(dtype)) / 6) ** length_penalty

    dtype = jax.eval_shape(step, state, jnp.asarray(start))[0].dtype
    begin = jnp.where(jnp.arange(width) == 0, 0, -jnp.inf).astype(dtype)  # one beam, not `width`
    carry = (
        jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (width, *jnp.shape(leaf))), state),
        jnp.full((width, max_length), end),
        jnp.full(width, start),
        jnp.zeros(width, int),
        begin,
        jnp.zeros(width, bool),
        begin,
    )
    (_, tokens, _, length, _, _, score), _ = lax.scan(body, carry, jnp.arange(max_length))
    # What continues an impossible sequence is as arbitrary as it.
    some = score > -jnp.inf
    return Decoded(jnp.where(some[:, None], tokens, end), jnp.where(some, length, 0), score)


def searches(
    begin: Callable[..., tuple[Any, State]],
    step: Callable[[Any, Any, State, jax.Array], tuple[jax.Array, State]],
    end: int,
) -> tuple[Callable[..., Decoded], Callable[..., Decoded]]:
    """`greedy` and `beam` for batches of sources, of a model that writes.

    Args:
      begin: `(params, source, length, max_length, **settings) -> (seen, state)`, both with a batch
        axis: what every step looks at, and the state before the first.
      step: `(params, seen, state, token) -> (log-probabilities, state)` of one example.
      end: the token that begins and ends a sequence.

    Returns:
      `(params, source, length, max_length, **settings) -> Decoded` and
      `(params, source, length, max_length, width, length_penalty=0.6, **settings) -> Decoded`.
    """

    def search(find: Callable, params: Any, begun: tuple[Any, State], *options: Any) -> Decoded:
        def one(seen: Any, state: State) -> Decoded:
            return find(lambda *at: step(params, seen, *at), state, end, end, *options)

        return jax.vmap(one)(*begun)

    def greedily(
        params: Any, source: jax.Array, length: jax.Array, max_length: int, **settings: Any
    ) -> Decoded:
        begun = begin(params, source, length, max_length, **settings)
        return search(greedy, params, begun, max_length)

    def by_beam(
        params: Any,
        source: jax.Array,
        length: jax.Array,
        max_length: int,
        width: int,
        length_penalty: float = 0.6,
        **settings: Any,
    ) -> Decoded:
        begun = begin(params, source, length, max_length, **settings)
        return search(beam, params, begun, max_length, width, length_penalty)

    return greedily, by_beam
