"""Batches dealt to devices: who gets which examples, and who loads them."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec


def deal(length: np.ndarray, shards: int) -> np.ndarray:
    """The order of examples `[size]` that gives equal parts of it equal work.

    By falling length, to one part after the other, and back again: sums differ by no more than the
    longest and the shortest do, and every part has one of the longest, whose solves end last.
    """
    rounds = np.argsort(-np.asarray(length), kind="stable").reshape(-1, shards).copy()
    rounds[1::2] = rounds[1::2, ::-1]
    return rounds.T.reshape(-1)


def where(mesh: Mesh | None) -> str:
    """In words, over which of the devices that there are batches are dealt."""
    there = jax.device_count()
    if mesh is None:
        return f"batches stay on 1 of {there} devices"
    axes = ", ".join(f"{name} = {size}" for name, size in mesh.shape.items())
    number = f"{mesh.size}" if mesh.size == there else f"{mesh.size} of {there}"
    return f"batches are dealt over {number} devices ({axes})"


def load(split: Any, entry: Any, rows: NamedSharding, ordered: bool) -> Any:
    """A batch on the devices; a process makes the rows that its own devices get.

    A batch that cannot be dealt is on all devices: the last, smaller one of an evaluation.

    Args:
      split, entry: what to load.
      rows: where the examples of a batch go.
      ordered: leave them in their order; otherwise they are dealt by length, where it is known.
    """
    shards, select = rows.mesh.size, getattr(split, "select", None)
    batch = None if select else split.batch(entry)
    size = split.size(entry) if select else common_size(batch)
    if size is None or size % shards:
        everywhere = NamedSharding(rows.mesh, Spec())
        batch = split.batch(entry) if select else batch
        return jax.tree.map(lambda leaf: _placed(np.asarray(leaf), everywhere), batch)
    order = np.arange(size)
    if not ordered and getattr(split, "length", None) is not None:
        numbers = split.numbers(entry)
        order = deal(np.where(numbers < 0, 0, split.length[numbers]), shards)
    held = rows.addressable_devices_indices_map((size,)).values()
    own = np.unique(np.concatenate([np.arange(size)[index] for index in held]))
    if select:
        batch = split.batch(select(entry, order[own]))
    else:
        batch = jax.tree.map(lambda leaf: np.asarray(leaf)[order[own]], batch)
    return jax.tree.map(lambda leaf: _placed(np.asarray(leaf), rows, own, size), batch)


def common_size(batch: Any) -> int | None:
    """How many examples a batch has; None where its arrays do not agree on that."""
    sizes = {np.shape(leaf)[0] if np.ndim(leaf) else None for leaf in jax.tree.leaves(batch)}
    return sizes.pop() if len(sizes) == 1 else None


def _placed(
    array: np.ndarray, sharding: NamedSharding, own: np.ndarray | None = None, size: int = 0
) -> jax.Array:
    """An array on the devices, of which this process has the rows numbered `own` of `size`."""
    if own is None:
        return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])

    def part(index: Any) -> np.ndarray:
        first, last, _ = index[0].indices(size)
        start = int(np.searchsorted(own, first))
        return array[start : start + last - first]

    return jax.make_array_from_callback((size, *array.shape[1:]), sharding, part)
