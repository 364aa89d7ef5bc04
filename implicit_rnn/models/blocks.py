"""Functions of one vector at a time, from a width to the same: what stands between attentions."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from implicit_rnn.cells.base import Params
from implicit_rnn.cells.recursion import (
    Candidate,
    Recursion,
    candidate_of,
    check_depth,
    gates,
    weighing,
)
from implicit_rnn.models.readout import init_read, read


class Block(NamedTuple):
    """A function of vectors.

    Attributes:
      init: `(key, width) -> params`.
      apply: `(params, x [..., width]) -> [..., width]`.
    """

    init: Callable[[jax.Array, int], Params]
    apply: Callable[[Params, jax.Array], jax.Array]


def linear() -> Block:
    """`W x + b`. Parameters: `weights` `[width, width]` and `bias`."""

    def init(key: jax.Array, width: int) -> Params:
        return init_read(key, width, width)

    return Block(init, read)


def feed_forward(hidden_size: int) -> Block:
    """`V relu(W x + b) + c`, the block of a Transformer.

    Parameters: `into` and `out`, each `weights` and `bias`.
    """
    if hidden_size < 1:
        raise ValueError(f"hidden_size must be at least 1, got {hidden_size}")

    def init(key: jax.Array, width: int) -> Params:
        keys = jax.random.split(key)
        return {
            "into": init_read(keys[0], width, hidden_size),
            "out": init_read(keys[1], hidden_size, width),
        }

    def apply(params: Params, x: jax.Array) -> jax.Array:
        return read(params["out"], jax.nn.relu(read(params["into"], x)))

    return Block(init, apply)


def recursive(
    *,
    depth: int = 2,
    recursion: Recursion = "dynamic",
    squash: bool = False,
    candidate: str | Candidate = "tanh",
    skip: bool = False,
) -> Block:
    """X-RNN without its recurrence, in parallel over all steps (equations 6 to 8), at depth n

        f = sigmoid(alpha X^F_{n+1}(x) + (1 - alpha) F_n(x)),    z = tanh(Z_n(x)),
        o = sigmoid(beta X^O_{n+1}(x) + (1 - beta) O_n(x)),
        h = f x + o z (+ x),

    and `f = sigmoid(F(x))`, `o = sigmoid(O(x))` at the maximum depth. `F`, `O` and `Z` are linear,
    the units a binary tree, as in `cells.xrnn`. It takes the place of a position-wise
    perceptron; each output depends on its own input alone, so it decodes step by step.

    Args:
      depth: the maximum depth, L: there are `2^L - 1` units, of `3 width^2` weights each.
      recursion: as for `cells.xrnn`, but `"static"`, which needs more than one vector.
      squash: a sigmoid around weights that are learnt.
      candidate: `"tanh"`, `"relu"`, `"identity"`, or an elementwise function, around `Z`.
      skip: a residual path: add `x` once more, in every unit.

    Parameters: a tree of `base` (`weights` `[width, 3 width]` and `bias`); above the maximum depth
    `recursion`, and `forget` and `output`, the units below.
    """
    check_depth(depth)
    bend, weigh = candidate_of(candidate), weighing(recursion, squash)
    if weigh.kind == "static":
        raise ValueError(
            'recursion "static" depends on the whole sequence, and a block sees one vector; use '
            '"dynamic", "scalar", a number or a pair of numbers'
        )

    def init(key: jax.Array, width: int, level: int = 1) -> Params:
        keys = jax.random.split(key, 4)
        params = {"base": init_read(keys[0], width, 3 * width)}
        if level < depth:
            own = weigh.init(keys[1], width)
            params |= {} if own is None else {"recursion": own}
            params["forget"] = init(keys[2], width, level + 1)
            params["output"] = init(keys[3], width, level + 1)
        return params

    def apply(params: Params, x: jax.Array) -> jax.Array:
        scores = jnp.split(read(params["base"], x), 3, axis=-1)
        weights, below = None, []
        if "forget" in params:
            weights = weigh.apply(params.get("recursion"), x)
            below = [apply(params["forget"], x), apply(params["output"], x)]
        f, o, z = gates(scores, weights, below, bend)
        h = f * x + o * z
        return h + x if skip else h

    return Block(init, apply)
