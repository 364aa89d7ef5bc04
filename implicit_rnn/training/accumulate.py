"""Several batches an update: their gradients added up as if they were one large batch.

A loss is a mean over `counted` terms, so that a batch weighs as many as it has: with `n_i` of them,
`sum n_i loss_i / sum n_i` is the loss of all examples in one batch. What is added up here are the
`n_i loss_i` and their gradients, in float32 at least.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from implicit_rnn.training import totals
from implicit_rnn.training.parallel import Graded


def counted(sums: dict[str, jax.Array]) -> jax.Array:
    """What the loss of a batch is a mean over, as in `models.base.metrics`."""
    return jnp.asarray(sums.get("count_loss", sums["count"]))


def times(found: Graded, factor: jax.Array) -> Graded:
    """Loss and gradient times a number, in float32 at least."""

    def scaled(leaf: jax.Array) -> jax.Array:
        kind = jnp.promote_types(leaf.dtype, jnp.float32)
        return leaf.astype(kind) * factor.astype(kind)

    return found._replace(loss=scaled(found.loss), gradient=jax.tree.map(scaled, found.gradient))


def mean(total: Graded, params: Any) -> Graded:
    """Loss and gradient of what was added up, as means, in the types of the parameters."""
    found = times(total, 1 / jnp.maximum(counted(total.sums), 1))
    typed = jax.tree.map(lambda leaf, own: leaf.astype(own.dtype), found.gradient, params)
    return found._replace(gradient=typed)


def added(a: Graded, b: Graded) -> Graded:
    """Both together; the second comes after the first."""
    gradient = jax.tree.map(jnp.add, a.gradient, b.gradient)
    return Graded(a.loss + b.loss, gradient, totals.add(a.sums, b.sums), b.carry)


def accumulated(weighed: Callable[..., Graded]) -> Callable[..., Graded]:
    """`weighed` for several batches; every shape of a batch is compiled once, however they come.

    Args:
      weighed: `(params, batch, carry, key, latest) -> Graded`, a batch's `n loss` and its gradient.

    Returns:
      `(params, batches, carry, key, latest) -> Graded`: the sums over all.
    """
    # The keys as well: several processes share nothing that is made outside of a program.
    one, add, fold = jax.jit(weighed), jax.jit(added), jax.jit(jax.random.fold_in)

    def run(params: Any, batches: Sequence[Any], carry: Any, key: jax.Array, latest: Any) -> Graded:
        total = _alone(one(params, batches[0], carry, fold(key, 0), latest))
        for number, batch in enumerate(batches[1:], 1):
            found = one(params, batch, total.carry, fold(key, number), latest)
            total = _alone(add(total, found))
        return total

    return run


def _alone(found: Graded) -> Graded:
    """What is found, once it is: of several processes each waits for the others in a sum.

    Two such programs under way at once can wait for one another's threads.
    """
    return jax.block_until_ready(found) if jax.process_count() > 1 else found
