"""The temporal convolutional network (Bai et al., 2018): an encoder without a state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from implicit_rnn.cells.base import Params, affine, dense
from implicit_rnn.models.base import NO_SETTINGS, inside
from implicit_rnn.models.encoder import Encoded, Encoder
from implicit_rnn.sequence.stack import drop
from solvers import Info


def tcn(hidden_size: int, *, levels: int = 4, kernel: int = 5, dropout: float = 0.0) -> Encoder:
    """Residual blocks of two causal convolutions, level `l` with dilation `2^l`:

        conv(x)_t = sum_{j < kernel} W_j x_{t - j 2^l} + b,    W = g v / |v|,
        block(x) = relu(x + drop(relu(conv(drop(relu(conv(x)))))))

    where a block whose input is not as wide has `S x + s` in place of the `x` that it adds. `|v|`
    is a norm over taps and inputs, one for every output. A feature sees the last
    `1 + 2 (kernel - 1) (2^levels - 1)` inputs.

    Args:
      hidden_size: width of the features.
      levels: how many blocks.
      kernel: taps of a convolution.
      dropout: chance that what a convolution gives is dropped.

    Parameters: a list, one entry a block: `first` and `second`, each `direction` v
    `[kernel input_size, hidden_size]` (the tap of the present first), `scale` g and `bias`
    `[hidden_size]`; `skip` with `weights` and `bias` where the widths differ.
    """
    for name, value in {"hidden_size": hidden_size, "levels": levels, "kernel": kernel}.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout must be at least 0 and below 1, got {dropout}")

    def init(key: jax.Array, input_size: int) -> Params:
        params = []
        for level, k in enumerate(jax.random.split(key, levels)):
            size, keys = hidden_size if level else input_size, jax.random.split(k, 3)
            block = {
                "first": _init(keys[0], kernel, size, hidden_size),
                "second": _init(keys[1], kernel, hidden_size, hidden_size),
            }
            if size != hidden_size:
                weights = dense(keys[2], (size, hidden_size))
                block["skip"] = {"weights": weights, "bias": jnp.zeros(hidden_size)}
            params.append(block)
        return params

    def apply(
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
        for level, block in enumerate(params):
            keys = [None] * 2
            if key is not None:
                keys = list(jax.random.split(jax.random.fold_in(key, level)))
            features = xs
            for name, own in zip(("first", "second"), keys, strict=True):
                convolved = _convolved(block[name], features, kernel, 2**level)
                features = drop(jax.nn.relu(convolved), dropout, own)
            if "skip" in block:
                xs = affine(xs, block["skip"]["weights"], block["skip"]["bias"])
            xs = jax.nn.relu(xs + features)
        xs = jnp.where(counted, xs, 0)
        last = jnp.maximum(length, 1)[:, None, None] - 1
        return Encoded(xs, jnp.take_along_axis(xs, last, axis=1)[:, 0], None, [])

    return Encoder("tcn", hidden_size, init, apply, [], 0, True, ())


def _init(key: jax.Array, kernel: int, inputs: int, outputs: int) -> Params:
    direction = dense(key, (kernel * inputs, outputs))
    return {
        "direction": direction,
        "scale": jnp.linalg.norm(direction, axis=0),
        "bias": jnp.zeros(outputs),
    }


def _convolved(params: Params, xs: jax.Array, kernel: int, dilation: int) -> jax.Array:
    """A causal convolution of `[batch, time, features]`, zero before the first step.

    One product with all taps side by side: on a CPU that beats a dilated convolution.
    """
    time = xs.shape[1]
    padded = jnp.pad(xs, ((0, 0), ((kernel - 1) * dilation, 0), (0, 0)))
    taps = [padded[:, (kernel - 1 - j) * dilation :][:, :time] for j in range(kernel)]
    norm = jnp.linalg.norm(params["direction"], axis=0)
    weights = params["direction"] * (params["scale"] / norm)
    return affine(jnp.concatenate(taps, axis=-1), weights, params["bias"])
