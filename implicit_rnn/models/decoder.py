"""What writes a sequence given a vector, or given a sequence to look at while it writes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from implicit_rnn import sequence
from implicit_rnn.cells.base import Cell, Params, State
from implicit_rnn.models.attention import Attention, masked_softmax
from implicit_rnn.models.readout import init_read, read
from implicit_rnn.sequence.stack import drop

Context = Literal["input", "state", "both"]


class Source(NamedTuple):
    """What one sequence is written from.

    Attributes:
      context: `[context_size]`.
      memory: `[time, context_size]`, zero past the length; None without attention.
      keys: of the memory.
      mask: `[time]`, which of it counts.
    """

    context: jax.Array
    memory: jax.Array | None = None
    keys: jax.Array | None = None
    mask: jax.Array | None = None


class Decoder(NamedTuple):
    """Writes one sequence; `jax.vmap` makes batches.

    Tokens are 0 to `vocabulary - 1`. What the first step is given is the start token, of number
    `vocabulary`; as an output that number is the end token.

    Attributes:
      init: `key -> params`.
      begin: `(params, context, memory=None, length=None) -> (Source, state)` before the first step.
      step: `(params, source, state, token, extra) -> (scores, state)`.
      scores: `(params, source, state, tokens [time], length, extra, key=None) -> (scores, weights)`
        of all steps, given what each is given: scores `[time, outputs]`, and the weights of
        attention `[time, source time]`, or None. Without a key nothing is dropped.
    """

    init: Callable[[jax.Array], Params]
    begin: Callable[..., tuple[Source, State]]
    step: Callable[..., tuple[jax.Array, State]]
    scores: Callable[..., tuple[jax.Array, jax.Array | None]]


def decoder(
    cell: Cell,
    vocabulary: int,
    context_size: int,
    embedding_size: int,
    *,
    context: Context = "both",
    attention: Attention | None = None,
    extra_size: int = 0,
    ends: bool = True,
    dropout: float = 0.0,
    feeding: bool = False,
) -> Decoder:
    """A causal cell given the token before and a context (figures 10.9 and 10.12).

        input_t = [embedding(y_{t-1}), context_t, extra_t],    state_0 = tanh(W context + b)

    With attention `context_t` is the mean of the memory, weighted by the scores of
    `output(state_{t-1})`, and the read-out sees it beside the output. With input feeding (Luong et
    al., 2015) it looks after its step, and what it has seen is what the next step is given,

        input_t = [embedding(y_{t-1}), seen_{t-1}, extra_t],
        seen_t = tanh(W [output(state_t), context_t] + b),    seen_0 = 0,

    where `context_t` goes by the scores of `output(state_t)`, and the read-out sees `seen_t` alone.

    Args:
      cell: any causal one.
      vocabulary: how many tokens, start and end not among them.
      context_size: width of context and memory.
      embedding_size: width of an embedded token.
      context: whether the context is a part of every input, makes the first state, or both.
      attention: how to look at a memory; the context then is a part of every input.
      extra_size: width of what a caller adds to every input.
      ends: whether the end token is among the outputs.
      dropout: of embedded tokens, and of what the read-out sees, which is then what is fed.
      feeding: see above; needs attention.

    Parameters: `embedding` `[vocabulary + 1, embedding_size]`, `cell`, `read` with `weights` and
    `bias`, where needed `start` (`weights` and `bias` for each leaf of the state), `attention` and
    `seen` with `weights` `[hidden + context_size, hidden]` and `bias`.
    """
    if cell.whole:
        raise ValueError(
            f"a decoder takes a causal cell; this {cell.name} depends on the whole sequence, of "
            'which a decoder has written a part (recursion: use "dynamic" or "scalar")'
        )
    if not cell.causal:
        raise ValueError(f"a decoder takes a causal cell; {cell.name} looks ahead")
    if context not in ("input", "state", "both"):
        raise ValueError(f'context must be "input", "state" or "both", got {context!r}')
    if attention is not None and context == "state":
        raise ValueError('with attention the context is an input: use "input" or "both"')
    if feeding and attention is None:
        raise ValueError("input feeding is of what attention has found: choose an attention")
    if vocabulary < 1:
        raise ValueError(f"vocabulary must be at least 1, got {vocabulary}")
    feeds, starts = context != "state", context != "input"
    seen_size = cell.hidden_size + (0 if attention is None or feeding else context_size)

    parts = _Writer(
        embedding_size=embedding_size,
        feeds=feeds,
        context_size=context_size,
        extra_size=extra_size,
        vocabulary=vocabulary,
        ends=ends,
        cell=cell,
        seen_size=seen_size,
        starts=starts,
        attention=attention,
        dropout=dropout,
        feeding=feeding,
    )
    return Decoder(parts.init, parts.begin, parts.step, parts.scores)


@dataclasses.dataclass(frozen=True, eq=False)
class _Writer:
    """What a decoder does."""

    embedding_size: int
    feeds: bool
    context_size: int
    extra_size: int
    vocabulary: int
    ends: bool
    cell: Cell
    seen_size: int
    starts: bool
    attention: Attention | None
    dropout: float
    feeding: bool = False

    @property
    def fed_size(self) -> int:
        """Width of what an input has beside its token and what a caller adds."""
        return self.cell.hidden_size if self.feeding else self.context_size

    def init(self, key: jax.Array) -> Params:
        keys = jax.random.split(key, 5)
        input_size = self.embedding_size + (self.fed_size if self.feeds else 0) + self.extra_size
        outputs = self.vocabulary + self.ends
        params = {
            "embedding": jax.random.normal(keys[0], (self.vocabulary + 1, self.embedding_size)),
            "cell": self.cell.init(keys[1], input_size),
            "read": init_read(keys[2], self.seen_size, outputs),
        }
        if self.starts:
            leaves = jax.tree.leaves(self.cell.initial_state(params["cell"]))
            params["start"] = [
                init_read(k, self.context_size, leaf.size)
                for k, leaf in zip(jax.random.split(keys[3], len(leaves)), leaves, strict=True)
            ]
        if self.attention is not None:
            params["attention"] = self.attention.init(
                keys[4], self.cell.hidden_size, self.context_size
            )
        if self.feeding:
            both = self.cell.hidden_size + self.context_size
            own = jax.random.fold_in(key, 5)
            params["seen"] = init_read(own, both, self.cell.hidden_size)
        return params

    def begin(
        self,
        params: Params,
        context: jax.Array,
        memory: jax.Array | None = None,
        length: jax.Array | None = None,
    ) -> tuple[Source, State]:
        state = self.cell.initial_state(params["cell"])
        if self.starts:
            leaves, tree = jax.tree.flatten(state)
            made = [
                jnp.tanh(read(own, context)).reshape(leaf.shape)
                for own, leaf in zip(params["start"], leaves, strict=True)
            ]
            state = jax.tree.unflatten(tree, made)
        if self.feeding:
            state = state, jnp.zeros(self.cell.hidden_size, context.dtype)
        if self.attention is None:
            return Source(context), state
        assert memory is not None
        mask = jnp.arange(memory.shape[0]) < (memory.shape[0] if length is None else length)
        keys = self.attention.prepare(params["attention"], memory)
        return Source(context, memory, keys, mask), state

    def embed(self, params: Params, tokens: jax.Array) -> jax.Array:
        return jnp.asarray(params["embedding"])[tokens]

    def given(self, embedded: jax.Array, context: jax.Array, extra: jax.Array) -> jax.Array:
        """Inputs of one step or of many."""
        parts = [embedded, extra]
        if self.feeds:
            shape = (*embedded.shape[:-1], self.fed_size)
            parts.append(jnp.broadcast_to(context, shape))
        return jnp.concatenate(parts, axis=-1)

    def turn(
        self,
        params: Params,
        source: Source,
        state: State,
        embedded: jax.Array,
        extra: jax.Array,
        left: jax.Array | float = 1.0,
    ) -> tuple[State, jax.Array, jax.Array | None]:
        """The new state, what the read-out sees, and the weights of attention.

        Args:
          left: what dropout leaves of what is fed.
        """
        if self.feeding:
            state, before = state
            state = self.taken(params, state, embedded, before, extra)
            output = self.cell.output(state)
            mixed, weights = self.look(params, source, output)
            seen = left * jnp.tanh(read(params["seen"], jnp.concatenate([output, mixed])))
            return (state, seen), seen, weights
        if self.attention is None:
            state = self.taken(params, state, embedded, source.context, extra)
            return state, self.cell.output(state), None
        mixed, weights = self.look(params, source, self.cell.output(state))
        state = self.taken(params, state, embedded, mixed, extra)
        return state, jnp.concatenate([self.cell.output(state), mixed]), weights

    def taken(
        self, params: Params, state: State, embedded: jax.Array, fed: jax.Array, extra: jax.Array
    ) -> State:
        """The cell's state after a step."""
        xi = self.cell.project(params["cell"], self.given(embedded, fed, extra))
        return self.cell.step(params["cell"], xi, state)

    def look(self, params: Params, source: Source, query: jax.Array) -> tuple[jax.Array, jax.Array]:
        """What attention finds, and its weights."""
        assert self.attention is not None
        assert source.memory is not None
        assert source.keys is not None
        assert source.mask is not None
        scores = self.attention.scores(params["attention"], source.keys, query)
        weights = masked_softmax(scores, source.mask)
        return weights @ source.memory, weights

    def step(
        self, params: Params, source: Source, state: State, token: jax.Array, extra: jax.Array
    ) -> tuple[jax.Array, State]:
        state, seen, _ = self.turn(params, source, state, self.embed(params, token), extra)
        return read(params["read"], seen), state

    def scores(
        self,
        params: Params,
        source: Source,
        state: State,
        tokens: jax.Array,
        length: jax.Array,
        extra: jax.Array,
        key: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array | None]:
        keys = (None, None) if key is None else jax.random.split(key)
        embedded = drop(self.embed(params, tokens), self.dropout, keys[0])
        if self.attention is None:
            xs = self.given(embedded, source.context, extra)
            seen, _ = sequence.unroll(self.cell, params["cell"], xs, length=length, state=state)
            return read(params["read"], drop(seen, self.dropout, keys[1])), None

        def body(state: State, row: tuple) -> tuple[State, tuple]:
            state, seen, weights = self.turn(params, source, state, *row)
            return state, (seen, weights)

        if self.feeding:
            whole = jnp.ones((tokens.shape[0], self.seen_size), embedded.dtype)
            rows = embedded, extra, drop(whole, self.dropout, keys[1])
            _, (seen, weights) = lax.scan(body, state, rows)
            return read(params["read"], seen), weights
        _, (seen, weights) = lax.scan(body, state, (embedded, extra))
        return read(params["read"], drop(seen, self.dropout, keys[1])), weights


def shifted(
    tokens: jax.Array, length: jax.Array, vocabulary: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """What each step is given and what it should say, for sequences `[batch, time]` that end.

    Returns:
      Inputs (the start token in front) and labels (the end token behind), `[batch, time + 1]`, and
      which of them count: `length + 1` of each.
    """
    clean = jnp.where(jnp.arange(tokens.shape[1]) < length[:, None], tokens, vocabulary)
    edge = jnp.full_like(clean, vocabulary, shape=(tokens.shape[0], 1))
    mask = jnp.arange(tokens.shape[1] + 1) <= length[:, None]
    return (
        jnp.concatenate([edge, clean], axis=1),
        jnp.concatenate([clean, edge], axis=1),
        mask,
    )
