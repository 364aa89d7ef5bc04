"""Base units of a recursive unit: what its gates and its candidate are computed from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from implicit_rnn.cells.base import Cell, Params, State, affine, dense, orthogonal, pieces, product
from implicit_rnn.cells.gru import gru
from implicit_rnn.cells.lstm import lstm
from implicit_rnn.cells.recurrence import convolved
from implicit_rnn.cells.rnn import rnn
from implicit_rnn.cells.scan import run_cell, start_state

Bias = float | Sequence[float]
Scores = tuple[jax.Array, ...]  # of the forget gate, the output gate and the candidate
_PARTS = ("forget", "output", "candidate")


class Base(NamedTuple):
    """Three functions of the inputs so far, and perhaps of the unit's own `h`.

    Attributes:
      init: `(key, input_size) -> params`.
      project: `(params, x) -> xi`: all that does not depend on a state.
      step: `(params, xi, h, state) -> (scores, new state, retention)`, the last as for
        `Cell.split_step`. Where `h` and `state` are None they count as zero.
      initial_state: `params -> state`.
      run: `(params, xs, state, length, reverse) -> (scores [time, d] each, last state)` for bases
        that do not see `h` and can do all steps at once; None for others.
      bounds: as for a cell.
      splits, rests: whether a retention is known, and whether a step from zero is.
      whole: as for a cell.
    """

    init: Callable[[jax.Array, int], Params]
    project: Callable[[Params, jax.Array], Any]
    step: Callable[[Params, Any, Any, Any], tuple[Scores, State, State]]
    initial_state: Callable[[Params], State]
    run: Callable[..., tuple[Scores, State]] | None
    bounds: Any
    splits: bool = True
    rests: bool = True
    whole: bool = False


def make_base(
    base: str | Cell,
    hidden_size: int,
    filter_width: int,
    bias: tuple[Bias, Bias] = (0.0, 0.0),
    *,
    joint: bool = False,
    two_way: bool = False,
) -> Base:
    """A base by name, or of three copies of a cell.

    Args:
      base: see `names` below.
      hidden_size: of every score.
      filter_width: of a convolution.
      bias: where the biases of f and o begin, for bases that have them; of a pair of numbers from
        the first channel to the last, evenly.
      joint: whether a base of cells is one, three times as wide, in place of three.
      two_way: whether it is two, half as wide, the second of which reads against time.
    """
    recurrent: dict[str, Callable[..., Cell]] = {"rnn": rnn, "gru": gru, "lstm": lstm}
    if isinstance(base, Cell) or base in recurrent:
        if any(number for number in jax.tree.leaves(bias)):
            raise ValueError("a base of cells has no bias of its own: leave out its first value")
        if not joint and two_way:
            raise ValueError("two_way needs a base of one cell for all scores: joint=True")
        if hidden_size % (1 + two_way):
            raise ValueError(f"a base that reads two ways needs an even width, not {hidden_size}")
        width = 3 * hidden_size // (1 + two_way) if joint else hidden_size
        cell = base if isinstance(base, Cell) else recurrent[base](width)
        if cell.stencil != (-1,):
            raise ValueError(f"a base unit is causal; {cell.name} has stencil {cell.stencil}")
        if cell.hidden_size != width:
            raise ValueError(
                f"a base unit must be {width} wide: {cell.name} has hidden_size {cell.hidden_size}"
            )
        if two_way:
            return of_two_ways(cell)
        return of_one_cell(cell) if joint else of_cells(cell)
    if two_way:
        raise ValueError(f'two_way needs a base of cells, "rnn", "gru" or "lstm", got {base!r}')
    first = np.concatenate([*(_spread(b, hidden_size) for b in bias), np.zeros(hidden_size)])
    if base == "convolution":
        return convolution(hidden_size, filter_width, first)
    if base in ("linear", "linear_state"):
        return linear(hidden_size, first, sees_state=base == "linear_state")
    names = ["linear", "linear_state", "convolution", *recurrent]
    raise ValueError(f"base must be one of {names} or a cell, got {base!r}")


def linear(d: int, bias: np.ndarray, *, sees_state: bool) -> Base:
    """`W x + b`, or `W x + U h + b`, with `b` as given at first.

    Parameters: `input` `[in, 3 d]` and `bias` `[3 d]`; where it sees the state `recurrent`
    `[d, 3 d]`.
    """

    def init(key: jax.Array, input_size: int) -> Params:
        keys = jax.random.split(key)
        params = {"input": dense(keys[0], (input_size, 3 * d)), "bias": jnp.asarray(bias)}
        if sees_state:
            params["recurrent"] = orthogonal(keys[1], d, copies=3, gain=0.5)
        return params

    def project(params: Params, x: jax.Array) -> jax.Array:
        return affine(x, params["input"], params["bias"])

    def step(params: Params, xi: jax.Array, h: Any, state: Any) -> tuple[Scores, State, State]:
        if sees_state and h is not None:
            xi = xi + product(h, params["recurrent"])
        return pieces(xi, 3), (), ()

    def run(params: Params, xs: jax.Array, *_: Any) -> tuple[Scores, State]:
        return pieces(project(params, xs), 3), ()

    bounds = {"recurrent": 2.0} if sees_state else {}
    return Base(init, project, step, lambda params: (), None if sees_state else run, bounds)


def convolution(d: int, filter_width: int, bias: np.ndarray) -> Base:
    """`sum_{j < k} W_j x_{t-j} + b`. The state is what the inputs so far add to later sums.

    Parameters: `input` `[in, 3 k d]` (`W_0` for f, o and z, then `W_1`, ...) and `bias` `[3 d]`.
    """
    if filter_width < 1:
        raise ValueError(f"filter_width must be at least 1, got {filter_width}")
    k = filter_width

    def init(key: jax.Array, input_size: int) -> Params:
        weights = dense(key, (input_size, 3 * k * d), gain=k**-0.5)
        return {"input": weights, "bias": jnp.asarray(bias)}

    def project(params: Params, x: jax.Array) -> tuple[Scores, ...]:
        wide = affine(x, params["input"], jnp.pad(params["bias"], (0, 3 * (k - 1) * d)))
        parts = pieces(wide, 3 * k)
        return tuple(parts[i : i + 3] for i in range(0, 3 * k, 3))

    def step(params: Params, xi: Any, h: Any, pending: Any) -> tuple[Scores, State, State]:
        if pending is not None:
            xi = (*jax.tree.map(jnp.add, xi[:-1], pending), xi[-1])
        return xi[0], xi[1:], jax.tree.map(jnp.zeros_like, xi[1:])

    def run(
        params: Params, xs: jax.Array, pending: State, length: jax.Array, reverse: bool
    ) -> tuple[Scores, State]:
        return convolved(project(params, xs), pending, length, reverse)

    def initial_state(params: Params) -> State:
        zero = jnp.zeros(d, params["bias"].dtype)
        return ((zero, zero, zero),) * (k - 1)

    return Base(init, project, step, initial_state, run, {})


def of_cells(cell: Cell) -> Base:
    """The outputs of three cells of their own, `forget`, `output` and `candidate`."""

    def init(key: jax.Array, input_size: int) -> Params:
        keys = jax.random.split(key, len(_PARTS))
        return {part: cell.init(k, input_size) for part, k in zip(_PARTS, keys, strict=True)}

    def project(params: Params, x: jax.Array) -> tuple:
        return tuple(cell.project(params[part], x) for part in _PARTS)

    def step(params: Params, xi: tuple, h: Any, states: Any) -> tuple[Scores, State, State]:
        states = [None] * len(_PARTS) if states is None else states
        turned = [
            _turned(cell, params[part], given, state)
            for part, given, state in zip(_PARTS, xi, states, strict=True)
        ]
        new, kept = zip(*turned, strict=True)
        return tuple(cell.output(state) for state in new), new, kept

    def run(
        params: Params, xs: jax.Array, states: State, length: jax.Array, reverse: bool
    ) -> tuple[Scores, State]:
        assert cell.run is not None
        found = [
            cell.run(params[part], xs, state, length, reverse)
            for part, state in zip(_PARTS, states, strict=True)
        ]
        scores, last = zip(*found, strict=True)
        return scores, last

    return Base(
        init,
        project,
        step,
        initial_state=lambda params: tuple(cell.initial_state(params[part]) for part in _PARTS),
        run=None if cell.run is None else run,
        bounds=dict.fromkeys(_PARTS, cell.bounds) if cell.bounds else {},
        splits=cell.split_step is not None,
        rests=cell.at_rest is not None,
        whole=cell.whole,
    )


def of_one_cell(cell: Cell) -> Base:
    """The output of one cell, split in three."""

    def step(params: Params, xi: Any, h: Any, state: Any) -> tuple[Scores, State, State]:
        new, kept = _turned(cell, params, xi, state)
        return pieces(cell.output(new), 3), new, kept

    def run(
        params: Params, xs: jax.Array, state: State, length: jax.Array, reverse: bool
    ) -> tuple[Scores, State]:
        assert cell.run is not None
        outputs, last = cell.run(params, xs, state, length, reverse)
        return pieces(outputs, 3), last

    return Base(
        cell.init,
        cell.project,
        step,
        cell.initial_state,
        run=None if cell.run is None else run,
        bounds=cell.bounds or {},
        splits=cell.split_step is not None,
        rests=cell.at_rest is not None,
        whole=cell.whole,
    )


def of_two_ways(cell: Cell) -> Base:
    """The outputs of two cells, one along time and one against it, each split in three.

    The first halves of the scores are of the first cell. Steps cannot be taken one by one.

    Parameters: `ahead` and `back`.
    """

    def init(key: jax.Array, input_size: int) -> Params:
        keys = jax.random.split(key)
        return {
            way: cell.init(k, input_size) for way, k in zip(("ahead", "back"), keys, strict=True)
        }

    def step(*_: Any) -> Any:
        raise ValueError("a base that reads both ways needs the whole sequence: use unroll")

    def run(
        params: Params, xs: jax.Array, state: State, length: jax.Array, reverse: bool
    ) -> tuple[Scores, State]:
        halves = [
            pieces(_read(cell, params[way], xs, length, against), 3)
            for way, against in (("ahead", reverse), ("back", not reverse))
        ]
        return tuple(jnp.concatenate(pair, axis=-1) for pair in zip(*halves, strict=True)), ()

    bounds = dict.fromkeys(("ahead", "back"), cell.bounds) if cell.bounds else {}
    return Base(
        init,
        lambda params, x: (),
        step,
        lambda params: (),
        run,
        bounds,
        splits=False,
        rests=False,
        whole=True,
    )


def _read(cell: Cell, params: Params, xs: jax.Array, length: jax.Array, reverse: bool) -> jax.Array:
    """The outputs of a cell over a sequence, from its own initial state."""
    start = start_state(cell, params, xs, None)
    return run_cell(cell, params, xs, start, length, reverse)[0]


def _turned(cell: Cell, params: Params, xi: Any, state: Any) -> tuple[State, State]:
    """A step of a cell and its retention; from zero where there is no state."""
    if state is None:
        assert cell.at_rest is not None
        return cell.at_rest(params, xi)
    if cell.split_step is None:
        return cell.step(params, xi, state), None
    return cell.split_step(params, xi, state)


def _spread(bias: Bias, d: int) -> np.ndarray:
    """A number for all channels, or numbers from one to the other."""
    if isinstance(bias, int | float):
        return np.full(d, float(bias))
    if len(bias) != 2:
        raise ValueError(f"a bias must be a number or a pair of numbers, got {bias!r}")
    return np.linspace(bias[0], bias[1], d)
