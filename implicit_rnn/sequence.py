"""Run a cell over time: `unroll` by a scan, `implicit` by solving for the whole sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

import solvers
from implicit_rnn.cells.base import Cell, Params, State, neighbour
from solvers import Bands, Info, linear
from solvers.adjoint import Adjoint
from solvers.iterate import Method


class Equation(NamedTuple):
    """What the states of one sequence are defined by: the `theta` of its fixed-point problem."""

    params: Params
    xi: Any
    before: State  # boundary states
    after: State
    length: jax.Array


def unroll(
    cell: Cell,
    params: Params,
    xs: jax.Array,
    *,
    length: int | jax.Array | None = None,
    state: State | None = None,
    reverse: bool = False,
) -> tuple[jax.Array, State]:
    """Runs a causal cell over a sequence.

    Args:
      cell: a cell with stencil (-1,).
      params: its parameters.
      xs: inputs `[time, input_size]`.
      length: how many steps count; outputs at or past it are zero, and nothing there matters.
      state: where to start, by default the cell's own.
      reverse: from the end (that is, from `length`) to the beginning.

    Returns:
      Outputs `[time, hidden_size]` and the last state.
    """
    if cell.stencil != (-1,):
        raise ValueError(f"unroll takes a causal cell; {cell.name} looks ahead: use implicit")
    xs, length = _inputs(xs, length)
    start = cell.initial_state(params) if state is None else state
    states, last = _scan(cell.step, params, cell.project(params, xs), start, length, reverse)
    inside = jnp.arange(xs.shape[0])[:, None] < length
    return jnp.where(inside, cell.output(states), 0), last


def implicit(
    cell: Cell,
    params: Params,
    xs: jax.Array,
    *,
    length: int | jax.Array | None = None,
    start: str | State | Sequence | None = None,
    method: str | Method | solvers.Cascade = "auto",
    adjoint: str | Adjoint = "auto",
    rtol: float | jax.Array | None = None,
    atol: float | jax.Array | None = None,
    max_steps: int = 200,
    initial_state: State | None = None,
    final_state: State | None = None,
    probe: Info | None = None,
    key: jax.Array | None = None,
) -> tuple[State, Info]:
    """Solves `h_t = step(xi_t, h_{t-1}, h_{t+1})` for all `t` at once.

    Args:
      cell: a cell that looks ahead: `igru`, `ilstm`, `irnn`, `implicit(any causal cell)`.
      params: its parameters.
      xs: inputs `[time, input_size]`.
      length: how many steps count; states at or past it are zero, and nothing there matters.
      start: None (one splitting sweep from zero where the cell has it for free, `Cell.at_rest`;
        else zeros), `"zeros"`, `"random"` (needs `key`), `"forward"` (the causal pass),
        `"bidirectional"` (mean of the causal passes in both directions), states (a warm start),
        or a list of several, of which the first to converge wins (`solvers.race`).
      method: `"auto"` (splitting by the cell's bands, then Newton for what is left), `"banded"`,
        `"newton"` (preconditioned by the bands), `"newton_bicgstab"` (the 2017 paper's),
        `"polynomial"` (its approximate inverse I + J), `"picard"`, `"anderson"`, `"broyden"`, or
        a method.
      adjoint: `"auto"` (splitting with the transposed bands, then BiCGSTAB preconditioned by them),
        any name in `solvers.adjoint.ADJOINTS` that needs no setting, or an adjoint.
      rtol, atol, max_steps, probe: as for `solvers.fixed_point`.
      initial_state, final_state: boundary states, by default the cell's own.
      key: for a random start.

    Returns:
      States, each leaf `[time, hidden_size]`, and the `Info` of the solve.
    """
    equation = _equation(cell, params, xs, length, initial_state, final_state)
    f, settings = equation_map(cell), _settings(cell, method, adjoint)
    settings |= {"rtol": rtol, "atol": atol, "max_steps": max_steps, "probe": probe}
    if isinstance(start, list | tuple) and not hasattr(start, "_fields"):
        keys = [None] * len(start) if key is None else list(jax.random.split(key, len(start)))
        starts = [_start(cell, equation, s, k) for s, k in zip(start, keys, strict=True)]
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *starts)
        return solvers.race(f, equation, stacked, **settings)
    return solvers.fixed_point(f, equation, _start(cell, equation, start, key), **settings)


def implicit_batch(
    cell: Cell,
    params: Params,
    xs: jax.Array,
    *,
    length: jax.Array | None = None,
    start: str | State | None = None,
    method: str | Method | solvers.Cascade = "auto",
    adjoint: str | Adjoint = "auto",
    rtol: float | jax.Array | None = None,
    atol: float | jax.Array | None = None,
    max_steps: int = 200,
    probe: Info | None = None,
    levels: int = 3,
) -> tuple[State, Info]:
    """`implicit` for a batch whose size shrinks as examples finish (`solvers.compacted`).

    Args:
      xs: inputs `[batch, time, input_size]`.
      length: `[batch]`.
      start: None, `"zeros"`, `"forward"`, `"bidirectional"`, or states, with a batch axis.
      probe: `solvers.adjoint_probe((batch,))`.
      levels: how many batch sizes, each half of the one before; each is compiled.
      cell, params, method, adjoint, rtol, atol, max_steps: as for `implicit`.

    Returns:
      States, each leaf `[batch, time, hidden_size]`, and an `Info` of arrays `[batch]`.
    """
    if length is None:
        length = jnp.full(xs.shape[0], xs.shape[1])
    axes: Any = Equation(None, 0, None, None, 0)  # type: ignore[arg-type]
    equation = jax.vmap(
        lambda xs, length: _equation(cell, params, xs, length, None, None), out_axes=axes
    )(xs, length)
    if start is None or isinstance(start, str):
        states = jax.vmap(lambda e: _start(cell, e, start, None), (axes,))(equation)
    else:
        states = jax.vmap(lambda e, s: _start(cell, e, s, None), (axes, 0))(equation, start)
    if adjoint == "auto":
        adjoint = banded_adjoint(cell, cascade=False)
    return solvers.compacted(
        equation_map(cell), equation, states, in_axes=axes, rtol=rtol, atol=atol,
        max_steps=max_steps, probe=probe, levels=levels, **_settings(cell, method, adjoint),
    )  # fmt: skip


def switch(
    cell: Cell,
    params: Params,
    xs: jax.Array,
    states: State,
    *,
    length: int | jax.Array | None = None,
) -> jax.Array:
    """How much each neighbour counts: `[time, len(stencil), hidden_size]`, shares of one."""
    if cell.switch is None:
        raise ValueError(f"{cell.name} has no switch")
    equation = _equation(cell, params, xs, length, None, None)
    values = cell.switch(params, equation.xi, _extended(cell, equation, states))
    return jnp.where(_mask(equation, values), values, 0)


def _equation(
    cell: Cell,
    params: Params,
    xs: jax.Array,
    length: int | jax.Array | None,
    before: State | None,
    after: State | None,
) -> Equation:
    if cell.final_state is None:
        raise ValueError(f"{cell.name} does not look ahead: use unroll, or cells.implicit(cell)")
    xs, length = _inputs(xs, length)
    return Equation(
        params,
        cell.project(params, xs),
        cell.initial_state(params) if before is None else before,
        cell.final_state(params) if after is None else after,
        length,
    )


def _inputs(xs: jax.Array, length: int | jax.Array | None) -> tuple[jax.Array, jax.Array]:
    """Inputs, zero past their length: garbage there reaches neither value nor gradient."""
    if xs.ndim != 2:
        raise ValueError(
            f"xs must be one sequence [time, features], got shape {xs.shape}; "
            "use jax.vmap for a batch"
        )
    length = jnp.asarray(xs.shape[0] if length is None else length)
    if length.ndim:
        raise ValueError(f"length must be a scalar, got shape {length.shape}; use jax.vmap")
    return jnp.where(jnp.arange(xs.shape[0])[:, None] < length, xs, 0), length


def _mask(equation: Equation, leaf: jax.Array) -> jax.Array:
    time = jnp.arange(leaf.shape[0]) < equation.length
    return time.reshape(-1, *[1] * (leaf.ndim - 1))


def _extended(cell: Cell, equation: Equation, states: State) -> State:
    """States with the boundary states around them, and in place of what is past the length."""
    back, ahead = cell.reach

    def extend(leaf: jax.Array, before: jax.Array, after: jax.Array) -> jax.Array:
        body = jnp.where(_mask(equation, leaf), leaf, after)
        edges = [jnp.broadcast_to(e, (n, *e.shape)) for e, n in ((before, back), (after, ahead))]
        return jnp.concatenate([edges[0], body, edges[1]])

    return jax.tree.map(extend, states, equation.before, equation.after)


def equation_sweep(cell: Cell) -> Callable[[Equation, State], tuple[State, Bands | None]]:
    """`F(equation, H)` together with the cell's bands there (None for a cell without)."""

    def sweep(equation: Equation, states: State) -> tuple[State, Bands | None]:
        around = _extended(cell, equation, states)
        bands = None
        if cell.sweep is not None:
            new, bands = cell.sweep(equation.params, equation.xi, around)
        else:
            neighbours = [neighbour(around, offset, cell.reach) for offset in cell.stencil]
            new = jax.vmap(lambda xi, *n: cell.step(equation.params, xi, *n))(
                equation.xi, *neighbours
            )
            if cell.bands is not None:
                bands = cell.bands(equation.params, equation.xi, around)
        return jax.tree.map(lambda leaf: jnp.where(_mask(equation, leaf), leaf, 0), (new, bands))

    return sweep


def equation_map(cell: Cell) -> Callable[[Equation, State], State]:
    """`F` of the fixed-point problem `H = F(equation, H)` that `implicit` solves."""
    sweep = equation_sweep(cell)
    return lambda equation, states: sweep(equation, states)[0]


def equation_bands(cell: Cell) -> Callable[[Equation, State], Bands]:
    """The bands of `F`: the cell's own, or estimated by probing where it has none."""
    if cell.bands is None:
        return probed_bands(equation_map(cell))
    sweep = equation_sweep(cell)

    def bands(equation: Equation, states: State) -> Bands:
        found = sweep(equation, states)[1]
        assert found is not None
        return found

    return bands


def probed_bands(
    f: Callable[[Any, State], State], samples: int = 4, limit: float = 0.9
) -> Callable[[Any, State], Bands]:
    """Bands of any map on states `[time, ...]` from `3 samples` products with its Jacobian.

    A probe is a random sign at every third time, so that of the neighbours of a time only one is
    probed; the product with the probe's own sign estimates the entry on the band, and what couples
    different channels averages out. The bands of a row are scaled down to sum to at most `limit`,
    so that `I - B` can always be inverted.
    """

    def bands(theta: Any, states: State) -> Bands:
        _, push = jax.linearize(lambda states: f(theta, states), states)
        leaves, structure = jax.tree.flatten(states)
        time = leaves[0].shape[0]
        row = jnp.arange(time)

        def probe(key: jax.Array) -> tuple[list, list, list]:
            keys = jax.random.split(key, len(leaves))
            signs = [
                jax.random.rademacher(k, leaf.shape, leaf.dtype)
                for k, leaf in zip(keys, leaves, strict=True)
            ]
            found: tuple[list, list, list] = ([], [], [])
            images = []
            for colour in range(3):
                here = (row % 3 == colour).reshape(-1, *[1] * (leaves[0].ndim - 1))
                chosen = [jnp.where(here, sign, 0) for sign in signs]
                images.append(jax.tree.leaves(push(jax.tree.unflatten(structure, chosen))))
            for i, sign in enumerate(signs):
                stacked = jnp.stack([image[i] for image in images])
                for offset, band in zip((-1, 0, 1), found, strict=True):
                    other = jnp.clip(row + offset, 0, time - 1)
                    value = stacked[(row + offset) % 3, row] * sign[other]
                    inside = (row + offset >= 0) & (row + offset < time)
                    inside = inside.reshape(-1, *[1] * (value.ndim - 1))
                    band.append(jnp.where(inside, value, 0))
            return found

        keys = jax.random.split(jax.random.key(0), samples)
        lower, own, upper = jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), jax.vmap(probe)(keys))
        for i in range(len(leaves)):
            total = jnp.abs(lower[i]) + jnp.abs(own[i]) + jnp.abs(upper[i])
            scale = limit / jnp.maximum(total, limit)
            lower[i], own[i], upper[i] = scale * lower[i], scale * own[i], scale * upper[i]
        trees = [jax.tree.unflatten(structure, band) for band in (lower, upper, own)]
        return Bands(*trees)

    return bands


def banded_adjoint(
    cell: Cell,
    *,
    rtol: float | None = None,
    steps: int | None = None,
    cascade: bool = True,
    on_failure: Literal["best", "zero", "nan"] = "best",
) -> Adjoint:
    """The backward solve by the transposed bands of the cell.

    Args:
      cell: a cell that looks ahead.
      rtol: tolerance of the solve.
      steps: truncate it to so many sweeps instead (banded Neumann series).
      cascade: after 20 sweeps, go on by BiCGSTAB, preconditioned by the bands, with the examples
        that have not converged.
      on_failure: as for every adjoint.
    """
    inverse = solvers.precondition(equation_bands(cell))
    if steps is not None:
        return solvers.adjoint.rbp(steps, precond=inverse, on_failure=on_failure)
    sweeps = linear.richardson(rtol=rtol, max_steps=20 if cascade else 200)
    solver = linear.cascade(sweeps, linear.bicgstab(rtol=rtol)) if cascade else sweeps
    return solvers.adjoint.implicit(solver, precond=inverse, on_failure=on_failure)


def _method(cell: Cell, name: str) -> Method | solvers.Cascade | str:
    bands: Any = equation_bands(cell)
    sweep: Any = None if cell.bands is None else equation_sweep(cell)
    known: dict[str, Callable[[], Method | solvers.Cascade]] = {
        "auto": lambda: solvers.auto(bands, sweep=sweep),
        "banded": lambda: solvers.banded(sweep=sweep) if sweep else solvers.banded(bands),
        "newton": lambda: solvers.newton(precond=solvers.precondition(bands)),
        "newton_bicgstab": lambda: solvers.newton(linear.bicgstab(max_steps=100)),
        "polynomial": lambda: solvers.newton(linear.neumann(1), line_search=False),
    }
    if name in known:
        return known[name]()
    if name not in solvers.METHODS:
        names = sorted({*known, *solvers.METHODS})
        raise ValueError(f"unknown method {name!r}; choose from {names}")
    return name


def _settings(
    cell: Cell, method: str | Method | solvers.Cascade, adjoint: str | Adjoint
) -> dict[str, Any]:
    return {
        "method": _method(cell, method) if isinstance(method, str) else method,
        "adjoint": banded_adjoint(cell) if adjoint == "auto" else adjoint,
    }


def _start(
    cell: Cell, equation: Equation, start: str | State | None, key: jax.Array | None
) -> State:
    """States to start from, zero past the length."""
    time = jax.tree.leaves(equation.xi)[0].shape[0]
    shape = jax.tree.map(lambda leaf: jnp.zeros((time, *leaf.shape), leaf.dtype), equation.before)
    if start is None:
        if cell.at_rest is None:
            return shape
        states = _first_sweep(cell, equation)
    elif not isinstance(start, str):
        states = start
    elif start == "zeros":
        return shape
    elif start == "random":
        if key is None:
            raise ValueError('start="random" draws random numbers: pass key=jax.random.key(...)')
        leaves, structure = jax.tree.flatten(shape)
        keys = jax.random.split(key, len(leaves))
        draws = [
            jax.random.uniform(k, leaf.shape, leaf.dtype, -1, 1)
            for k, leaf in zip(keys, leaves, strict=True)
        ]
        states = jax.tree.unflatten(structure, draws)
    elif start == "forward":
        states = _causal(cell, equation, reverse=False)
    elif start == "bidirectional":
        passes = [_causal(cell, equation, reverse=reverse) for reverse in (False, True)]
        states = jax.tree.map(lambda a, b: 0.5 * (a + b), *passes)
    else:
        raise ValueError(
            f'start must be "zeros", "random", "forward", "bidirectional" or states, got {start!r}'
        )
    states = jax.tree.map(lambda leaf: jnp.where(_mask(equation, leaf), leaf, 0), states)
    return lax.stop_gradient(states)


def _first_sweep(cell: Cell, equation: Equation) -> State:
    """One splitting sweep from zero, boundary states left aside."""
    assert cell.at_rest is not None
    rest = cell.at_rest(equation.params, equation.xi)
    states, bands = jax.tree.map(lambda leaf: jnp.where(_mask(equation, leaf), leaf, 0), rest)
    return solvers.bands.splitting_inverse(bands)(states)


def _causal(cell: Cell, equation: Equation, reverse: bool) -> State:
    """The pass that does not look ahead, in either direction."""
    if cell.causal_step is None:
        raise ValueError(f'{cell.name} has no causal step: start from "zeros" or given states')
    edge = equation.after if reverse else equation.before
    return _scan(
        cell.causal_step, equation.params, equation.xi, edge, equation.length, reverse
    )[0]  # fmt: skip


def _scan(
    step: Callable[[Params, Any, State], State],
    params: Params,
    xi: Any,
    start: State,
    length: jax.Array,
    reverse: bool,
) -> tuple[State, State]:
    """All states and the last one; steps at or past the length leave the state as it is."""

    def body(state: State, row: tuple) -> tuple[State, State]:
        xi, inside = row
        new = jax.tree.map(lambda a, b: jnp.where(inside, a, b), step(params, xi, state), state)
        return new, new

    inside = jnp.arange(jax.tree.leaves(xi)[0].shape[0]) < length
    last, states = lax.scan(body, start, (xi, inside), reverse=reverse)
    return states, last
