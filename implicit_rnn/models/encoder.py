"""What reads a batch of sequences: any cell, or one from either end, in layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from implicit_rnn import sequence
from implicit_rnn.cells import CELLS, Cell, remembering
from implicit_rnn.cells.base import Params, State
from implicit_rnn.cells.memory import Memory
from implicit_rnn.models.base import NO_SETTINGS, inside, layer_probe, stacked
from implicit_rnn.sequence.stack import drop
from solvers import Info


class Encoded(NamedTuple):
    """What an encoder makes of a batch.

    Attributes:
      features: `[batch, time, width]`, zero past the length.
      summary: `[batch, width]`: of a causal encoder the features of the last step that counts; of
        two directions those of the last step each took, side by side; of a solved cell the mean
        over the steps that count. Zero for a sequence of length 0.
      info: of the solves, every field `[layers, batch]`; None without any.
      states: of the layers that are solved, each leaf `[batch, time, hidden_size]`: what a later
        solve of the same sequences may start from.
    """

    features: jax.Array
    summary: jax.Array
    info: Info | None
    states: list[State]


class Encoder(NamedTuple):
    """Reads sequences.

    Attributes:
      name: as asked for.
      width: of the features.
      init: `(key, input_size) -> params`.
      apply: `(params, xs [batch, time, features], length [batch], *, key=None, probe=None,
        solve={}) -> Encoded`. Without a key nothing is dropped. `solve` are settings of
        `implicit_batch`; its `start` is a list, one entry a layer that is solved.
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
    name: str | Cell | tuple[Cell, Cell],
    hidden_size: int | None = None,
    *,
    layers: int = 1,
    dropout: float = 0.0,
    residual: bool = False,
    normalise: bool = False,
    memory: Memory | None = None,
    **options: Any,
) -> Encoder:
    """An encoder of layers of a cell.

    Args:
      name: a cell, a pair of causal ones for one from either end, or a name: one of `cells.CELLS`
        (`"igru"`, `"lstm"`, ...), or `"bi"` and a causal one (`"bilstm"`) for both ends.
      hidden_size: of a cell by name; features of two directions are twice as wide.
      layers: how many, one reading the other.
      dropout: chance that an entry of what goes from layer to layer is dropped.
      residual: add what a layer is given to what it gives, where their widths agree.
      normalise: standardise what a layer gives, a residual included, over its width at every step:
        states that keep much of the past are small at first, and the smaller the longer they keep.
      memory: shortest and longest memory of a channel at first, as for `cells.remembering`.
      **options: of a cell by name.

    Parameters: a list, one entry a layer; a pair for two directions.
    """
    kind, pair = _cells(name, hidden_size, options, memory)
    if layers < 1:
        raise ValueError(f"layers must be at least 1, got {layers}")
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout must be at least 0 and below 1, got {dropout}")
    one, other, both = pair[0], pair[-1], len(pair) == 2
    solved = one.final_state is not None
    width = sum(each.hidden_size for each in pair)

    def init(key: jax.Array, input_size: int) -> Params:
        params = []
        for number, k in enumerate(jax.random.split(key, layers)):
            size = width if number else input_size
            params.append(
                sequence.init_bidirectional(one, other, k, size) if both else one.init(k, size)
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
        infos, states = [], []
        solve = dict(solve)
        starts = solve.pop("start", None) or [None] * layers
        # Also what a residual adds must be zero past the length.
        xs = jnp.where(inside(length, xs.shape[1])[..., None], xs, 0)
        for number, own in enumerate(params):
            given = xs
            if number:
                given = drop(xs, dropout, None if key is None else jax.random.fold_in(key, number))
            if solved:
                found, info = sequence.implicit_batch(
                    one, own, given, length=length, probe=layer_probe(probe, number),
                    start=starts[number], **solve,
                )  # fmt: skip
                infos.append(info)
                states.append(found)
                features = one.output(found)
            else:
                features = jax.vmap(lambda x, n, own=own: unrolled(own, x, n))(given, length)
            xs = xs + features if residual and xs.shape == features.shape else features
            xs = standardised(xs) if normalise else xs
        return Encoded(xs, summary(xs, length), stacked(infos), states)

    def unrolled(params: Params, xs: jax.Array, length: jax.Array) -> jax.Array:
        if both:
            return sequence.bidirectional(one, other, params, xs, length=length)[0]
        return sequence.unroll(one, params, xs, length=length)[0]

    def summary(features: jax.Array, length: jax.Array) -> jax.Array:
        count = jnp.maximum(length, 1)[:, None]
        if solved:
            return jnp.sum(features, axis=1) / count
        last = jnp.take_along_axis(features, count[..., None] - 1, axis=1)[:, 0]
        if not both:
            return last
        return jnp.concatenate(
            [last[:, : one.hidden_size], features[:, 0, one.hidden_size :]], axis=-1
        )

    bounds = [one.bounds or {}] * layers if solved else []
    return Encoder(
        kind, width, init, apply, bounds, layers if solved else 0, one.causal and not both,
        ((one, other) if both else one,) * layers,
    )  # fmt: skip


def standardised(features: jax.Array) -> jax.Array:
    """Mean 0 and variance 1 along the last axis; zeros stay zeros."""
    centred = features - jnp.mean(features, axis=-1, keepdims=True)
    variance = jnp.mean(centred**2, axis=-1, keepdims=True)
    return centred / jnp.sqrt(variance + 1e-6)


def _cells(
    cell: str | Cell | tuple[Cell, Cell],
    hidden_size: int | None,
    options: Mapping[str, Any],
    memory: Memory | None,
) -> tuple[str, tuple[Cell, ...]]:
    """The name of an encoder, and its cell or its pair of cells."""
    if isinstance(cell, str):
        make, both = cell_kind(cell)
        if hidden_size is None:
            raise ValueError(f"encoder({cell!r}, ...) needs hidden_size, the width of the cell")
        made = make(hidden_size, **options)
        if memory is not None and made.final_state is not None:
            made, memory = make(hidden_size, memory=memory, **options), None
        name, pair = cell, (made,) * (1 + both)
    else:
        if hidden_size is not None or options:
            given = sorted(options) + ["hidden_size"] * (hidden_size is not None)
            raise ValueError(f"{', '.join(given)}: a cell that is made already takes none")
        pair = (cell,) if isinstance(cell, Cell) else tuple(cell)
        name = ", ".join(each.name for each in pair)
    if len(pair) > 2:
        raise ValueError(f"an encoder takes a cell or a pair of them, got {len(pair)}")
    if len(pair) == 2 and any(each.stencil != (-1,) for each in pair):
        raise ValueError(f"{pair[0].name} looks both ways by itself: do not ask for {name!r}")
    return name, pair if memory is None else tuple(remembering(each, memory) for each in pair)


def cell_kind(name: str) -> tuple[Callable[..., Cell], bool]:
    """The factory of the cell that an encoder's name stands for, and whether it runs both ways."""
    both = name.startswith("bi") and name not in CELLS
    kind = name.removeprefix("bi") if both else name
    if kind not in CELLS:
        raise ValueError(f'unknown encoder {name!r}; choose from {sorted(CELLS)}, or "bi" and one')
    return CELLS[kind], both
