"""The next frame of a piece of music: a causal encoder, and a sigmoid for every key above it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from implicit_rnn.cells.base import Params
from implicit_rnn.models.base import NO_SETTINGS, Outcome, inside
from implicit_rnn.models.encoder import Encoded, Encoder
from implicit_rnn.models.readout import read_encoder
from solvers import Info


class FramesBatch(NamedTuple):
    """Pieces of which every frame but the first is to be predicted from those before it."""

    frames: jax.Array  # [batch, time + 1, keys], of 0 and 1
    length: jax.Array  # int [batch]: how many frames are predicted, one fewer than there are


class FramesModel(NamedTuple):
    """A `Model` of sequences of binary frames.

    Attributes:
      init, loss, bounds, solves, carry: as for every `Network`; a batch has `frames`
        `[batch, time + 1, keys]` and `length` `[batch]`; sums are `nll` (negative log-likelihood of
        whole frames, in nats), `loss` (the same) and `count` (frames that are predicted).
      scores: `(params, frames [batch, time, keys], length, *, key=None) -> (scores, Encoded)`,
        scores `[batch, time, keys]` of the frame after each.
      encoder: what it stands on.
      embed: `(params, batch) -> [batch, time, keys]`: what the encoder is to read.
    """

    init: Callable[[jax.Array], Params]
    loss: Callable[..., tuple[jax.Array, Outcome]]
    bounds: Any
    solves: int
    scores: Callable[..., tuple[jax.Array, Encoded]]
    encoder: Encoder
    embed: Callable[[Params, Any], jax.Array]
    carry: None = None


def frames_model(encoder: Encoder, keys: int, *, dropout: float = 0.0) -> FramesModel:
    """Predicts frame `t + 1` from frames up to `t`, every key by itself,

        p(y_{t+1} | y_1 ... y_t) = prod_k sigmoid(s_k)^{y_k} (1 - sigmoid(s_k))^{1 - y_k},

    with scores `s = W features_t + b`. The loss is `-log p` in the mean over predicted frames.

    Args:
      encoder: reads the frames; it must be causal.
      keys: width of a frame.
      dropout: of frames that are read, and of features.

    Parameters: `encoder`, and `read` with `weights` `[width, keys]` and `bias`.
    """
    if keys < 1:
        raise ValueError(f"keys must be at least 1, got {keys}")
    if not encoder.causal:
        raise ValueError(
            f"encoder {encoder.name!r} sees the frames that are to be predicted: use a causal one "
            '("lstm", "gru", "tcn", or "xrnn" with any recursion but "static")'
        )
    init, scores = read_encoder(encoder, keys, keys, dropout)

    def loss(
        params: Params,
        batch: Any,
        *,
        key: jax.Array | None = None,
        probe: Info | None = None,
        solve: Mapping[str, Any] = NO_SETTINGS,
        carry: None = None,
    ) -> tuple[jax.Array, Outcome]:
        found, encoded = scores(params, embed(params, batch), batch.length, key=key)
        counted = inside(batch.length, found.shape[1])
        # Anything at all past a length must not reach the loss, also not as zero times NaN.
        target = jnp.where(counted[..., None], batch.frames[:, 1:], 0)
        entropy = jnp.sum(optax.sigmoid_binary_cross_entropy(found, target), axis=-1)
        total = jnp.sum(jnp.where(counted, entropy, 0))
        count = jnp.sum(counted).astype(total.dtype)
        sums = {"nll": total, "loss": total, "count": count}
        return total / jnp.maximum(count, 1), Outcome(sums, encoded.info)

    def embed(params: Params, batch: Any) -> jax.Array:
        return batch.frames[:, :-1]

    return FramesModel(init, loss, {"encoder": encoder.bounds}, 0, scores, encoder, embed)
