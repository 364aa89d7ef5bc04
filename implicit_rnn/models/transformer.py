"""The Transformer (Vaswani et al., 2017): a sequence from a sequence by attention alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax.linen import dot_product_attention

from implicit_rnn.cells.base import Params, product
from implicit_rnn.models.base import NO_SETTINGS, Outcome, embedded
from implicit_rnn.models.blocks import Block, feed_forward, linear
from implicit_rnn.models.decoder import shifted
from implicit_rnn.models.decoding import Decoded, searches
from implicit_rnn.models.encoder import standardised
from implicit_rnn.models.readout import init_read, read
from implicit_rnn.models.seq2seq import smoothed, target_sums
from implicit_rnn.sequence.stack import drop

_LONGEST_WAVE = 1e4  # of the positions, over two pi


class Transformer(NamedTuple):
    """A `Model` of sequences given sequences, with the batches and sums of a `Seq2Seq`.

    Attributes:
      init, loss, bounds, solves, carry: as for every `Network`.
      scores: `(params, batch, *, key=None) -> [batch, time + 1, tokens + 1]`.
      greedy, beam: as for a `Seq2Seq`.
    """

    init: Callable[[jax.Array], Params]
    loss: Callable[..., tuple[jax.Array, Outcome]]
    scores: Callable[..., jax.Array]
    greedy: Callable[..., Decoded]
    beam: Callable[..., Decoded]
    bounds: Any = ()
    solves: int = 0
    carry: None = None


class Memory(NamedTuple):
    """What attention looks at, of one sequence."""

    keys: jax.Array  # [time, heads, width / heads]
    values: jax.Array  # [time, heads, width / heads]


class Seen(NamedTuple):
    """What a decoder sees of a source: memories of its layers, and which steps count `[time]`."""

    memories: list[Memory]
    mask: jax.Array


class Written(NamedTuple):
    """What a decoder has written: memories of its layers with room for more, and how many steps."""

    memories: list[Memory]
    steps: jax.Array


def transformer(
    source_vocabulary: int,
    target_vocabulary: int,
    *,
    width: int = 128,
    heads: int = 4,
    layers: int = 2,
    block: Block | None = None,
    aggregate: Block | None = None,
    dropout: float = 0.0,
    smoothing: float = 0.0,
) -> Transformer:
    """An encoder-decoder of attention and blocks, each normalised before and added to its input.

    Args:
      source_vocabulary, target_vocabulary: how many tokens; the decoder's own start and end token
        has the number `target_vocabulary`.
      width: of every step.
      heads: of an attention; divides the width.
      layers: of the encoder, and of the decoder.
      block: what follows attention; by default `feed_forward(4 * width)`, and `recursive()` is the
        parallel X-RNN in its place.
      aggregate: what makes one vector of those of the heads; by default `linear()`.
      dropout: of embedded tokens, and of what each attention and block adds.
      smoothing: where there is a key, the share of the loss that wants all tokens alike (label
        smoothing).

    Parameters: `source` and `target`, tables of embedded tokens, the latter with a row for start
    and end and the read-out as well; `encoder` and `decoder` with `layers` and a last `norm`.
    """
    if width % 2 or width % heads:
        raise ValueError(f"width must be even and a multiple of heads, got {width} and {heads}")
    if min(source_vocabulary, target_vocabulary, layers) < 1:
        raise ValueError(
            "vocabularies and layers must be at least 1, got "
            f"{source_vocabulary}, {target_vocabulary} and {layers}"
        )
    for name, value in (("dropout", dropout), ("smoothing", smoothing)):
        if not 0 <= value < 1:
            raise ValueError(f"{name} must be at least 0 and below 1, got {value}")
    inner, outer = block or feed_forward(4 * width), aggregate or linear()
    end = target_vocabulary

    parts = _Attentive(
        width=width,
        source_vocabulary=source_vocabulary,
        end=end,
        inner=inner,
        layers=layers,
        outer=outer,
        heads=heads,
        dropout=dropout,
        smoothing=smoothing,
    )
    return Transformer(
        parts.init, parts.loss, parts.scores, *searches(parts.begin, parts.step, end)
    )


@dataclasses.dataclass(frozen=True, eq=False)
class _Attentive:
    """What a Transformer does."""

    width: int
    source_vocabulary: int
    end: int
    inner: Block
    layers: int
    outer: Block
    heads: int
    dropout: float
    smoothing: float

    def init(self, key: jax.Array) -> Params:
        keys = jax.random.split(key, 4)
        tables = [
            self.width**-0.5 * jax.random.normal(k, (count, self.width))
            for k, count in zip(keys[:2], (self.source_vocabulary, self.end + 1), strict=True)
        ]
        return {
            "source": tables[0],
            "target": tables[1],
            "encoder": self.init_stack(keys[2], ["attend"]),
            "decoder": self.init_stack(keys[3], ["attend", "look"]),
        }

    def init_stack(self, key: jax.Array, attentions: list[str]) -> Params:
        def one(key: jax.Array) -> Params:
            keys = jax.random.split(key, len(attentions) + 1)
            params = {
                name: self.init_attention(k) for name, k in zip(attentions, keys[1:], strict=True)
            }
            return params | {
                "block": {"norm": self.init_norm(), "own": self.inner.init(keys[0], self.width)}
            }

        return {
            "layers": [one(k) for k in jax.random.split(key, self.layers)],
            "norm": self.init_norm(),
        }

    def init_attention(self, key: jax.Array) -> Params:
        keys = jax.random.split(key, 3)
        return {
            "norm": self.init_norm(),
            "query": init_read(keys[0], self.width, self.width),
            "memory": init_read(keys[1], self.width, 2 * self.width),
            "aggregate": self.outer.init(keys[2], self.width),
        }

    def init_norm(self) -> Params:
        return {"scale": jnp.ones(self.width), "bias": jnp.zeros(self.width)}

    def remember(self, params: Params, x: jax.Array) -> Memory:
        """Keys and values of steps `[time, width]`."""
        both = read(params["memory"], x).reshape(x.shape[0], 2, self.heads, -1)
        return Memory(both[:, 0], both[:, 1])

    def attend(self, params: Params, x: jax.Array, memory: Memory, mask: jax.Array) -> jax.Array:
        """What steps `[time, width]` find in a memory; the mask is `[time, memory time]`."""
        query = read(params["query"], x).reshape(x.shape[0], self.heads, -1)
        found = dot_product_attention(query, memory.keys, memory.values, mask=mask[None])
        return self.outer.apply(params["aggregate"], found.reshape(x.shape))

    def place(self, tokens: jax.Array, first: jax.Array | int = 0) -> jax.Array:
        """Embedded tokens `[time, width]` with their positions."""
        return tokens * self.width**0.5 + positions(first + jnp.arange(len(tokens)), self.width)

    def encode(
        self, params: Params, source: jax.Array, length: jax.Array, key: jax.Array | None
    ) -> tuple[jax.Array, jax.Array]:
        """Features `[time, width]` of one embedded source, and which of them count."""
        draw = _drawer(key)
        inside = jnp.arange(source.shape[0]) < length
        x = drop(jnp.where(inside[:, None], self.place(source), 0), self.dropout, draw())
        for own in params["layers"]:
            near = normalise(own["attend"]["norm"], x)
            found = self.attend(
                own["attend"], near, self.remember(own["attend"], near), inside[None]
            )
            x = x + drop(found, self.dropout, draw())
            x = x + drop(self.apply_block(own["block"], x), self.dropout, draw())
        # What is past the length is nobody's: a source without steps looks alike however padded.
        return jnp.where(inside[:, None], normalise(params["norm"], x), 0), inside

    def apply_block(self, params: Params, x: jax.Array) -> jax.Array:
        return self.inner.apply(params["own"], normalise(params["norm"], x))

    def look_at(self, params: Params, features: jax.Array, inside: jax.Array) -> Seen:
        return Seen([self.remember(own["look"], features) for own in params["layers"]], inside)

    def write(
        self,
        params: Params,
        x: jax.Array,
        seen: Seen,
        past: Callable[[int, Memory], Memory],
        mask: jax.Array,
        key: jax.Array | None = None,
    ) -> jax.Array:
        """Features of steps `[time, width]`, where `past` adds earlier steps to a layer's own."""
        draw = _drawer(key)
        x = drop(x, self.dropout, draw())
        for number, own in enumerate(params["layers"]):
            near = normalise(own["attend"]["norm"], x)
            memory = past(number, self.remember(own["attend"], near))
            x = x + drop(self.attend(own["attend"], near, memory, mask), self.dropout, draw())
            near = normalise(own["look"]["norm"], x)
            found = self.attend(own["look"], near, seen.memories[number], seen.mask[None])
            x = x + drop(found, self.dropout, draw())
            x = x + drop(self.apply_block(own["block"], x), self.dropout, draw())
        return normalise(params["norm"], x)

    def scores(self, params: Params, batch: Any, *, key: jax.Array | None = None) -> jax.Array:
        inputs, _, _ = shifted(batch.target, batch.target_length, self.end)
        source = embedded(params["source"], batch.source, batch.source_length)
        target = jnp.asarray(params["target"])[inputs]
        causal = jnp.tri(inputs.shape[1], dtype=bool)

        def one(
            source: jax.Array, length: jax.Array, target: jax.Array, key: jax.Array | None
        ) -> jax.Array:
            keys = (None, None) if key is None else jax.random.split(key)
            seen = self.look_at(
                params["decoder"], *self.encode(params["encoder"], source, length, keys[0])
            )
            return self.write(
                params["decoder"], self.place(target), seen, lambda _, own: own, causal, keys[1]
            )

        keys = None if key is None else jax.random.split(key, len(inputs))
        features = jax.vmap(one)(source, batch.source_length, target, keys)
        return product(features, jnp.asarray(params["target"]).T)

    def loss(
        self,
        params: Params,
        batch: Any,
        *,
        key: jax.Array | None = None,
        probe: None = None,
        solve: Mapping[str, Any] = NO_SETTINGS,
        carry: None = None,
    ) -> tuple[jax.Array, Outcome]:
        found = self.scores(params, batch, key=key)
        mean, sums = target_sums(found, batch, self.end)
        if self.smoothing and key is not None:
            mean = smoothed(mean, found, batch, self.smoothing)
        return mean, Outcome(sums)

    def begin(
        self,
        params: Params,
        source: jax.Array,
        length: jax.Array,
        max_length: int,
        *,
        solve: Mapping[str, Any] = NO_SETTINGS,
    ) -> tuple[Seen, Written]:
        def one(source: jax.Array, length: jax.Array) -> tuple[Seen, Written]:
            seen = self.look_at(
                params["decoder"], *self.encode(params["encoder"], source, length, None)
            )
            empty = jnp.zeros((max_length, self.heads, self.width // self.heads), source.dtype)
            return seen, Written([Memory(empty, empty)] * self.layers, jnp.zeros((), int))

        return jax.vmap(one)(embedded(params["source"], source, length), length)

    def step(
        self, params: Params, seen: Seen, written: Written, token: jax.Array
    ) -> tuple[jax.Array, Written]:
        memories: list[Memory] = []

        def past(number: int, new: Memory) -> Memory:
            kept = jax.tree.map(
                lambda room, own: room.at[written.steps].set(own[0]), written.memories[number], new
            )
            memories.append(kept)
            return kept

        table = jnp.asarray(params["target"])
        room = written.memories[0].keys.shape[0]
        mask = (jnp.arange(room) <= written.steps)[None]
        x = self.place(table[token][None], written.steps)
        features = self.write(params["decoder"], x, seen, past, mask)
        return jax.nn.log_softmax(features[0] @ table.T), Written(memories, written.steps + 1)


def positions(places: jax.Array, width: int) -> jax.Array:
    """Sines and cosines `[..., width]` of positions `[...]`, of waves longer and longer."""
    rates = _LONGEST_WAVE ** (-jnp.arange(width // 2) / (width // 2))
    angles = places[..., None] * rates
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)


def normalise(params: Params, x: jax.Array) -> jax.Array:
    """`scale (x - mean) / deviation + bias` over the last axis (layer normalisation)."""
    return params["scale"] * standardised(x) + params["bias"]


def _drawer(key: jax.Array | None) -> Callable[[], jax.Array | None]:
    """Another key with every call, or None."""
    count = 0

    def draw() -> jax.Array | None:
        nonlocal count
        count += 1
        return None if key is None else jax.random.fold_in(key, count)

    return draw
