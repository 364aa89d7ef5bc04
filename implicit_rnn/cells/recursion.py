"""What recursive units have in common: how much of a gate comes from below, and the gate itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from implicit_rnn.cells.base import Params, affine, dense

Recursion = Literal["dynamic", "static", "scalar"] | float | Sequence[float]
Combine = Literal["mix", "add"]
Candidate = Callable[[jax.Array], jax.Array]


@jax.custom_jvp
def _tanh(scores: jax.Array) -> jax.Array:
    """`jnp.tanh`, whose derivative would keep two arrays."""
    return jnp.tanh(scores)


@_tanh.defjvp
def _tanh_rule(primals: tuple, tangents: tuple) -> tuple[jax.Array, jax.Array]:
    value = jnp.tanh(*primals)
    return value, (1 - value**2) * tangents[0]


_CANDIDATES: dict[str, Candidate] = {
    "tanh": _tanh,
    "relu": jax.nn.relu,
    "identity": lambda scores: scores,
}


class Weighing(NamedTuple):
    """The weights alpha and beta of the two units below a unit.

    Attributes:
      kind: `"dynamic"`, `"static"`, `"scalar"` or `"fixed"`.
      init: `(key, input_size) -> params`: `weights` `[in, 2]` and `bias` `[2]`, or `[2]` for
        trained numbers; None where weights are given.
      apply: `(params, x [..., input_size]) -> [..., 2]`; static ones need `x` `[time, ...]`.
    """

    kind: str
    init: Callable[[jax.Array, int], Params | None]
    apply: Callable[[Params | None, jax.Array], jax.Array]


def weighing(recursion: Recursion, squash: bool) -> Weighing:
    """Weights by kind, as for `xrnn`: linear in an input, in the sum of all, trained, or given."""
    kind, fixed = _kind(recursion)

    def init(key: jax.Array, input_size: int) -> Params | None:
        # Training begins near an even mix: both parts of a gate get a gradient. Of a definite type:
        # the first update would make it so, and a training step be compiled twice.
        even = jnp.full(2, 0.0 if squash else 0.5, jnp.result_type(float))
        if kind == "fixed":
            return None
        if kind == "scalar":
            return even
        return {"weights": dense(key, (input_size, 2), gain=0.1), "bias": even}

    def apply(params: Params | None, x: jax.Array) -> jax.Array:
        shape = (*x.shape[:-1], 2)
        if params is None:
            return jnp.broadcast_to(jnp.asarray(fixed, x.dtype), shape)
        if kind == "scalar":
            found = params
        elif kind == "dynamic":
            found = affine(x, params["weights"], params["bias"])
        else:
            if x.ndim < 2:
                raise ValueError(
                    "static recursion depends on the whole sequence [time, ..., features]: a step "
                    f"by itself, of shape {x.shape}, is not enough; use unroll"
                )
            found = affine(jnp.sum(x, axis=0), params["weights"], params["bias"])
        return jnp.broadcast_to(jax.nn.sigmoid(found) if squash else found, shape)

    return Weighing(kind, init, apply)


def gates(
    scores: Sequence[jax.Array],
    weights: jax.Array | None,
    below: Sequence[jax.Array],
    bend: Candidate,
    combine: Combine = "mix",
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """`f`, `o` and `z` of a unit (equations 1 to 3).

    Args:
      scores: of the base unit, for the three.
      weights: alpha and beta `[..., 2]`; None at the maximum depth.
      below: what the units below give.
      bend: around the last score.
      combine: `"mix"`, alpha of what is below and `1 - alpha` of the unit's own score, or `"add"`,
        alpha of what is below and all of its own.
    """
    f, o, z = mixed(scores, weights, below, combine)
    return jax.nn.sigmoid(f), jax.nn.sigmoid(o), bend(z)


def mixed(
    scores: Sequence[jax.Array],
    weights: jax.Array | None,
    below: Sequence[jax.Array],
    combine: Combine = "mix",
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The scores of a unit with what the units below give mixed in; arguments as of `gates`."""
    f, o, z = scores
    if weights is not None:
        forget, output = below
        if combine == "mix":
            forget, output = forget - f, output - o
        f, o = f + weights[..., :1] * forget, o + weights[..., 1:] * output
    return f, o, z


@jax.custom_jvp
def gated(
    f: jax.Array, o: jax.Array, z: jax.Array, previous: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """`o c` and `c`, with `c = (1 - f) previous + f z`, from the scores of `f` and `o`."""
    f, o = jax.nn.sigmoid(f), jax.nn.sigmoid(o)
    c = previous + f * (z - previous)
    return o * c, c


@gated.defjvp
def _gated_rule(primals: tuple, tangents: tuple) -> tuple[tuple, tuple]:
    """One factor for each gate: a backward pass keeps four arrays a step, and no more."""
    f, o, z, previous = primals
    f, o = jax.nn.sigmoid(f), jax.nn.sigmoid(o)
    c = previous + f * (z - previous)
    f_dot, o_dot, z_dot, previous_dot = tangents
    c_dot = (z - previous) * f * (1 - f) * f_dot + f * (z_dot - previous_dot) + previous_dot
    h_dot = c * o * (1 - o) * o_dot + o * c_dot
    return (o * c, c), (h_dot, c_dot)


def candidate_of(candidate: str | Candidate) -> Candidate:
    """A function by name, or as given."""
    if not isinstance(candidate, str):
        return candidate
    if candidate not in _CANDIDATES:
        raise ValueError(f"candidate must be in {sorted(_CANDIDATES)} or callable: {candidate!r}")
    return _CANDIDATES[candidate]


def check_depth(depth: int) -> None:
    if not isinstance(depth, int) or depth < 1:
        raise ValueError(f"depth must be an integer of at least 1, got {depth!r}")


def _kind(recursion: Recursion) -> tuple[str, tuple[float, ...]]:
    """The kind of recursion, and the weights where they are given."""
    if isinstance(recursion, str):
        if recursion in ("dynamic", "static", "scalar"):
            return recursion, ()
    elif isinstance(recursion, int | float):
        return "fixed", (recursion, recursion)
    elif isinstance(recursion, Sequence) and len(recursion) == 2:
        return "fixed", (float(recursion[0]), float(recursion[1]))
    raise ValueError(
        'recursion must be "dynamic", "static", "scalar", a number or a pair of numbers, '
        f"got {recursion!r}"
    )
