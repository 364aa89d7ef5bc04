"""The tree of units of an X-RNN: one step of it, and all steps at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from implicit_rnn.cells.base import Params, State, dense, product
from implicit_rnn.cells.recurrence import in_chunks, last_of, linear_recurrence
from implicit_rnn.cells.recursion import Candidate, Combine, Weighing, gated, gates, mixed
from implicit_rnn.cells.xrnn_bases import Base

# The two units below a unit, as its parameters name them, and as pictures of the tree do.
CHILDREN = {"forget": "L", "output": "R"}
Skip = bool | Literal["equal"]
KEEPS = ("auto", "everything", "outputs", "inputs", "chunks")
# Depth up to which what all units give is less to keep than what one unit recomputes.
_SHALLOW = 3
_CHUNK = 32  # steps


class XRNNState(NamedTuple):
    """The state of a unit and of those below it.

    Attributes:
      h: what the unit gives.
      c: its memory, None where `h` is carried on.
      base: of its base unit.
      children: of the units that compute its forget and output gate; none at the maximum depth.
    """

    h: jax.Array
    c: jax.Array | None
    base: State
    children: tuple[XRNNState, ...]


class Projected(NamedTuple):
    """What inputs are to a unit and those below it.

    Attributes:
      base: to the base unit.
      weights: of the recursion, alpha and beta, `[..., 2]`; None at the maximum depth.
      skip: what the residual path adds, None without.
      children: to the units below.
    """

    base: Any
    weights: jax.Array | None
    skip: jax.Array | None
    children: tuple[Projected, ...]


class Unit(NamedTuple):
    """What all units of a tree share; a unit is told from others by its parameters and state.

    Attributes:
      size: width of a state.
      depth: the maximum depth.
      base: what gates and candidate are computed from.
      weigh: alpha and beta.
      bend: around the candidate.
      skip: whether the inputs are added to `h`, or only where they are as wide.
      remembers: whether a step is given the `c` of the one before, not its `h`.
      keep: what a gradient keeps.
      combine: how scores from below enter a gate.
      shared: whether all units are given the `h` of the root, in place of their own.
    """

    size: int
    depth: int
    base: Base
    weigh: Weighing
    bend: Candidate
    skip: Skip
    remembers: bool
    keep: str
    combine: Combine = "mix"
    shared: bool = False

    @property
    def whole(self) -> bool:
        """Whether a step depends on all inputs."""
        return self.base.whole or (self.weigh.kind == "static" and self.depth > 1)

    def init(self, key: jax.Array, input_size: int, level: int = 1) -> Params:
        keys = jax.random.split(key, 5)
        params: Params = {"base": self.base.init(keys[0], input_size)}
        if self.skip is True and input_size != self.size:
            params["skip"] = dense(keys[1], (input_size, self.size))
        if level < self.depth:
            own = self.weigh.init(keys[2], input_size)
            params |= {} if own is None else {"recursion": own}
            for k, child in zip(keys[3:], CHILDREN, strict=True):
                params[child] = self.init(k, input_size, level + 1)
        return params

    def initial_state(self, params: Params) -> XRNNState:
        zero = jnp.zeros(self.size, jax.tree.leaves(params["base"])[0].dtype)
        children = tuple(self.initial_state(child) for child in below(params))
        start = self.base.initial_state(params["base"])
        return XRNNState(zero, zero if self.remembers else None, start, children)

    def bounds(self, level: int = 1) -> dict:
        if not self.base.bounds:
            return {}
        lower = {}
        if level < self.depth:
            lower = {child: self.bounds(level + 1) for child in CHILDREN}
        return {"base": self.base.bounds} | lower

    def weights(self, params: Params, x: jax.Array) -> jax.Array | None:
        """Alpha and beta of a unit, `[..., 2]`; None at the maximum depth."""
        return self.weigh.apply(params.get("recursion"), x) if below(params) else None

    def skipped(self, params: Params, x: jax.Array) -> jax.Array | None:
        """What the residual path adds."""
        if not self.skip or (self.skip == "equal" and x.shape[-1] != self.size):
            return None
        return product(x, params["skip"]) if "skip" in params else x

    def project(self, params: Params, x: jax.Array) -> Projected:
        return Projected(
            self.base.project(params["base"], x),
            self.weights(params, x),
            self.skipped(params, x),
            tuple(self.project(child, x) for child in below(params)),
        )

    def advance(
        self,
        params: Params,
        xi: Projected,
        state: XRNNState | None,
        root: jax.Array | None = None,
    ) -> tuple[XRNNState, XRNNState]:
        """A step and its retention; from zero where there is no state."""
        if self.shared and state is not None:
            root = state.h if root is None else root
            state = state._replace(h=root)
        turned = [
            self.advance(child, given, None if state is None else state.children[number], root)
            for number, (child, given) in enumerate(zip(below(params), xi.children, strict=True))
        ]
        h, previous, own = None, jnp.zeros((), jax.tree.leaves(xi)[0].dtype), None
        if state is not None:
            h, own = state.h, state.base
            previous = h if state.c is None else state.c
        scores, new, kept = self.base.step(params["base"], xi.base, h, own)
        f, o, z = mixed(scores, xi.weights, [child.h for child, _ in turned], self.combine)
        h, c = gated(f, o, self.bend(z), previous)
        h = h if xi.skip is None else h + xi.skip
        news, kepts = (tuple(pair[i] for pair in turned) for i in range(2))
        lasts = jax.nn.sigmoid(-f)
        if self.remembers:
            return XRNNState(h, c, new, news), XRNNState(jnp.zeros_like(h), lasts, kept, kepts)
        retained = jax.nn.sigmoid(o) * lasts
        return XRNNState(h, None, new, news), XRNNState(retained, None, kept, kepts)

    def run(
        self, params: Params, xs: jax.Array, state: XRNNState, length: jax.Array, reverse: bool
    ) -> tuple[jax.Array, XRNNState]:
        """All steps: of a unit at once, those below first."""
        unit = self._replace(keep=self.kept())
        whole = in_chunks(unit.at_once, _CHUNK) if unit.keep == "chunks" else unit.at_once
        return whole(params, xs, state, length, reverse)

    def kept(self) -> str:
        """What a gradient keeps; "auto" depends on where it is run."""
        if self.keep != "auto":
            return self.keep
        if jax.default_backend() == "cpu" and not self.whole:
            return "chunks"
        return "outputs" if self.depth <= _SHALLOW else "inputs"

    def at_once(
        self, params: Params, xs: jax.Array, state: XRNNState, length: jax.Array, reverse: bool
    ) -> tuple[jax.Array, XRNNState]:
        def tree(
            params: Params, xs: jax.Array, state: XRNNState, length: jax.Array
        ) -> tuple[jax.Array, XRNNState]:
            own = partial(self.own, reverse=reverse)
            here = jax.checkpoint(own) if self.keep == "outputs" else own
            if not state.children:
                return here(params, xs, (), state, length)
            pair = jax.tree.map(lambda *leaves: jnp.stack(leaves), *below(params))
            starts = jax.tree.map(lambda *leaves: jnp.stack(leaves), *state.children)
            outputs, lasts = self.each(
                (pair, starts), lambda at: self.at_once(at[0], xs, at[1], length, reverse)
            )
            h, last = here(params, xs, tuple(outputs), state, length)
            children = tuple(jax.tree.map(lambda leaf, i=i: leaf[i], lasts) for i in range(2))
            return h, last._replace(children=children)

        evaluate = jax.checkpoint(tree) if self.keep == "inputs" else tree
        return evaluate(params, xs, state, length)

    def own(
        self,
        params: Params,
        xs: jax.Array,
        outputs: tuple[jax.Array, ...],
        state: XRNNState,
        length: jax.Array,
        reverse: bool,
    ) -> tuple[jax.Array, XRNNState]:
        """All steps of one unit, of which those below have given `outputs`."""
        assert self.base.run is not None
        scores, last = self.base.run(params["base"], xs, state.base, length, reverse)
        f, o, z = gates(scores, self.weights(params, xs), outputs, self.bend, self.combine)
        added = self.skipped(params, xs)
        if state.c is None:
            fresh = o * f * z if added is None else o * f * z + added
            h, final = linear_recurrence(o * (1 - f), fresh, state.h, length, reverse)
            return h, XRNNState(final, None, last, ())
        c, memory = linear_recurrence(1 - f, f * z, state.c, length, reverse)
        h = o * c if added is None else o * c + added
        return h, XRNNState(last_of(h, state.h, length, reverse), memory, last, ())

    def each(self, pair: tuple, of_one: Callable) -> Any:
        """Both units below a unit: side by side, or one after the other."""
        if self.keep in ("everything", "chunks"):
            return jax.vmap(of_one)(pair)
        # A loop, because nothing else makes XLA do one unit after the other: what a unit
        # recomputes would wait in memory together with that of all the others.
        return lax.map(of_one, pair)


def below(params: Params) -> list[Params]:
    """The parameters of the units below."""
    return [params[child] for child in CHILDREN if child in params]
