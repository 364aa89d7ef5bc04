"""`parallel`: a causal cell run over a sequence, all steps at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree

import solvers
from implicit_rnn.cells.base import Cell, Params, State
from implicit_rnn.cells.recurrence import last_of
from implicit_rnn.cells.scan import start_state
from implicit_rnn.sequence.fit import explains_misfits
from implicit_rnn.sequence.unroll import checked
from solvers import Info, linear
from solvers.adjoint import Adjoint
from solvers.space import epsilon
from solvers.split import from_before, from_last, recurrence_solve

Jacobian = Literal["auto", "full", "diagonal"]

# Numbers in a state up to which blocks are worth their cubic cost.
_SMALL = 32


class Run(NamedTuple):
    """What the states of a sequence follow from."""

    params: Params
    xi: Any
    start: State
    length: jax.Array


@explains_misfits
def parallel(
    cell: Cell,
    params: Params,
    xs: jax.Array,
    length: int | jax.Array | None = None,
    state: State | None = None,
    reverse: bool = False,
    *,
    jacobian: Jacobian = "auto",
    damping: float = 1.0,
    adjoint: str | Adjoint = "auto",
    rtol: float | jax.Array | None = None,
    atol: float | jax.Array | None = None,
    max_steps: int | None = None,
    probe: Info | None = None,
    mesh_axis: str | None = None,
) -> tuple[jax.Array, State, Info]:
    """The values of `unroll`, found by Newton's method over the whole sequence (DEER).

    All steps `s_t = step(xi_t, s_{t-1})` are linearised around a guess of all states, and the
    linear recurrence is solved in O(log time) depth (`solvers.recurrence`). Few sweeps do where
    the network forgets; they are many where it is chaotic, and `unroll` is then quicker. After k
    sweeps the first k steps are exact, whatever the Jacobians: `time` sweeps suffice, unless
    the solve gives up before that (`Status.STALLED`: 60 sweeps have not lowered the residual).

    The tolerance is one on `s_t - step(xi_t, s_{t-1})`. A network that remembers adds such errors
    up, so by default it is close to rounding: the 5/6 power of the rounding unit.

    Args:
      cell: a cell with stencil (-1,).
      params: its parameters.
      xs: inputs `[time, input_size]`.
      length: how many steps count; outputs at or past it are zero, and nothing there matters.
      state: where to start, by default the cell's own.
      reverse: from the end (that is, from `length`) to the beginning.
      jacobian: `"full"` (Newton; for n numbers in a state, n x n blocks), `"diagonal"`
        (quasi-Newton, O(n): the cell's `split_step` has the diagonal or its main part for free;
        for a cell without, it is taken from the blocks), or `"auto"`: full up to 32 numbers.
      damping: share of the Jacobians that a sweep goes by, at most: 1 is Newton's method, 0 Picard
        iteration. It falls by itself while the residual rises.
      adjoint: `"auto"` (the same recurrence against time: exact at once with full Jacobians;
        with diagonal ones swept, then BiCGSTAB), or any of `solvers.adjoint`.
      rtol, atol, probe: as for `solvers.fixed_point`, but for the default of `rtol`.
      max_steps: by default `time`.
      mesh_axis: inside `shard_map`, an axis over which time is spread (`parallel_sharded`).

    Returns:
      Outputs `[time, hidden_size]`, the last state, and the `Info` of the solve.
    """
    _check(cell, jacobian, reverse, mesh_axis)
    xs, length = checked(xs, length)
    if reverse:
        xs = _turned(xs, length)
    start = start_state(cell, params, xs, state)
    run = Run(params, cell.project(params, xs), start, length)
    flat, unravel = ravel_pytree(start)
    if jacobian == "auto":
        jacobian = "full" if flat.size <= _SMALL else "diagonal"
    sweep = _sweep(cell, unravel, jacobian, mesh_axis)
    time = xs.shape[0] * (1 if mesh_axis is None else lax.axis_size(mesh_axis))
    states, info = solvers.fixed_point(
        lambda run, states: _following(cell, unravel, run, states, mesh_axis)[0],
        run,
        jnp.zeros((xs.shape[0], flat.size), flat.dtype),
        method=solvers.recurrence(sweep, damping),
        adjoint=_adjoint(sweep, mesh_axis) if adjoint == "auto" else adjoint,
        rtol=epsilon(flat) ** (5 / 6) if rtol is None else rtol,
        atol=atol,
        max_steps=time if max_steps is None else max_steps,
        probe=probe,
        mesh_axis=mesh_axis,
    )
    inside = jnp.arange(xs.shape[0])[:, None] < length
    found = jax.vmap(unravel)(states)
    ys, last = jnp.where(inside, cell.output(found), 0), last_of(found, start, length, False)
    if mesh_axis is not None:
        last = from_last(last, length, mesh_axis)
    return _turned(ys, length) if reverse else ys, last, info


def _check(cell: Cell, jacobian: str, reverse: bool, mesh_axis: str | None) -> None:
    if cell.stencil != (-1,):
        raise ValueError(f"parallel takes a causal cell; {cell.name} looks ahead: use implicit")
    if jacobian not in ("auto", "full", "diagonal"):
        raise ValueError(f'jacobian must be "auto", "full" or "diagonal", got {jacobian!r}')
    if reverse and mesh_axis is not None:
        raise ValueError("over a mesh axis a sequence runs forwards: turn xs round")


def _turned(rows: jax.Array, length: jax.Array) -> jax.Array:
    """Rows `[time, ...]` with those before the length in reverse order."""
    time = jnp.arange(rows.shape[0])
    return rows[jnp.where(time < length, length - 1 - time, time)]


def _following(
    cell: Cell, unravel: Callable, run: Run, states: jax.Array, mesh_axis: str | None
) -> tuple[jax.Array, jax.Array]:
    """`step(xi_t, s_{t-1})` for all t, zero past the length; and the states `s_{t-1}`."""
    first = ravel_pytree(run.start)[0][None]
    if mesh_axis is not None:
        first = from_before(states, 1, first, mesh_axis)
    before = jnp.concatenate([first, states])[:-1]

    def one(xi: Any, state: jax.Array) -> jax.Array:
        return ravel_pytree(cell.step(run.params, xi, unravel(state)))[0]

    return _inside(run, jax.vmap(one)(run.xi, before)), before


def _sweep(cell: Cell, unravel: Callable, jacobian: str, mesh_axis: str | None) -> Callable:
    """All steps at once, and how each depends on the state before it."""

    def kept(params: Params, xi: Any, state: jax.Array) -> jax.Array:
        assert cell.split_step is not None
        return ravel_pytree(cell.split_step(params, xi, unravel(state))[1])[0]

    def block(params: Params, xi: Any, state: jax.Array) -> jax.Array:
        return jax.jacfwd(lambda state: ravel_pytree(cell.step(params, xi, unravel(state)))[0])(
            state
        )

    def diagonal(params: Params, xi: Any, state: jax.Array) -> jax.Array:
        return jnp.diagonal(block(params, xi, state))

    coupling = kept if cell.split_step is not None else diagonal
    if jacobian == "full":
        coupling = block

    def sweep(run: Run, states: jax.Array) -> tuple[jax.Array, jax.Array]:
        new, before = _following(cell, unravel, run, states, mesh_axis)
        found = jax.vmap(partial(coupling, run.params))(run.xi, before)
        return new, _inside(run, found)

    return sweep


def _adjoint(sweep: Callable, mesh_axis: str | None) -> Adjoint:
    """The backward solve by the recurrence against time, then BiCGSTAB where that is too slow."""

    def inverse(run: Run, states: jax.Array) -> Callable[[jax.Array], jax.Array]:
        return partial(recurrence_solve, sweep(run, states)[1], mesh_axis=mesh_axis)

    solver = linear.cascade(linear.richardson(max_steps=20, accelerated=True), linear.bicgstab())
    return solvers.adjoint.implicit(solver, precond=inverse)


def _inside(run: Run, leaf: jax.Array) -> jax.Array:
    """A leaf `[time, ...]`, zero past the length."""
    time = jnp.arange(leaf.shape[0]).reshape(-1, *[1] * (leaf.ndim - 1))
    return jnp.where(time < run.length, leaf, 0)
