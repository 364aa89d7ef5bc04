"""Several batches an update: their gradients added up as if they were one large batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from implicit_rnn.training import totals


class Graded(NamedTuple):
    """What a batch says of the parameters.

    Attributes:
      loss: the loss.
      gradient: of the loss.
      sums: by name.
      carry: what the next batch starts from.
      states: of layers that are solved.
    """

    loss: jax.Array
    gradient: Any
    sums: dict[str, jax.Array]
    carry: Any
    states: Any = ()


def counted(sums: dict[str, jax.Array]) -> jax.Array:
    """What the loss of a batch is a mean over, as in `models.base.metrics`."""
    return jnp.asarray(sums.get("count_loss", sums["count"]))


def accumulated(graded: Callable[..., Graded]) -> Callable[..., Graded]:
    """`graded` for several batches, with the mean over all that their losses are means over.

    A loss is a mean over `counted` terms, so that batches weigh as many as they have: with `n_i` of
    them, `sum n_i loss_i / sum n_i` is the loss of all examples in one batch. The gradient is added
    up in float32 at least.

    Args:
      graded: `(params, batch, carry, key, latest) -> Graded`.

    Returns:
      `(params, batches, carry, key, latest) -> Graded`; every shape of a batch is compiled once, in
      whatever order they come.
    """

    @jax.jit
    def weighed(params: Any, batch: Any, carry: Any, key: jax.Array, latest: Any) -> Graded:
        found = graded(params, batch, carry, key, latest)
        return _scaled(found, counted(found.sums), jnp.float32)._replace(states=())

    @jax.jit
    def add(a: Graded, b: Graded) -> Graded:
        gradient = jax.tree.map(jnp.add, a.gradient, b.gradient)
        return Graded(a.loss + b.loss, gradient, totals.add(a.sums, b.sums), b.carry)

    @jax.jit
    def mean(total: Graded, params: Any) -> Graded:
        found = _scaled(total, 1 / jnp.maximum(counted(total.sums), 1), jnp.float32)
        typed = jax.tree.map(lambda g, p: g.astype(p.dtype), found.gradient, params)
        return found._replace(gradient=typed)

    def run(params: Any, batches: Sequence[Any], carry: Any, key: jax.Array, latest: Any) -> Graded:
        total = None
        for number, batch in enumerate(batches):
            found = weighed(params, batch, carry, jax.random.fold_in(key, number), latest)
            carry = found.carry
            total = found if total is None else add(total, found)
        assert total is not None
        return mean(total, params)

    return run


def _scaled(found: Graded, by: jax.Array, least: Any) -> Graded:
    """Loss and gradient times a number, in a type with as many digits as `least` has."""

    def scaled(leaf: jax.Array) -> jax.Array:
        kind = jnp.promote_types(leaf.dtype, least)
        return leaf.astype(kind) * jnp.asarray(by, kind)

    return found._replace(loss=scaled(found.loss), gradient=jax.tree.map(scaled, found.gradient))
