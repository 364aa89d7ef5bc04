"""Biased random walks: what the walk and the puzzles of one and two passes share."""

from __future__ import annotations

from typing import Literal

import numpy as np

from implicit_rnn.training.sources import Examples


def biased_walk(
    seed: int,
    count: int,
    *,
    bias: float = 0.5,
    dimension: int = 8,
    min_length: int = 1,
    max_length: int = 40,
    direction: Literal["normal", "unit"] = "normal",
    inputs: Literal["both", "positions", "increments"] = "both",
) -> Examples:
    """Walks `x_0 = 0`, `x_i = x_{i-1} + N(0, I) + b v clip(i - t', 0, 1)`, labelled `i > t'`.

    The length `N` is uniform in `min_length`..`max_length`, the time `t'` uniform in [0, N).

    Args:
      seed: the same seed gives the same examples.
      count: how many.
      bias: `b`; the smaller, the harder.
      dimension: of the walk. The paper leaves it open; with `v ~ N(0, I)` the least possible
        errors are below all of the paper's in 10 dimensions, and for `b = 0.25` not in 8.
      min_length, max_length: shortest and longest walk.
      direction: `v ~ N(0, I)`, or of length one.
      inputs: what the network sees: positions, increments, or both side by side.
    """
    if direction not in ("normal", "unit"):
        raise ValueError(f'direction must be "normal" or "unit", got {direction!r}')
    if inputs not in ("both", "positions", "increments"):
        raise ValueError(f'inputs must be "both", "positions" or "increments", got {inputs!r}')
    if min_length > max_length:
        raise ValueError(
            f"min_length must be at most max_length, got {min_length} and {max_length}"
        )
    rng = np.random.default_rng(seed)
    length = rng.integers(min_length, max_length + 1, count)
    turn = rng.uniform(size=count) * length
    drift = rng.standard_normal((count, dimension))
    if direction == "unit":
        drift /= np.linalg.norm(drift, axis=1, keepdims=True)
    time = np.arange(max_length)
    weight = np.clip(time - turn[:, None], 0, 1)
    increments = rng.standard_normal((count, max_length, dimension))
    increments += bias * weight[..., None] * drift[:, None]
    increments[:, 0] = 0
    inside = time < length[:, None]
    increments *= inside[..., None]
    positions = np.cumsum(increments, axis=1) * inside[..., None]
    seen = {
        "both": np.concatenate([positions, increments], axis=-1),
        "positions": positions,
        "increments": increments,
    }[inputs]
    labels = (time > turn[:, None]) & inside
    return Examples(seen.astype(np.float32), labels.astype(np.int32), length.astype(np.int32))
