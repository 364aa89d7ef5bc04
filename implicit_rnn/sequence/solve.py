"""`implicit`: all states of a sequence, or of a batch of them, as the solution of one equation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp

import solvers
from implicit_rnn.cells.base import Cell, Params, State
from implicit_rnn.sequence.equation import (
    Equation,
    batch_equation,
    equation_bands,
    equation_map,
    equation_of,
    equation_sweep,
    extended,
    mask,
    start_states,
)
from implicit_rnn.sequence.fit import explains_misfits
from solvers import Info, linear
from solvers.adjoint import Adjoint
from solvers.iterate import Method
from solvers.mesh import dealt_like

_CHEAP = 30  # sweeps before Newton's method takes over
_MOST_NEWTON = 50  # Newton steps for each; sweeps have brought it near, or nothing will


@explains_misfits
def implicit(
    cell: Cell,
    params: Params,
    xs: jax.Array,
    length: int | jax.Array | None = None,
    start: str | State | Sequence | None = None,
    method: str | Method | solvers.Cascade = "auto",
    adjoint: str | Adjoint = "auto",
    *,
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
    equation = equation_of(cell, params, xs, length, initial_state, final_state)
    f, settings = equation_map(cell), _settings(cell, method, adjoint)
    settings |= {"rtol": rtol, "atol": atol, "max_steps": max_steps, "probe": probe}
    if isinstance(start, list | tuple) and not hasattr(start, "_fields"):
        keys = [None] * len(start) if key is None else list(jax.random.split(key, len(start)))
        starts = [start_states(cell, equation, s, k) for s, k in zip(start, keys, strict=True)]
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *starts)
        return solvers.race(f, equation, stacked, **settings)
    return solvers.fixed_point(f, equation, start_states(cell, equation, start, key), **settings)


@explains_misfits
def implicit_batch(
    cell: Cell,
    params: Params,
    xs: jax.Array,
    *,
    length: jax.Array | None = None,
    start: str | State | None = None,
    method: str | Method | solvers.Cascade = "auto",
    adjoint: str | Adjoint | solvers.Sweeps = "auto",
    rtol: float | jax.Array | None = None,
    atol: float | jax.Array | None = None,
    max_steps: int = 200,
    probe: Info | None = None,
    key: jax.Array | None = None,
    accelerated: bool = True,
    free_sweeps: bool = False,
    levels: int = 1,
) -> tuple[State, Info]:
    """`implicit` for a batch: what a training loop calls.

    By default the whole batch is swept together in the layout in which that is fastest
    (`solvers.lockstep`). An example whose inputs are not finite is solved as if they were zero and
    reported as `NONFINITE`; it cannot spoil the gradients of the others.

    Args:
      xs: inputs `[batch, time, input_size]`.
      length: `[batch]`.
      start: None, `"zeros"`, `"random"` (needs `key`), `"forward"`, `"bidirectional"`, or states,
        with a batch axis; where they are NaN, as if None were given.
      method: `"auto"` (30 sweeps, then Newton for the examples that need it) or `"banded"` (sweeps
        alone); any other method of `implicit` with `levels` > 1.
      adjoint: `"auto"` (20 sweeps, then BiCGSTAB for the examples that need it) or `Sweeps` (sweeps
        alone, to a tolerance or truncated); any other adjoint with `levels` > 1.
      probe: `solvers.adjoint_probe((batch,))`.
      key: for a random start.
      accelerated: sweeps with secant steps, which take out a single slow direction; trained cells
        have one now and then, and it sets the number of steps of its batch.
      free_sweeps: return two sweeps more than met the tolerance: the sweep whose evaluation told
        that it was met, and that of the evaluation through which gradients pass. What is reported
        is the residual before the last one. For training, with a loose tolerance.
      levels: more than 1: the size of the batch is halved, up to so many sizes, as examples finish
        (`solvers.compacted`). Worth it where a few examples need many times the steps of the rest.
      cell, params, rtol, atol, max_steps: as for `implicit`.

    Returns:
      States, each leaf `[batch, time, hidden_size]`, and an `Info` of arrays `[batch]`.
    """
    if xs.ndim != 3:
        raise ValueError(f"xs must be a batch [batch, time, features], got shape {xs.shape}")
    length = jnp.full(xs.shape[0], xs.shape[1]) if length is None else jnp.asarray(length)
    if length.shape != xs.shape[:1]:
        raise ValueError(f"length must have shape {xs.shape[:1]}, got {length.shape}")
    length = dealt_like(length, xs, 1)
    tolerances = {"rtol": rtol, "atol": atol, "max_steps": max_steps, "probe": probe}
    inside = jnp.arange(xs.shape[1])[:, None] < length[:, None, None]
    xs = jnp.where(inside, xs, 0)
    finite = jnp.all(jnp.isfinite(xs), axis=(1, 2))
    xs = jnp.where(finite[:, None, None], xs, 0)
    if levels > 1 or cell.bands is None:
        states, info = _implicit_compacted(
            cell, params, xs, length, start, method, adjoint, levels, tolerances, key
        )
    else:
        how = {"accelerated": accelerated, "free_sweeps": free_sweeps, **tolerances}
        states, info = _implicit_together(
            cell, params, xs, length, start, method, adjoint, key, how
        )
    states = jax.tree.map(lambda leaf: jnp.where(finite[:, None, None], leaf, 0), states)
    bad = jnp.int32(solvers.Status.NONFINITE)
    return states, info._replace(status=jnp.where(finite, info.status, bad))


def _implicit_together(
    cell: Cell,
    params: Params,
    xs: jax.Array,
    length: jax.Array,
    start: str | State | None,
    method: Any,
    adjoint: Any,
    key: jax.Array | None,
    how: dict[str, Any],
) -> tuple[State, Info]:
    """The whole batch swept together, time first."""
    sweeps, newton, backward = _lockstep_settings(method, adjoint, how["max_steps"])
    equation = batch_equation(cell, params, jnp.swapaxes(xs, 0, 1), length)
    if start is not None and not isinstance(start, str):
        start = jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), start)
    states, info = solvers.lockstep(
        equation_sweep(cell),
        equation,
        start_states(cell, equation, start, key),
        in_axes=Equation(None, 1, None, None, 0),  # type: ignore[arg-type]
        backward=backward,
        rescue=newton,
        **how | {"max_steps": sweeps},
    )
    return jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), states), info


def _lockstep_settings(
    method: Any, adjoint: Any, max_steps: int
) -> tuple[int, int, solvers.Sweeps]:
    """Sweeps forwards, Newton steps for what is left, and the settings of the backward solve."""
    if method not in ("auto", "banded"):
        raise ValueError(
            f'a batch in lockstep is solved by "auto" or "banded", got {method!r}; '
            "use jax.vmap(implicit), or levels > 1"
        )
    if adjoint == "auto":
        backward = solvers.Sweeps(max_steps=20, rescue=True)
    elif isinstance(adjoint, solvers.Sweeps):
        backward = adjoint
    else:
        raise ValueError(
            f'a batch in lockstep takes adjoint="auto" or solvers.Sweeps(...), got {adjoint!r}; '
            "use jax.vmap(implicit), or levels > 1"
        )
    sweeps = max_steps if method == "banded" else min(_CHEAP, max_steps)
    return sweeps, min(max_steps - sweeps, _MOST_NEWTON), backward


def _implicit_compacted(
    cell: Cell,
    params: Params,
    xs: jax.Array,
    length: jax.Array,
    start: str | State | None,
    method: str | Method | solvers.Cascade,
    adjoint: str | Adjoint | solvers.Sweeps,
    levels: int,
    tolerances: dict,
    key: jax.Array | None,
) -> tuple[State, Info]:
    axes: Any = Equation(None, 0, None, None, 0)  # type: ignore[arg-type]
    equation = jax.vmap(lambda xs, length: equation_of(cell, params, xs, length), out_axes=axes)(
        xs, length
    )
    if start is None or isinstance(start, str):
        keys = None if key is None else jax.random.split(key, xs.shape[0])
        states = jax.vmap(lambda e, k: start_states(cell, e, start, k), (axes, 0))(equation, keys)
    else:
        states = jax.vmap(lambda e, s: start_states(cell, e, s, None), (axes, 0))(equation, start)
    if adjoint == "auto":
        adjoint = banded_adjoint(cell, cascade=False)
    if isinstance(adjoint, solvers.Sweeps):
        adjoint = banded_adjoint(
            cell,
            rtol=adjoint.rtol,
            steps=adjoint.steps,
            cascade=False,
            on_failure=adjoint.on_failure,
        )
    return solvers.compacted(
        equation_map(cell),
        equation,
        states,
        in_axes=axes,
        levels=levels,
        **tolerances,
        **_settings(cell, method, adjoint),
    )


def switch(
    cell: Cell,
    params: Params,
    xs: jax.Array,
    states: State,
    *,
    length: int | jax.Array | None = None,
    initial_state: State | None = None,
    final_state: State | None = None,
) -> jax.Array:
    """How much each neighbour counts: `[time, len(stencil), hidden_size]`, shares of one.

    Args:
      states: of the sequence, as `implicit` found them.
      cell, params, xs, length, initial_state, final_state: as for `implicit`.
    """
    if cell.switch is None:
        raise ValueError(f"{cell.name} has no switch")
    equation = equation_of(cell, params, xs, length, initial_state, final_state)
    values = cell.switch(params, equation.xi, extended(cell, equation, states))
    return jnp.where(mask(equation, values), values, 0)


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
    sweeps = linear.richardson(rtol=rtol, max_steps=20 if cascade else 200, accelerated=True)
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
