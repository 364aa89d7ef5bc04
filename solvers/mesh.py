"""What compilers and meshes ask of the values that a loop begins with.

Under `vmap` on a mesh with explicit axes, and inside `shard_map`, a value has a type that says over
which devices it is spread; constants are spread over none, and a loop must not change that.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


def opaque(tree: Any) -> Any:
    """`tree`, of which the compiler knows no entry.

    It takes known factors out of inner products: `(0 a)(0 a)` becomes `0 a^2`, and overflows.
    """
    return lax.optimization_barrier(tree)


def constant(number: float, like: jax.Array) -> jax.Array:
    """`number` in the shape of `like`, with its batch axes and shardings.

    What a nested loop begins with has to be of the kind that it will be; `jnp.full_like` is not.
    """
    return jnp.where(like == like, jnp.asarray(number, like.dtype), 0)


def on_explicit_mesh() -> bool:
    """Whether the current mesh has an axis of explicit type."""
    return jax.sharding.AxisType.Explicit in jax.sharding.get_abstract_mesh().axis_types


def placed_like(tree: Any, shapes: Any) -> Any:
    """`tree`, on a mesh with explicit axes, spread over it as arrays or their shapes are."""
    if not on_explicit_mesh():
        return tree

    def placed(leaf: jax.Array, shape: Any) -> jax.Array:
        there = jax.typeof(shape).sharding if isinstance(shape, jax.Array) else shape.sharding
        if there is None or jax.typeof(leaf).sharding.spec == there.spec:
            return leaf
        return jax.reshard(leaf, there.spec)

    return jax.tree.map(placed, tree, shapes)


def placed_alike(tree: Any, like: jax.Array) -> Any:
    """`tree`, on a mesh with explicit axes, whose leaves of one shape are all spread as `like`."""
    if not on_explicit_mesh():
        return tree
    return jax.tree.map(
        lambda leaf: placed_like(leaf, like) if leaf.shape == like.shape else leaf, tree
    )


def dealt_like(leaf: jax.Array, whole: jax.Array, axes: int) -> jax.Array:
    """`leaf`, on a mesh with explicit axes, its first axes spread over it as those of `whole`."""
    if not on_explicit_mesh():
        return leaf
    spec = [*jax.typeof(whole).sharding.spec[:axes], *[None] * (leaf.ndim - axes)]
    return jax.reshard(leaf, jax.sharding.PartitionSpec(*spec))


def alike(carry: Any, like: jax.Array) -> Any:
    """`carry`, of which no leaf is less batched than the scalar `like`.

    On a mesh with explicit axes a loop under `vmap` cannot make a batch of what enters it as none.
    """
    if not on_explicit_mesh():
        return carry
    return jax.tree.map(lambda leaf: jnp.where(like == like, leaf, leaf), carry)


def spread_alike(*arrays: jax.Array) -> tuple[jax.Array, ...]:
    """Arrays of one shape, each spread over a mesh with explicit axes as any of them is."""
    if not on_explicit_mesh():
        return arrays
    total = functools.reduce(jnp.add, arrays)
    return tuple(jnp.where(total == total, array, array) for array in arrays)


def while_loop(running: Callable, body: Callable, carry: Any) -> Any:
    """`lax.while_loop` whose start takes on the types that the body gives it.

    Inside `shard_map` a value is known to vary along mesh axes or not; constants do not, and become
    what they are added to.
    """
    return lax.while_loop(running, body, settled(body, carry))


def settled(body: Callable, carry: Any) -> Any:
    """`carry`, varying along every mesh axis along which `body(carry)` does."""
    if not jax.sharding.get_abstract_mesh().manual_axes:
        return carry
    while True:
        leaves, structure = jax.tree.flatten(carry)
        types = jax.make_jaxpr(body)(carry).out_avals
        if all(varying(new) <= varying(old) for old, new in zip(leaves, types, strict=True)):
            return carry
        pairs = zip(leaves, types, strict=True)
        carry = jax.tree.unflatten(structure, [vary_with(old, new) for old, new in pairs])


def vary_with(leaf: jax.Array, *others: Any) -> jax.Array:
    """`leaf`, varying along every mesh axis along which one of the others (or their types) does."""
    missing = frozenset().union(*map(varying, others)) - varying(leaf)
    return lax.pcast(leaf, tuple(sorted(missing)), to="varying") if missing else leaf


def vary_like(tree: Any, like: Any, shared: str | None = None) -> Any:
    """`tree`, every leaf varying along the mesh axes of all leaves of `like` but a `shared` one.

    The cotangents of what is shared are then one for each device until they are added up.
    """
    axes = frozenset().union(*map(varying, jax.tree.leaves(like))) - {shared}

    def vary(leaf: jax.Array) -> jax.Array:
        missing = tuple(sorted(axes - varying(leaf)))
        return lax.pcast(leaf, missing, to="varying") if missing else leaf

    return jax.tree.map(vary, tree)


def agreed(tree: Any, axis: str | None) -> Any:
    """`tree`, on which all devices of a mesh axis agree, as a value that they share."""
    if axis is None:
        return tree
    leaves, structure = jax.tree.flatten(tree)
    for dtype in {leaf.dtype for leaf in leaves}:
        chosen = [number for number, leaf in enumerate(leaves) if leaf.dtype == dtype]
        rows = lax.pmax(jnp.stack([leaves[number] for number in chosen]), axis)
        for number, row in zip(chosen, rows, strict=True):
            leaves[number] = row
    return jax.tree.unflatten(structure, leaves)


def vary_together(function: Callable[[], Any], *others: Any) -> Any:
    """`function()` with every leaf varying along the mesh axes of all others and of itself."""
    result = function()
    leaves = jax.tree.leaves((result, others))
    return jax.tree.map(lambda leaf: vary_with(leaf, *leaves), result)


def varying(leaf: Any) -> frozenset:
    """The mesh axes, inside `shard_map`, along which an array varies."""
    kind = leaf if isinstance(leaf, jax.core.ShapedArray) else jax.typeof(leaf)
    manual = getattr(kind, "manual_axis_type", None)  # named `vma` before JAX 0.10
    return frozenset(getattr(kind, "vma", ()) if manual is None else manual.varying)
