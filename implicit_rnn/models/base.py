"""What a whole network is to a training loop: parameters, a loss of a batch, and what it counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import optax

from implicit_rnn.cells.base import Params
from solvers import Info


class Outcome(NamedTuple):
    """What a loss says beside its value.

    Attributes:
      sums: totals over the batch by name, one of them `count`, to be added over as many batches as
        there are; `metrics` divides them.
      info: of the implicit layers' solves, every field `[layers, batch]`; None without any.
      carry: what the next batch of a stateful model starts from; None for others.
      states: of the layers that are solved, a list: what the next visit of the same examples may
        start from (`solve={"start": states}`).
    """

    sums: dict[str, jax.Array]
    info: Info | None = None
    carry: Any = None
    states: Any = ()


class Network(Protocol):
    """What every file of this folder builds: a record with at least these pure functions.

    Attributes:
      init: `key -> params`.
      loss: `(params, batch, *, key=None, probe=None, solve={}, carry=None) -> (loss, Outcome)`. The
        key draws dropout and the like; without one nothing is random. `solve` are settings of
        `implicit_batch`. A model that carries nothing ignores `carry`.
      bounds: spectral bounds, a tree like a part of the parameters.
      solves: how many layers are solved; a probe is `adjoint_probe((solves, batch))`.
      carry: `(params, batch size) -> carry` to begin with; None for a model that carries nothing.
    """

    @property
    def init(self) -> Callable[[jax.Array], Params]: ...

    @property
    def loss(self) -> Callable[..., tuple[jax.Array, Outcome]]: ...

    @property
    def bounds(self) -> Any: ...

    @property
    def solves(self) -> int: ...

    @property
    def carry(self) -> Callable[[Params, int], Any] | None: ...


def metrics(sums: Mapping[str, jax.Array | float]) -> dict[str, jax.Array]:
    """Totals as means: `x` over `count_x` where there is one, else over `count`."""
    counts = {name: value for name, value in sums.items() if name.startswith("count")}
    return {
        name: value / jnp.maximum(counts.get(f"count_{name}", counts["count"]), 1)
        for name, value in sums.items()
        if name not in counts
    }


def label_sums(
    scores: jax.Array, labels: jax.Array, mask: jax.Array
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Mean cross-entropy of a softmax over those labels that count, and the sums of an `Outcome`.

    Args:
      scores: `[..., labels]`.
      labels: integers `[...]`; anything at all where they do not count.
      mask: which count, `[...]`.

    Returns:
      The mean (zero where none counts), and totals `loss` (nats), `error` (labels that are not the
      likeliest) and `count`.
    """
    scores, labels = jnp.asarray(scores), jnp.where(mask, labels, 0)
    # Half a float counts to 256 and no further.
    exact = jnp.promote_types(scores.dtype, jnp.float32)
    entropy = optax.softmax_cross_entropy_with_integer_labels(scores.astype(exact), labels)
    wrong = mask & (jnp.argmax(scores, axis=-1) != labels)
    sums = {
        "loss": jnp.sum(jnp.where(mask, entropy, 0)),
        "error": jnp.sum(wrong).astype(exact),
        "count": jnp.sum(mask).astype(exact),
    }
    return sums["loss"] / jnp.maximum(sums["count"], 1), sums


def inside(length: jax.Array, time: int) -> jax.Array:
    """Which steps count: `[batch, time]` for lengths `[batch]`."""
    return jnp.arange(time) < length[:, None]


def embedded(table: jax.Array, tokens: jax.Array, length: jax.Array) -> jax.Array:
    """Rows of a table for tokens `[batch, time]`, anything at all past their lengths `[batch]`."""
    return jnp.asarray(table)[jnp.where(inside(length, tokens.shape[1]), tokens, 0)]


def layer_probe(probe: Info | None, number: int) -> Info | None:
    """The probe of one solved layer out of those of all."""
    return None if probe is None else jax.tree.map(lambda leaf: leaf[number], probe)


def stacked(infos: list[Info]) -> Info | None:
    """Reports of several layers as one, every field `[layers, batch]`."""
    if not infos:
        return None
    return jax.tree.map(lambda *leaves: jnp.stack(jnp.broadcast_arrays(*leaves)), *infos)


NO_SETTINGS: Mapping[str, Any] = {}
