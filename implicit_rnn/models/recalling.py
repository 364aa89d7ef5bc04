"""Causal attention over what a sequence has been so far, for any encoder."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp

from implicit_rnn.cells.base import Params, dense, product
from implicit_rnn.models.attention import masked_softmax
from implicit_rnn.models.base import NO_SETTINGS, inside
from implicit_rnn.models.encoder import Encoded, Encoder
from solvers import Info

Place = Literal["before", "after"]
_SHARP = 8.0  # at first: what a cosine is multiplied by


def recalling(
    encoder: Encoder,
    input_size: int,
    *,
    size: int = 32,
    heads: int = 1,
    place: Place = "after",
) -> Encoder:
    """An encoder that looks back at the inputs of earlier steps.

    Each head compares unit vectors `q_t = Q s_t / |Q s_t|` and `k_t = K s_t / |K s_t|`:

        r_t = sum_{j < t} w_tj x_{j+1} / (exp(e) + sum_{j < t} w_tj),    w_tj = exp(g q_t . k_j),

    so that what it gives is what came after those earlier steps that are like this one, or nothing
    where none is. `Q = K` at first: like steps find each other before anything is learnt.

    * `"after"`: s are the encoder's features, which know what led there, and `[s_t, r_t]` are the
      features. A passage that is played again can be copied.
    * `"before"`: s are the inputs, and the encoder reads `[x_t, r_t]`: self-attention in front of a
      recurrent unit.

    A step still depends on no later one. Time and memory go with the square of the length.

    Args:
      encoder: a causal one.
      input_size: width of its inputs.
      size: of queries and keys, each head.
      heads: how many.
      place: see above.

    Parameters: `encoder`; `query` and `key` `[width, heads size]`, `sharpness` g and `nothing` e
    `[heads]`.
    """
    if not encoder.causal:
        raise ValueError(
            f"encoder {encoder.name!r} looks ahead, what it would recall it has seen already: "
            "use a causal one"
        )
    for name, value in {"input_size": input_size, "size": size, "heads": heads}.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    if place not in ("before", "after"):
        raise ValueError(f'place must be "before" or "after", got {place!r}')
    parts = _Recalling(encoder, input_size, size, heads, place)
    width = encoder.width + (heads * input_size if place == "after" else 0)
    bounds = {"encoder": encoder.bounds} if encoder.bounds else {}
    # No cells: those who look into layers expect their parameters in a list.
    return encoder._replace(
        width=width, init=parts.init, apply=parts.apply, bounds=bounds, cells=()
    )


@dataclasses.dataclass(frozen=True, eq=False)
class _Recalling:
    """What such an encoder does."""

    encoder: Encoder
    input_size: int
    size: int
    heads: int
    place: Place

    def init(self, key: jax.Array, input_size: int) -> Params:
        if input_size != self.input_size:
            raise ValueError(f"inputs are {input_size} wide, recalling was told {self.input_size}")
        keys, after = jax.random.split(key), self.place == "after"
        given = input_size if after else (1 + self.heads) * input_size
        same = dense(keys[1], (self.encoder.width if after else input_size, self.heads * self.size))
        return {
            "encoder": self.encoder.init(keys[0], given),
            "query": same,
            "key": jnp.array(same),  # an array of its own: a training step may use up either
            "sharpness": jnp.full(self.heads, _SHARP),
            "nothing": jnp.zeros(self.heads),
        }

    def apply(
        self,
        params: Params,
        xs: jax.Array,
        length: jax.Array,
        *,
        key: jax.Array | None = None,
        probe: Info | None = None,
        solve: Mapping[str, Any] = NO_SETTINGS,
    ) -> Encoded:
        counted = inside(length, xs.shape[1])[..., None]
        xs = jnp.where(counted, xs, 0)
        given = {"key": key, "probe": probe, "solve": solve}
        if self.place == "before":
            both = jnp.concatenate([xs, jax.vmap(self.recalled, (None, 0, 0))(params, xs, xs)], -1)
            return self.encoder.apply(params["encoder"], both, length, **given)
        found = self.encoder.apply(params["encoder"], xs, length, **given)
        back = jax.vmap(self.recalled, (None, 0, 0))(params, found.features, xs)
        features = jnp.where(counted, jnp.concatenate([found.features, back], axis=-1), 0)
        last = jnp.maximum(length, 1)[:, None, None] - 1
        summary = jnp.take_along_axis(features, last, axis=1)[:, 0]
        return found._replace(features=features, summary=summary)

    def recalled(self, params: Params, states: jax.Array, xs: jax.Array) -> jax.Array:
        """What followed upon earlier states, of one sequence: `[time, heads input_size]`."""
        time = xs.shape[0]
        query, memory = (self.directions(params[name], states) for name in ("query", "key"))
        scores = jnp.einsum("the,she->hts", query, memory) * params["sharpness"][:, None, None]
        # A place in front, for nothing; what follows upon step j is input j + 1.
        nothing = jnp.broadcast_to(params["nothing"][:, None, None], (self.heads, time, 1))
        scores = jnp.concatenate([nothing, scores[..., :-1]], axis=-1)
        weights = masked_softmax(scores, jnp.tril(jnp.ones((time, time), bool)))
        followed = jnp.concatenate([jnp.zeros_like(xs[:1]), xs[1:]])
        return jnp.einsum("hts,sx->thx", weights, followed).reshape(time, -1)

    def directions(self, matrix: jax.Array, states: jax.Array) -> jax.Array:
        """Unit vectors `[time, heads, size]`; zeros stay zeros."""
        found = product(states, matrix).reshape(states.shape[0], self.heads, self.size)
        return found / jnp.sqrt(jnp.sum(found**2, axis=-1, keepdims=True) + 1e-6)
