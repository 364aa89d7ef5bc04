"""Bounds on the spectral norms of recurrent matrices: what keeps implicit solves cheap in training.

Left alone, training makes the matrix inside the candidate grow, and with it the number of steps
that a solve takes. Two cures: `bounded`, an optax transformation that clips the largest singular
values after every update, and `reparametrised`, which divides a matrix by its excess norm before it
is used. Both follow the leading singular vectors from update to update instead of computing an SVD.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

Params = Any


class SpectralState(NamedTuple):
    subspace: dict[str, jax.Array]  # by size d: [blocks, d, rank], leading right vectors


def bounded(
    bounds: Any, *, rank: int = 8, steps: int = 2, seed: int = 0
) -> optax.GradientTransformation:
    """Clips singular values to `bounds` after the update; the last link of an optax chain.

    A few steps of subspace iteration an update, from the subspace of the update before:
    `V <- orth(W^T W V)`, then `W <- W - U (S - bound)_+ V^T` with the singular values `S` of `W V`.
    Costs O(rank d^2) a matrix, where an SVD costs O(d^3). A bound can be exceeded for a few updates
    when more singular values than `rank` reach it at once.

    Args:
      bounds: a tree of numbers like a part of the parameters (`cell.bounds`); a leaf `[d, k d]` of
        the parameters is k square matrices with the bound each.
      rank: how many singular values are followed.
      steps: of subspace iteration an update.
      seed: of the first subspace.

    >>> import implicit_rnn
    >>> cell = implicit_rnn.cells.igru(8)
    >>> optimiser = optax.chain(optax.adam(1e-2), bounded(cell.bounds))
    """
    limits = _flatten(bounds)

    def init(params: Params) -> SpectralState:
        subspace = {}
        for size, leaves in _by_size(_select(params, limits)).items():
            blocks = _stacked(leaves)
            key = jax.random.fold_in(jax.random.key(seed), size)
            start = jax.random.normal(key, (*blocks.shape[:2], min(rank, size)), blocks.dtype)
            subspace[str(size)] = _iterate(blocks, start, 20)
        return SpectralState(subspace)

    def update(
        updates: Params, state: SpectralState, params: Params | None = None
    ) -> tuple[Params, SpectralState]:
        if params is None:
            raise ValueError("bounded needs the parameters: call update(updates, state, params)")
        new = _select(optax.apply_updates(params, updates), limits)
        corrections, subspace = {}, {}
        for size, leaves in _by_size(new).items():
            blocks, counts = _stacked(leaves), [leaf.shape[1] // size for leaf in leaves.values()]
            limit = jnp.repeat(
                jnp.asarray([limits[name] for name in leaves], blocks.dtype),
                jnp.asarray(counts), total_repeat_length=sum(counts),
            )  # fmt: skip
            clipped, subspace[str(size)] = _clip(blocks, state.subspace[str(size)], limit, steps)
            ends = list(itertools.accumulate(counts))[:-1]
            for (name, leaf), own in zip(leaves.items(), jnp.split(clipped, ends), strict=True):
                corrections[name] = _unblocks(own) - leaf
        return _add(updates, corrections), SpectralState(subspace)

    return optax.GradientTransformation(init, update)


def reparametrised(params: Params, bounds: Any, *, steps: int = 8, seed: int = 0) -> Params:
    """`params` with each bounded matrix `W` replaced by `W min(1, bound / ||W||)`, differentiably.

    The norm is found by `steps` power steps from a fixed start; derivatives treat the singular
    vectors as constants, which is exact at convergence.
    """
    limits = _flatten(bounds)
    changes = {}
    for name, leaf in _select(params, limits).items():
        blocks = _blocks(leaf)
        start = jax.random.normal(jax.random.key(seed), (*blocks.shape[:2], 1), blocks.dtype)
        frozen = jax.lax.stop_gradient(blocks)
        vector = _iterate(frozen, start, steps)
        image = frozen @ vector
        left = image / jnp.maximum(jnp.linalg.norm(image, axis=1, keepdims=True), 1e-12)
        size = jnp.einsum("kir,kij,kjr->k", left, blocks, vector)[:, None, None]
        changes[name] = _unblocks(blocks * jnp.minimum(1, limits[name] / size)) - leaf
    return _add(params, changes)


def norms(params: Params, bounds: Any) -> dict[str, jax.Array]:
    """The exact spectral norms of the bounded matrices, by name: `[k]` for a leaf `[d, k d]`."""
    leaves = _select(params, _flatten(bounds))
    return {name: jnp.linalg.norm(_blocks(leaf), 2, axis=(1, 2)) for name, leaf in leaves.items()}


def _clip(
    blocks: jax.Array, subspace: jax.Array, limit: jax.Array, steps: int
) -> tuple[jax.Array, jax.Array]:
    subspace = _iterate(blocks, subspace, steps)
    image = blocks @ subspace
    # The singular values of the image by those of its small Gram matrix.
    values, rotation = jnp.linalg.eigh(jnp.swapaxes(image, 1, 2) @ image)
    sizes = jnp.sqrt(jnp.maximum(values, 1e-30))
    right = subspace @ rotation
    shrink = jnp.maximum(sizes - limit[:, None], 0) / sizes
    return blocks - (image @ rotation * shrink[:, None, :]) @ jnp.swapaxes(right, 1, 2), right


def _iterate(blocks: jax.Array, vectors: jax.Array, steps: int) -> jax.Array:
    """`steps` steps of subspace iteration with `W^T W`, the vectors orthonormal."""
    for _ in range(steps):
        vectors = jnp.linalg.qr(jnp.swapaxes(blocks, 1, 2) @ (blocks @ vectors))[0]
    return vectors


def _by_size(leaves: dict[str, jax.Array]) -> dict[int, dict[str, jax.Array]]:
    """The leaves `[d, k d]` by `d`: matrices of one size are factored together."""
    found: dict[int, dict[str, jax.Array]] = {}
    for name, leaf in leaves.items():
        found.setdefault(leaf.shape[0], {})[name] = leaf
    return found


def _stacked(leaves: dict[str, jax.Array]) -> jax.Array:
    return jnp.concatenate([_blocks(leaf) for leaf in leaves.values()])


def _blocks(leaf: jax.Array) -> jax.Array:
    """`[d, k d]` as `[k, d, d]`."""
    d = leaf.shape[0]
    if leaf.ndim != 2 or leaf.shape[1] % d:
        raise ValueError(f"a bounded leaf has shape [d, k d], got {leaf.shape}")
    return jnp.moveaxis(leaf.reshape(d, -1, d), 1, 0)


def _unblocks(blocks: jax.Array) -> jax.Array:
    return jnp.moveaxis(blocks, 0, 1).reshape(blocks.shape[1], -1)


def _flatten(tree: Any) -> dict[str, Any]:
    return {_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def _name(path: Any) -> str:
    """A leaf's name; the value of a variable of nnx goes by the name of the variable."""
    return jax.tree_util.keystr(path).removesuffix(".value")


def _select(params: Params, limits: dict[str, Any]) -> dict[str, jax.Array]:
    leaves = _flatten(params)
    missing = sorted(set(limits) - set(leaves))
    if missing:
        raise ValueError(f"bounds for {missing}, but the parameters have {sorted(leaves)}")
    return {name: leaves[name] for name in limits}


def _add(tree: Params, changes: dict[str, jax.Array]) -> Params:
    """`tree` with `changes` added to the leaves they name."""

    def add(path: Any, leaf: jax.Array) -> jax.Array:
        name = _name(path)
        return leaf + changes[name] if name in changes else leaf

    return jax.tree_util.tree_map_with_path(add, tree)
