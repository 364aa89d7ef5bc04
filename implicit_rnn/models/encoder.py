"""What reads a batch of sequences: any cell, or one from either end, in layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from implicit_rnn import sequence
from implicit_rnn.cells import CELLS, Cell
from implicit_rnn.cells.base import Params
from implicit_rnn.models.base import NO_SETTINGS, layer_probe, stacked
from solvers import Info


class Encoded(NamedTuple):
    """What an encoder makes of a batch.

    Attributes:
      features: `[batch, time, width]`, zero past the length.
      summary: `[batch, width]`: of a causal cell its last output; of two directions the last
        output of each, side by side; of a solved cell the mean over the steps that count.
      info: of the solves, every field `[layers, batch]`; None without any.
    """

    features: jax.Array
    summary: jax.Array
    info: Info | None


class Encoder(NamedTuple):
    """Reads sequences.

    Attributes:
      name: as asked for.
      width: of the features.
      init: `(key, input_size) -> params`.
      apply: `(params, xs [batch, time, features], length [batch], *, key=None, probe=None,
        solve={}) -> Encoded`. Without a key nothing is dropped.
      bounds: spectral bounds, a tree like a part of the parameters.
      solves: how many layers are solved.
      causal: whether features depend on the past alone.
      cells: a pair for each layer that runs in both directions, one cell for every other.
    """

    name: str
    width: int
    init: Callable[[jax.Array, int], Params]
    apply: Callable[..., Encoded]
    bounds: Any
    solves: int
    causal: bool
    cells: tuple[Cell | tuple[Cell, Cell], ...]


def encoder(
    name: str,
    hidden_size: int,
    *,
    layers: int = 1,
    dropout: float = 0.0,
    residual: bool = False,
    **options: Any,
) -> Encoder:
    """An encoder by name.

    Args:
      name: a cell of `cells.CELLS` (`"igru"`, `"lstm"`, ...), or `"bi"` and a causal one
        (`"bilstm"`) for one from either end.
      hidden_size: of a cell; features of two directions are twice as wide.
      layers: how many, one reading the other.
      dropout: chance that an entry of what goes from layer to layer is dropped.
      residual: add what a layer is given to what it gives, where their widths agree.
      **options: of the cell.

    Parameters: a list, one entry a layer; a pair for two directions.
    """
    both = name.startswith("bi") and name not in CELLS
    kind = name.removeprefix("bi") if both else name
    if kind not in CELLS:
        raise ValueError(f'unknown encoder {name!r}; choose from {sorted(CELLS)}, or "bi" and one')
    if layers < 1:
        raise ValueError(f"layers must be at least 1, got {layers}")
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout must be at least 0 and below 1, got {dropout}")
    cell = CELLS[kind](hidden_size, **options)
    solved = cell.final_state is not None
    if both and solved:
        raise ValueError(f"{kind} looks both ways by itself: use {kind!r}, not {name!r}")
    width = 2 * hidden_size if both else hidden_size

    def init(key: jax.Array, input_size: int) -> Params:
        params = []
        for number, k in enumerate(jax.random.split(key, layers)):
            size = width if number else input_size
            params.append(
                sequence.init_bidirectional(cell, cell, k, size) if both else cell.init(k, size)
            )
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
        infos = []
        for number, own in enumerate(params):
            given = xs
            if number:
                given = drop(xs, dropout, None if key is None else jax.random.fold_in(key, number))
            features, summary, info = _layer(
                cell, both, own, given, length, layer_probe(probe, number), solve
            )
            infos += [] if info is None else [info]
            xs = xs + features if residual and xs.shape == features.shape else features
        return Encoded(xs, summary, stacked(infos))

    bounds = [cell.bounds or {}] * layers if solved else []
    return Encoder(
        name, width, init, apply, bounds, layers if solved else 0, not (both or solved),
        tuple((cell, cell) if both else cell for _ in range(layers)),
    )  # fmt: skip


def drop(xs: jax.Array, rate: float, key: jax.Array | None) -> jax.Array:
    """Dropout; none without a key."""
    if key is None or not rate:
        return xs
    kept = jax.random.bernoulli(key, 1 - rate, xs.shape)
    return jnp.where(kept, xs / (1 - rate), 0)


def _layer(
    cell: Cell,
    both: bool,
    params: Params,
    xs: jax.Array,
    length: jax.Array,
    probe: Info | None,
    solve: Mapping[str, Any],
) -> tuple[jax.Array, jax.Array, Info | None]:
    if both:

        def two(x: jax.Array, n: jax.Array) -> tuple[jax.Array, jax.Array]:
            ys, states = sequence.bidirectional(cell, cell, params, x, length=n)
            return ys, jnp.concatenate([cell.output(state) for state in states], axis=-1)

        return *jax.vmap(two)(xs, length), None
    if cell.final_state is None:

        def one(x: jax.Array, n: jax.Array) -> tuple[jax.Array, jax.Array]:
            ys, state = sequence.unroll(cell, params, x, length=n)
            return ys, cell.output(state)

        return *jax.vmap(one)(xs, length), None
    states, info = sequence.implicit_batch(cell, params, xs, length=length, probe=probe, **solve)
    features = cell.output(states)
    return features, jnp.sum(features, axis=1) / jnp.maximum(length, 1)[:, None], info
