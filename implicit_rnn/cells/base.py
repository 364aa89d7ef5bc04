"""What every cell is: a record of pure functions over parameter pytrees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from implicit_rnn.cells.product import product
from solvers import Bands
from solvers.mesh import dealt_like
from solvers.settings import comparable

Params = Any
State = Any
Boundary = Literal["zero", "learnt"]

# How much of a mix of neighbours bands may keep: two that keep all of each other are singular.
MOST_KEPT = 0.999


class Cell(NamedTuple):
    """One recurrent cell: `state_t = step(params, xi_t, *neighbours)`.

    Attributes:
      name: for messages.
      hidden_size: width of every component of the state.
      init: `(key, input_size) -> params`.
      project: `(params, x) -> xi` for `x` of shape `[..., input_size]`: all that does not depend on
        the state. Done once, outside a solve.
      step: `(params, xi_t, *neighbours) -> state_t`, one neighbour for each entry of `stencil`.
      output: `state -> [..., hidden_size]`, what the next layer sees.
      initial_state: `params -> state` before the first step.
      final_state: `params -> state` after the last step; only cells that look ahead have one.
      stencil: offsets in time of the neighbours: `(-1,)` is causal, `(-1, 1)` implicit.
      sweep: `(params, xi, states) -> (new states, Bands)` for a whole sequence, where `states` is
        longer than `xi` by the reach of the stencil at either end. None: `step` at every time.
      bands: `(params, xi, states) -> Bands`, the cheap part of the Jacobian of a sweep that couples
        a channel with itself at neighbouring times; None if there is none.
      split_step: `(params, xi_t, state) -> (state_t, retention)`, for causal cells: the step, and
        by how much it keeps each entry of the state it is given, all else equal. What the bands
        of `implicit(cell)` are made of.
      step_with: `(params, xi_t, state, multiply) -> state_t`: the step of a causal cell, with
        `multiply(x, weights)` for its products of something that depends on the state with
        a matrix that does not. With it the gradient by these matrices is made of all steps at once
        (`cells/deferred.py`).
      at_rest: `(params, xi)` to what `split_step`, or `sweep`, gives where every neighbour is zero.
        It needs no product with a recurrent matrix: the first sweep of a solve is all but free.
      causal_step: `(params, xi_t, previous state) -> state_t`, for cells that look ahead: the step
        that does not, for a start.
      bounds: spectral norms that keep the solve cheap through training (`spectral.bounded`): a tree
        of numbers like a part of the parameters; a leaf `[d, k d]` is k matrices.
      switch: `(params, xi, states) -> [..., len(stencil), hidden_size]`: how much each neighbour is
        listened to; None for cells without.
      run: `(params, xs, state, length, reverse) -> (outputs [time, hidden_size], last state)`: what
        `unroll` gives, for a whole sequence of inputs `[time, input_size]` that are zero past the
        length. For cells that know better than one step after the other; outputs past the length
        are free.
      remember: `(params, lengths [hidden_size]) -> params`: biases of gates with which a channel
        keeps `l / (1 + l)` of its state in a step, `l` its length; None for cells without.
      whole: whether `project` has to see the whole sequence, time first, because a step depends on
        inputs after it. Such a cell can be unrolled, but not be run while its inputs are made.
      dtype: what it computes in; None: what parameters, inputs and states promote to.
      param_dtype: of its parameters; None: the default of jax.

    Cells of equal settings are equal and hash alike (`cells/factory.py`).
    """

    name: str
    hidden_size: int
    init: Callable[[jax.Array, int], Params]
    project: Callable[[Params, jax.Array], Any]
    step: Callable[..., State]
    output: Callable[[State], jax.Array]
    initial_state: Callable[[Params], State]
    final_state: Callable[[Params], State] | None = None
    stencil: tuple[int, ...] = (-1,)
    sweep: Callable[[Params, Any, State], tuple[State, Bands]] | None = None
    bands: Callable[[Params, Any, State], Bands] | None = None
    split_step: Callable[[Params, Any, State], tuple[State, State]] | None = None
    step_with: Callable[..., State] | None = None
    at_rest: Callable[[Params, Any], tuple[State, Any]] | None = None
    causal_step: Callable[[Params, Any, State], State] | None = None
    bounds: Any = None
    switch: Callable[[Params, Any, State], jax.Array] | None = None
    run: Callable[..., tuple[jax.Array, State]] | None = None
    remember: Callable[[Params, jax.Array], Params] | None = None
    whole: bool = False
    dtype: Any = None
    param_dtype: Any = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cell) and comparable(tuple(self)) == comparable(tuple(other))

    def __hash__(self) -> int:
        return hash(comparable(tuple(self)))

    @property
    def causal(self) -> bool:
        """Whether a step needs nothing but the past: what decoding step by step takes."""
        return self.stencil == (-1,) and not self.whole

    @property
    def reach(self) -> tuple[int, int]:
        """How far the stencil looks back and ahead."""
        return max(0, -min(self.stencil)), max(0, max(self.stencil))


def common_dtype(*trees: Any) -> Any:
    """What the floating-point leaves of trees promote to; None without any."""
    found = [leaf for leaf in jax.tree.leaves(trees) if _is_floating(leaf)]
    return jnp.result_type(*found) if found else None


def cast(tree: Any, dtype: Any) -> Any:
    """A tree with its floating-point leaves in one type; None leaves them as they are."""
    if dtype is None:
        return tree
    return jax.tree.map(lambda leaf: leaf.astype(dtype) if _is_floating(leaf) else leaf, tree)


def _is_floating(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.floating)


def neighbour(states: State, offset: int, reach: tuple[int, int]) -> State:
    """`state_{t + offset}` for every `t`, from states longer by the reach at either end."""
    before, after = reach

    def shifted(leaf: jax.Array) -> jax.Array:
        return leaf[before + offset : leaf.shape[0] - after + offset]

    return jax.tree.map(shifted, states)


def boundary_states(
    boundary: Boundary, zero: Callable[[Params], State]
) -> tuple[Callable[[Params], State], Callable[[Params], State]]:
    """`initial_state` and `final_state`: zero, or the parameters `start` and `end`."""
    if boundary not in ("zero", "learnt"):
        raise ValueError(f'boundary must be "zero" or "learnt", got {boundary!r}')
    if boundary == "learnt":
        return (lambda params: params["start"]), (lambda params: params["end"])
    return zero, zero


def affine(x: jax.Array, weights: jax.Array, bias: jax.Array) -> jax.Array:
    """`x @ weights + bias` as one product: a sum of its own would pass over the result again."""
    ones = dealt_like(jnp.ones((*x.shape[:-1], 1), x.dtype), x, x.ndim - 1)
    return product(jnp.concatenate([x, ones], axis=-1), jnp.concatenate([weights, bias[None]]))


def pieces(wide: jax.Array, count: int) -> tuple[jax.Array, ...]:
    """Equal parts along the last axis.

    As one split: slices would each pad their derivative with zeros to the full width, to be added.
    """
    return tuple(jnp.split(wide, count, axis=-1))


def dense(key: jax.Array, shape: tuple[int, int], gain: float = 1.0) -> jax.Array:
    """A weight matrix `[in, out]` with entries of variance `gain^2 / in`."""
    return gain * jax.random.normal(key, shape) / jnp.sqrt(max(shape[0], 1))


def orthogonal(key: jax.Array, size: int, copies: int = 1, gain: float = 1.0) -> jax.Array:
    """`copies` orthogonal matrices side by side: `[size, copies * size]`."""
    make = jax.nn.initializers.orthogonal(gain)
    matrices = jax.vmap(lambda k: make(k, (size, size)))(jax.random.split(key, copies))
    return jnp.moveaxis(matrices, 0, 1).reshape(size, copies * size)
