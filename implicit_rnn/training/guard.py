"""A gradient that is not finite changes nothing; and clipping, by the norm that tells so.

What `optax.apply_if_finite` and `optax.clip_by_global_norm` do together, with fewer passes over the
gradients: where a table of words is most of a model, passes over it are most of an update.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from solvers.mesh import vary_like


class GuardState(NamedTuple):
    """What became of gradients so far.

    Attributes:
      notfinite_count: how many in a row, up to the latest, were not finite.
      last_finite: whether the latest was.
      total_notfinite: how many were not in all.
      norm: global norm of the latest.
      inner_state: of the optimiser that is guarded.
    """

    notfinite_count: jax.Array
    last_finite: jax.Array
    total_notfinite: jax.Array
    norm: jax.Array
    inner_state: Any


def guarded(inner: optax.GradientTransformation) -> optax.GradientTransformationExtraArgs:
    """`inner`, which is not asked where the global norm of a gradient is not finite.

    Such a gradient gives no change, leaves the state of `inner` as it is, and is counted. One so
    large that its squares overflow is such a one, too.

    Args:
      inner: an optimiser; its update is also given `norm`, the global norm of the gradient, and
        whatever else the guarded one is given. Its state and its changes keep their types.
    """
    asked = optax.with_extra_args_support(inner)

    def init(params: Any) -> GuardState:
        none = jnp.zeros((), jnp.int32)
        return GuardState(none, jnp.array(True), none, jnp.zeros(()), inner.init(params))

    def update(
        gradient: Any, state: GuardState, params: Any = None, **extra: Any
    ) -> tuple[Any, GuardState]:
        norm = optax.tree.norm(gradient)
        finite = jnp.isfinite(norm)
        missed = jnp.where(finite, 0, 1)
        before = vary_like(state.inner_state, gradient)
        skipped = jax.tree.map(jnp.zeros_like, gradient), before

        def taken() -> tuple[Any, Any]:
            found = asked.update(gradient, before, params, **extra, norm=norm)
            # A schedule of another precision, say, must not make a branch of another type.
            return jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), found, skipped)

        changes, new = lax.cond(finite, taken, lambda: skipped)
        return changes, GuardState(
            missed * (state.notfinite_count + 1),
            finite,
            state.total_notfinite + missed,
            norm.astype(state.norm.dtype),
            new,
        )

    return optax.GradientTransformationExtraArgs(init, update)


def clipped(limit: float) -> optax.GradientTransformationExtraArgs:
    """Scales gradients of a greater global norm to `limit`; the norm is given, see `guarded`."""

    def update(
        gradient: Any, state: optax.EmptyState, params: Any = None, *, norm: jax.Array, **_: Any
    ) -> tuple[Any, optax.EmptyState]:
        share = jnp.where(norm > limit, limit / norm, 1)
        return jax.tree.map(lambda leaf: leaf * share.astype(leaf.dtype), gradient), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)
