"""What a run adds up over batches, and the metrics that come of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from implicit_rnn.models.base import metrics
from solvers import Info

# Of the solves, and of the gradients: what a loss does not count itself.
SOLVES = (
    "solves", "forward_steps", "forward_most", "forward_residual", "converged", "backward_steps",
    "backward_most", "backward_residual",
)  # fmt: skip
GRADIENTS = ("gradient_norm", "count_gradient_norm")


def solver_sums(info: Info | None, seen: Info | None, batch: Any) -> dict[str, jax.Array]:
    """What the solves of a batch add to the totals; sequences of length zero are not counted."""
    if info is None:
        return {}
    counted = jnp.broadcast_to(
        getattr(batch, "length", jnp.ones(info.steps.shape)), info.steps.shape
    )
    counted = counted > 0
    sums = {
        "solves": jnp.sum(counted),
        "forward_steps": jnp.sum(jnp.where(counted, info.steps, 0)),
        "forward_most": jnp.max(jnp.where(counted, info.steps, 0)),
        "forward_residual": _residuals(counted, info),
        "converged": jnp.sum(counted & info.converged),
    }
    if seen is not None:
        sums |= {
            "backward_steps": jnp.sum(jnp.where(counted, seen.steps, 0)),
            "backward_most": jnp.max(jnp.where(counted, seen.steps, 0)),
            "backward_residual": _residuals(counted, seen),
        }
    return {name: value.astype(jnp.float32) for name, value in sums.items()}


def _residuals(counted: jax.Array, info: Info) -> jax.Array:
    """The sum of relative residuals; one that is more than a whole counts as a whole."""
    residual = jnp.nan_to_num(info.residual, nan=1.0)
    return jnp.sum(jnp.where(counted, jnp.clip(residual, 0, 1), 0))


def gradient_sums(norm: jax.Array, finite: jax.Array) -> dict[str, jax.Array]:
    """What a gradient adds: its norm before it is clipped, if it is finite."""
    added = jnp.where(finite, norm, 0).astype(jnp.float32), finite.astype(jnp.float32)
    return dict(zip(GRADIENTS, added, strict=True))


def add(totals: Mapping[str, jax.Array], sums: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """Totals with those of one batch more."""
    return {
        name: jnp.maximum(total, sums[name]) if name.endswith("_most") else total + sums[name]
        for name, total in totals.items()
    }


def ratios(totals: Mapping[str, float]) -> dict[str, float]:
    """Metrics of the model, and means over the solves if there were any."""
    own = {key: value for key, value in totals.items() if key not in SOLVES}
    found = {key: float(value) for key, value in metrics(own).items()}
    for key in [key for key in SOLVES[1:] if key in totals]:
        found[key] = totals[key] / (1 if key.endswith("_most") else max(totals["solves"], 1))
    return found


def numbers(values: Mapping[str, jax.Array]) -> dict[str, float]:
    """Scalars by name; an error where they could not be computed.

    Of an array that there was no memory for jax raises when it is waited for, and hangs when it is
    read at once.
    """
    ready = jax.block_until_ready(dict(values))
    return {name: float(value) for name, value in ready.items()}
