"""X-RNN (2021): a recurrent unit whose gates are computed by recurrent units of its own kind.

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

**Parameters** are a tree of `base`; `forget` and `output`, the units below; above the maximum depth
`recursion`, with `weights` `[in, 2]` and `bias` `[2]`, or `[2]` for trained numbers; `skip` `[in,
d]` where the widths differ.

**Forms.** The prototype that the authors published squashes the weights, has the candidate relu
(tanh in decoders), carries the memory, adds inputs to the output alone and only where they are as
wide, and has one base LSTM or GRU of width 3 d, which in a bidirectional network reads both ways
(`two_way`) while the recurrence runs forward. In a decoder all units are given the root's h, and
scores from below are added to a unit's own. It also takes the maximum over time for a summary
(`models.classifier(pooling="max")`) where it is given no lengths, has no biases in the linear bases
of encoders, and forgets the states of a decoder's base from step to step, which the cell here
keeps. Of a base that reads both ways its units at the maximum depth cut what the two cells give in
three without regard to direction, so that the candidate is of one way and the output gate of the
other; here all levels have halves of either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from implicit_rnn.cells.base import Cell, Params
from implicit_rnn.cells.factory import cell_factory
from implicit_rnn.cells.recursion import Combine, Recursion, candidate_of, check_depth, weighing
from implicit_rnn.cells.xrnn_bases import Base, make_base
from implicit_rnn.cells.xrnn_unit import CHILDREN, KEEPS, Projected, Skip, Unit, XRNNState

__all__ = ["XRNNState", "recursion_weights", "xrnn"]

Keep = Literal["auto", "everything", "outputs", "inputs", "chunks"]


class Pieces(NamedTuple):
    """The pieces in which forms differ, as `xrnn` has them."""

    squash: Any
    candidate: Any
    skip: Any
    carries: Any
    combine: Any
    shared: Any
    joint: Any

    def of(self, form: str) -> Pieces:
        """Those of a form where nothing else is given; a `ValueError` if they do not fit."""
        if form not in FORMS:
            raise ValueError(f"form must be one of {', '.join(FORMS)}, got {form!r}")
        pairs = zip(self, FORMS[form], strict=True)
        found = Pieces(*(usual if own is None else own for own, usual in pairs))
        if found.combine not in ("mix", "add"):
            raise ValueError(f'combine must be "mix" or "add", got {found.combine!r}')
        if found.skip not in (True, False, "equal"):
            raise ValueError(f'skip must be True, False or "equal", got {found.skip!r}')
        if found.shared and found.carries == "memory":
            raise ValueError('units that share an h cannot carry a memory: carries="output"')
        if found.carries not in ("output", "memory"):
            raise ValueError(f'carries must be "output" or "memory", got {found.carries!r}')
        return found


FORMS = {
    "paper": Pieces(False, "tanh", False, "output", "mix", False, False),
    "prototype": Pieces(True, "relu", "equal", "memory", "mix", False, True),
    "prototype_decoder": Pieces(True, "tanh", False, "output", "add", True, True),
}


@cell_factory
def xrnn(
    hidden_size: int,
    *,
    depth: int = 2,
    form: Literal["paper", "prototype", "prototype_decoder"] = "paper",
    base: str | Cell = "linear",
    recursion: Recursion = "dynamic",
    squash: bool | None = None,
    candidate: str | Callable[[jax.Array], jax.Array] | None = None,
    skip: Skip | None = None,
    carries: Literal["output", "memory"] | None = None,
    combine: Combine | None = None,
    shared: bool | None = None,
    joint: bool | None = None,
    two_way: bool = False,
    filter_width: int = 2,
    update_bias: float | Sequence[float] = 0.0,
    output_bias: float | Sequence[float] = 0.0,
    keep: Keep = "auto",
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

    The head of this file tells how stable it is, its relatives, and how it is evaluated; `FORMS`
    what the published prototype does otherwise, of which every piece is an option here.

    Args:
      hidden_size: width of the state of every unit.
      depth: how many levels of units, L: there are `2^L - 1` units, in either form. The paper's
        maximum depth is L, as `n = 1, ..., L` in its equations; the prototype's is `L - 1`: what
        it calls 2 has three levels, 7 units, and is `depth=3` here.
      form: `"paper"`, the equations above; `"prototype"` and `"prototype_decoder"`, what its
        authors published for encoders and decoders: where options that follow are None they are
        those of `FORMS`. A result that is recorded in this project is of the paper's form, unless
        its configuration says `form`.
      base: `"linear"` in the input, `"linear_state"` in input and `h`, `"convolution"` over the
        last inputs, `"rnn"`, `"gru"` or `"lstm"` with states of their own, or any causal cell of
        the same width, of which each unit has three (of three times the width if `joint`).
      recursion: `"dynamic"`, `"static"`, `"scalar"`, a number for `alpha` and `beta`, or a pair.
      squash: a sigmoid around weights that are learnt.
      candidate: `"tanh"`, `"relu"`, `"identity"`, or an elementwise function, around `Z`.
      skip: a residual path: add the input to `h`, or `W_s x` where it is not as wide as the state;
        `"equal"`: only where it is as wide.
      carries: whether a step is given the `h` of the one before, as in the paper, or its `c`.
      combine: `"mix"`, alpha of what is below and `1 - alpha` of a unit's own score, as in the
        paper, or `"add"`, alpha of what is below and all of its own.
      shared: whether all units are given the `h` of the root, in place of each its own.
      joint: of a base of cells, one cell three times as wide whose output is split in three, in
        place of three cells.
      two_way: of a joint base, two cells half as wide, one of which reads against time, while the
        recurrence runs along time. Such a cell is marked `whole`.
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
    """
    check_depth(depth)
    own = Pieces(squash, candidate, skip, carries, combine, shared, joint).of(form)
    bias = (update_bias, output_bias)
    made = make_base(base, hidden_size, filter_width, bias, joint=own.joint, two_way=two_way)
    return _cell(hidden_size, depth, made, recursion, own, keep)


def _cell(
    hidden_size: int, depth: int, base: Base, recursion: Recursion, own: Pieces, keep: Keep
) -> Cell:
    """The record of a tree of units over this base."""
    if keep not in KEEPS:
        raise ValueError(f"keep must be one of {', '.join(KEEPS)}, got {keep!r}")
    made = base._replace(run=None) if own.shared else base  # every unit waits for the root
    weights, activation = weighing(recursion, own.squash), candidate_of(own.candidate)
    memory = own.carries == "memory"
    unit = Unit(
        hidden_size,
        depth,
        made,
        weights,
        activation,
        own.skip,
        memory,
        keep,
        own.combine,
        own.shared,
    )
    if keep == "chunks" and unit.whole:
        raise ValueError("static recursion needs the whole sequence: it cannot go in chunks")
    return Cell(
        name="xrnn",
        hidden_size=hidden_size,
        init=unit.init,
        project=unit.project,
        step=lambda params, xi, state: unit.advance(params, xi, state)[0],
        output=lambda state: state.h,
        initial_state=unit.initial_state,
        split_step=unit.advance if made.splits else None,
        at_rest=(lambda params, xi: unit.advance(params, xi, None)) if made.rests else None,
        bounds=unit.bounds(),
        run=unit.run if made.run is not None else None,
        whole=unit.whole,
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
        for number, letter in enumerate(CHILDREN.values()):
            found[name + letter] = jnp.where(inside, xi.weights[..., number], 0)
            walk(xi.children[number], name + letter)

    projected = cell.project(params, jnp.where(inside[:, None], xs, 0))
    if not isinstance(projected, Projected):
        raise ValueError(f"only an xrnn weighs units below its gates; {cell.name} is none")
    walk(projected, "")
    return {name: found[name] for name in sorted(found, key=lambda name: (len(name), name))}
