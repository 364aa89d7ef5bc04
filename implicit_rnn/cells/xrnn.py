"""X-RNN (2021): a recurrent unit whose gates are computed by recurrent units of its own kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from implicit_rnn.cells.base import Cell, Params, State, dense, product
from implicit_rnn.cells.recurrence import in_chunks, last_of, linear_recurrence
from implicit_rnn.cells.recursion import (
    Recursion,
    candidate_of,
    check_depth,
    gated,
    gates,
    mixed,
    weighing,
)
from implicit_rnn.cells.xrnn_bases import make_base

# The two units below a unit, as its parameters name them, and as pictures of the tree do.
_CHILDREN = {"forget": "L", "output": "R"}
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


def xrnn(
    hidden_size: int,
    *,
    depth: int = 2,
    base: str | Cell = "linear",
    recursion: Recursion = "dynamic",
    squash: bool = False,
    candidate: str | Callable[[jax.Array], jax.Array] = "tanh",
    skip: bool = False,
    carries: Literal["output", "memory"] = "output",
    filter_width: int = 2,
    update_bias: float | Sequence[float] = 0.0,
    output_bias: float | Sequence[float] = 0.0,
    keep: Literal["auto", "everything", "outputs", "inputs", "chunks"] = "auto",
) -> Cell:
    """A recurrent unit `X_1` whose gates are computed by units `X_2` (equations 1 to 5), at depth n

        f = sigmoid(alpha_t X^F_{n+1} + (1 - alpha_t) F_n),    z = tanh(Z_n),
        o = sigmoid(beta_t X^O_{n+1} + (1 - beta_t) O_n),
        c = (1 - f) h_prev + f z,    h = o c (+ x),

    and at the maximum depth `f = sigmoid(F)`, `o = sigmoid(O)`. The units are a binary tree: all
    have parameters and an `h` of their own, and all see the inputs. `F`, `O` and `Z` are the
    base unit's. `alpha` and `beta`, one number each per step and unit, say how much of a gate comes
    from below: they are linear in the input (`"dynamic"`), linear in the sum of all inputs
    (`"static"`; such a cell is marked `whole` and cannot decode), trained numbers (`"scalar"`), or
    given.

    **Stability.** Linear weights, the paper's, are unbounded: outside of 0 to 1 a gate's score is
    extrapolated, `|alpha| + |1 - alpha|` times as large as the scores it is made of, gates saturate
    and the gradient into the units below is scaled by `alpha`. With static recursion that grows
    with the length. Squashed by a sigmoid, the weights stay between 0 and 1 and the score between
    its two parts, but neither part can be left out altogether. Either way `c` lies between
    `h_prev` and `z`, and `|h| <= 1` from a zero state with the tanh candidate. A skip adds
    to what is carried on, so that with it `h` is bounded by the inputs and how much a step
    forgets only; where the memory is carried, the skip is no part of it.

    **Relatives.** At depth 1, with `c` carried in place of `h` (`carries="memory"`):
    `base="linear"` and the identity as candidate are SRU without its peephole and highway, whose
    `f` is `1 - f` here; `base="convolution"` is QRNN with fo-pooling, again with `1 - f` for `f`;
    `base="lstm"` or `"gru"` and the identity are the recurrently controlled network (RCRN).

    **Evaluation.** Where the base depends on inputs alone (linear, convolution, cells with
    `Cell.run`) every unit is a linear recurrence in its state, and `unroll` does all steps of a
    unit at once, those below first. Otherwise it is one scan, for which `unroll(chunk=)` saves
    memory.

    Args:
      hidden_size: width of the state of every unit.
      depth: the maximum depth, L: there are `2^L - 1` units.
      base: `"linear"` in the input, `"linear_state"` in input and `h`, `"convolution"` over the
        last inputs, `"rnn"`, `"gru"` or `"lstm"` with states of their own, or any causal cell of
        the same width, of which each unit has three.
      recursion: `"dynamic"`, `"static"`, `"scalar"`, a number for `alpha` and `beta`, or a pair.
      squash: a sigmoid around weights that are learnt.
      candidate: `"tanh"`, `"relu"`, `"identity"`, or an elementwise function, around `Z`.
      skip: a residual path: add the input to `h`, or `W_s x` where it is not as wide as the state.
      carries: whether a step is given the `h` of the one before, as in the paper, or its `c`.
      filter_width: of a convolution, how many inputs a step sees.
      update_bias, output_bias: where the biases of `F` and `O` begin, in every unit whose base is
        linear or a convolution; a pair goes evenly from the first channel to the last. At zero a
        step keeps a quarter of `h` (or half of `c`): for long sequences let `f` begin small and,
        where `h` is carried, `o` large. Above the maximum depth half of it counts at first.
      keep: what a gradient keeps of each unit where steps are done at once. `"everything"`: the
        units of a level are then done side by side. `"outputs"`: units are done one after the
        other, and all but what they give is recomputed once. `"inputs"` of the tree alone: a unit
        at depth n is recomputed n times, and memory grows with the depth but not with the number
        of units. `"chunks"`: 32 steps at once, chunk after chunk; the states between are kept and
        all else is recomputed once. `"auto"`: chunks on a CPU, whose caches they suit, unless the
        recursion is static; otherwise outputs up to depth 3, inputs beyond.

    Parameters: a tree of `base`; `forget` and `output`, the units below; above the maximum depth
    `recursion`, with `weights` `[in, 2]` and `bias` `[2]`, or `[2]` for trained numbers; `skip`
    `[in, d]` where the widths differ.
    """
    check_depth(depth)
    if carries not in ("output", "memory"):
        raise ValueError(f'carries must be "output" or "memory", got {carries!r}')
    if keep not in ("auto", "everything", "outputs", "inputs", "chunks"):
        raise ValueError(
            f'keep must be "auto", "everything", "outputs", "inputs" or "chunks", got {keep!r}'
        )
    bend, weigh = candidate_of(candidate), weighing(recursion, squash)
    unit = make_base(base, hidden_size, filter_width, (update_bias, output_bias))
    d, remembers = hidden_size, carries == "memory"
    whole = unit.whole or (weigh.kind == "static" and depth > 1)
    if keep == "chunks" and whole:
        raise ValueError("static recursion needs the whole sequence: it cannot go in chunks")
    if keep == "auto":
        keep = "outputs" if depth <= _SHALLOW else "inputs"
        if jax.default_backend() == "cpu" and not whole:
            keep = "chunks"

    def init(key: jax.Array, input_size: int, level: int = 1) -> Params:
        keys = jax.random.split(key, 5)
        params: Params = {"base": unit.init(keys[0], input_size)}
        if skip and input_size != d:
            params["skip"] = dense(keys[1], (input_size, d))
        if level < depth:
            own = weigh.init(keys[2], input_size)
            params |= {} if own is None else {"recursion": own}
            for k, child in zip(keys[3:], _CHILDREN, strict=True):
                params[child] = init(k, input_size, level + 1)
        return params

    def below(params: Params) -> list[Params]:
        return [params[child] for child in _CHILDREN if child in params]

    def weights_of(params: Params, x: jax.Array) -> jax.Array | None:
        """Alpha and beta of a unit, `[..., 2]`; None at the maximum depth."""
        return weigh.apply(params.get("recursion"), x) if below(params) else None

    def skip_of(params: Params, x: jax.Array) -> jax.Array | None:
        if not skip:
            return None
        return product(x, params["skip"]) if "skip" in params else x

    def project(params: Params, x: jax.Array) -> Projected:
        return Projected(
            unit.project(params["base"], x),
            weights_of(params, x),
            skip_of(params, x),
            tuple(project(child, x) for child in below(params)),
        )

    def advance(
        params: Params, xi: Projected, state: XRNNState | None
    ) -> tuple[XRNNState, XRNNState]:
        """A step and its retention; from zero where there is no state."""
        turned = [
            advance(child, given, None if state is None else state.children[number])
            for number, (child, given) in enumerate(zip(below(params), xi.children, strict=True))
        ]
        h, previous, own = None, jnp.zeros((), jax.tree.leaves(xi)[0].dtype), None
        if state is not None:
            h, own = state.h, state.base
            previous = h if state.c is None else state.c
        scores, new, kept = unit.step(params["base"], xi.base, h, own)
        f, o, z = mixed(scores, xi.weights, [child.h for child, _ in turned])
        h, c = gated(f, o, bend(z), previous)
        h = h if xi.skip is None else h + xi.skip
        news, kepts = (tuple(pair[i] for pair in turned) for i in range(2))
        lasts = jax.nn.sigmoid(-f)
        if remembers:
            return XRNNState(h, c, new, news), XRNNState(jnp.zeros_like(h), lasts, kept, kepts)
        retained = jax.nn.sigmoid(o) * lasts
        return XRNNState(h, None, new, news), XRNNState(retained, None, kept, kepts)

    def at_once(
        params: Params, xs: jax.Array, state: XRNNState, length: jax.Array, reverse: bool
    ) -> tuple[jax.Array, XRNNState]:
        """All steps of a unit at once, those below first."""

        def own(
            params: Params,
            xs: jax.Array,
            outputs: tuple[jax.Array, ...],
            state: XRNNState,
            length: jax.Array,
        ) -> tuple[jax.Array, XRNNState]:
            assert unit.run is not None
            scores, last = unit.run(params["base"], xs, state.base, length, reverse)
            f, o, z = gates(scores, weights_of(params, xs), outputs, bend)
            added = skip_of(params, xs)
            if state.c is None:
                fresh = o * f * z if added is None else o * f * z + added
                h, final = linear_recurrence(o * (1 - f), fresh, state.h, length, reverse)
                return h, XRNNState(final, None, last, ())
            c, memory = linear_recurrence(1 - f, f * z, state.c, length, reverse)
            h = o * c if added is None else o * c + added
            return h, XRNNState(last_of(h, state.h, length, reverse), memory, last, ())

        def tree(
            params: Params, xs: jax.Array, state: XRNNState, length: jax.Array
        ) -> tuple[jax.Array, XRNNState]:
            here = jax.checkpoint(own) if keep == "outputs" else own
            if not state.children:
                return here(params, xs, (), state, length)
            pair = jax.tree.map(lambda *leaves: jnp.stack(leaves), *below(params))
            starts = jax.tree.map(lambda *leaves: jnp.stack(leaves), *state.children)
            outputs, lasts = each(
                (pair, starts), lambda at: at_once(at[0], xs, at[1], length, reverse)
            )
            h, last = here(params, xs, tuple(outputs), state, length)
            children = tuple(jax.tree.map(lambda leaf, i=i: leaf[i], lasts) for i in range(2))
            return h, last._replace(children=children)

        def each(pair: tuple, of_one: Callable) -> Any:
            if keep in ("everything", "chunks"):
                return jax.vmap(of_one)(pair)
            # A loop, because nothing else makes XLA do one unit after the other: what a unit
            # recomputes would wait in memory together with that of all the others.
            return lax.map(of_one, pair)

        evaluate = jax.checkpoint(tree) if keep == "inputs" else tree
        return evaluate(params, xs, state, length)

    run = in_chunks(at_once, _CHUNK) if keep == "chunks" else at_once

    def initial_state(params: Params) -> XRNNState:
        zero = jnp.zeros(d, jax.tree.leaves(params["base"])[0].dtype)
        children = tuple(initial_state(child) for child in below(params))
        start = unit.initial_state(params["base"])
        return XRNNState(zero, zero if remembers else None, start, children)

    def bounds(level: int = 1) -> dict:
        if not unit.bounds:
            return {}
        lower = {child: bounds(level + 1) for child in _CHILDREN} if level < depth else {}
        return {"base": unit.bounds} | lower

    return Cell(
        name="xrnn",
        hidden_size=d,
        init=init,
        project=project,
        step=lambda params, xi, state: advance(params, xi, state)[0],
        output=lambda state: state.h,
        initial_state=initial_state,
        split_step=advance if unit.splits else None,
        at_rest=(lambda params, xi: advance(params, xi, None)) if unit.rests else None,
        bounds=bounds(),
        run=run if unit.run is not None else None,
        whole=whole,
    )


def recursion_weights(
    cell: Cell, params: Params, xs: jax.Array, length: int | jax.Array | None = None
) -> dict[str, jax.Array]:
    """How much every gate of an X-RNN takes from the unit below, over time (figures 5 to 8).

    Args:
      cell: an `xrnn` of depth 2 or more.
      params: its parameters.
      xs: inputs `[time, input_size]`; use `jax.vmap` for a batch.
      length: how many steps count; weights are zero at or past it.

    Returns:
      Weights `[time]` by the name of the unit that they weigh: `L` computes the forget gate of the
      root and `R` its output gate, `LR` the output gate of `L`, and so on, level by level.
    """
    inside = jnp.arange(xs.shape[0]) < (xs.shape[0] if length is None else length)
    found: dict[str, jax.Array] = {}

    def walk(xi: Projected, name: str) -> None:
        if xi.weights is None:
            return
        for number, letter in enumerate(_CHILDREN.values()):
            found[name + letter] = jnp.where(inside, xi.weights[..., number], 0)
            walk(xi.children[number], name + letter)

    projected = cell.project(params, jnp.where(inside[:, None], xs, 0))
    if not isinstance(projected, Projected):
        raise ValueError(f"only an xrnn weighs units below its gates; {cell.name} is none")
    walk(projected, "")
    return {name: found[name] for name in sorted(found, key=lambda name: (len(name), name))}
