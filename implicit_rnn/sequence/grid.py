"""`grid`: four recurrent networks over an image, one in each direction."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from implicit_rnn.cells.base import Cell, Params
from implicit_rnn.sequence.unroll import unroll

# Of the arrays `[height, width, features]`: the axis along which a network goes, and whether
# from its far end.
_DIRECTIONS = {"up": (0, True), "down": (0, False), "left": (1, True), "right": (1, False)}


def grid(
    cells: Sequence[Cell],
    params: Sequence[Params],
    image: jax.Array,
    *,
    size: tuple[int | jax.Array, int | jax.Array] | None = None,
) -> jax.Array:
    """Runs four causal cells over the columns and rows of an image.

    For the cell that goes down, and likewise for the other three,

        state_{i,j} = step(image_{i,j}, state_{i-1,j}),

    so an output knows its row and its column; a second layer, `grid` of this one's outputs, knows
    the whole image (Goodfellow et al., section 10.3; Visin et al., 2015).

    Args:
      cells: the four that go up, down, left and right.
      params: theirs (`init_grid`).
      image: `[height, width, features]`; use `jax.vmap` for a batch.
      size: how many rows and columns count; outputs beyond are zero, and nothing there matters.

    Returns:
      Outputs side by side in the order of the cells, `[height, width, 4 d]` for cells of width d.
    """
    if image.ndim != 3:
        raise ValueError(
            f"image must be one image [height, width, features], got shape {image.shape}; "
            "use jax.vmap for a batch"
        )
    _four(cells, "cells")
    _four(params, "params")
    rows, columns = image.shape[:2] if size is None else size
    inside = (jnp.arange(image.shape[0])[:, None] < rows) & (jnp.arange(image.shape[1]) < columns)
    inside = inside[..., None]
    image = jnp.where(inside, image, 0)
    outputs = []
    for cell, own, (axis, reverse) in zip(cells, params, _DIRECTIONS.values(), strict=True):
        length = (rows, columns)[axis]

        def line(xs: jax.Array, cell=cell, own=own, length=length, reverse=reverse) -> jax.Array:
            return unroll(cell, own, xs, length=length, reverse=reverse)[0]

        across = 1 - axis
        outputs.append(jax.vmap(line, in_axes=across, out_axes=across)(image))
    return jnp.where(inside, jnp.concatenate(outputs, axis=-1), 0)


def init_grid(cells: Sequence[Cell], key: jax.Array, input_size: int) -> list[Params]:
    """Parameters for `grid`."""
    _four(cells, "cells")
    return [
        cell.init(k, input_size) for cell, k in zip(cells, jax.random.split(key, 4), strict=True)
    ]


def _four(values: Sequence, what: str) -> None:
    if len(values) != len(_DIRECTIONS):
        raise ValueError(f"{what} must be four, for {', '.join(_DIRECTIONS)}; got {len(values)}")
