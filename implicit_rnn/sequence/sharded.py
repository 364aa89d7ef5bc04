"""One sequence whose time is spread over devices: longer than one of them can hold.

Every device has a block of consecutive steps. What a sweep sends does not grow with their number:
the states at the ends of a block to its neighbours, two rows of each block to all
(`solvers/split.py`), and sums for norms and inner products.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import solvers
from implicit_rnn.cells.base import Cell, Params, State
from implicit_rnn.sequence.equation import (
    Equation,
    equation_bands,
    equation_map,
    equation_of,
    equation_sweep,
    mask,
)
from implicit_rnn.sequence.parallel import Jacobian, parallel
from solvers import Info, linear
from solvers.adjoint import Adjoint
from solvers.iterate import Method
from solvers.mesh import vary_with
from solvers.split import from_after, from_before, inverse_of


def implicit_sharded(
    cell: Cell,
    params: Params,
    xs: jax.Array,
    length: int | jax.Array | None = None,
    start: str | State | None = None,
    method: str | Method | solvers.Cascade = "auto",
    adjoint: str | Adjoint = "auto",
    *,
    mesh: Mesh | None = None,
    axis: str = "time",
    rtol: float | jax.Array | None = None,
    atol: float | jax.Array | None = None,
    max_steps: int = 200,
    initial_state: State | None = None,
    final_state: State | None = None,
    probe: Info | None = None,
) -> tuple[State, Info]:
    """`implicit`, of a sequence whose steps are spread over an axis of a mesh.

    Values, gradients and numbers of steps are those of one device, to rounding.

    Args:
      mesh: of devices, of any axis types; those along other axes do the same. None inside
        `shard_map`: `xs`, states and a start are then the block of the device, of equal length on
        all, while `length` is that of the whole.
      axis: of the mesh.
      start: None (one splitting sweep from zero, where the cell has it for free), `"zeros"`, or
        states.
      method, adjoint: `"auto"`, `"banded"`, `"newton"` or any other as for `implicit`, but for
        adjoints that go back through the steps of a solve.
      cell, params, xs, length, rtol, atol, max_steps, probe: as for `implicit`.
      initial_state, final_state: boundary states, by default the cell's own.
    """
    given = (start, {"before": initial_state, "after": final_state}, (rtol, atol), probe)
    if isinstance(start, str) or start is None:
        kind, given = start, (None, *given[1:])
        if kind not in (None, "zeros"):
            raise ValueError(f'start must be None, "zeros" or states, got {kind!r}')
    else:
        kind = "given"

    def block(params: Params, xs: jax.Array, states: Any, length: jax.Array, given: tuple) -> tuple:
        edges, (rtol, atol), probe = given
        equation = equation_of(cell, params, xs, _own(length, xs, axis), **edges)
        back, ahead = cell.reach
        if max(back, ahead) > xs.shape[0]:
            raise ValueError(
                f"{cell.name} looks {max(back, ahead)} steps far, beyond a block of "
                f"{xs.shape[0]}: fewer devices, or a longer sequence"
            )
        if kind != "given":
            states = _first(cell, equation, axis, kind)
        method_of, adjoint_of = _how(cell, axis, method, adjoint)
        return solvers.fixed_point(
            equation_map(cell, _extended(axis)), equation, states, method=method_of,
            adjoint=adjoint_of, rtol=rtol, atol=atol, max_steps=max_steps, probe=probe,
            mesh_axis=axis,
        )  # fmt: skip

    return _over_time(block, params, xs, given[0], length, given[1:], mesh, axis)


def parallel_sharded(
    cell: Cell,
    params: Params,
    xs: jax.Array,
    length: int | jax.Array | None = None,
    state: State | None = None,
    *,
    mesh: Mesh | None = None,
    axis: str = "time",
    jacobian: Jacobian = "auto",
    damping: float = 1.0,
    adjoint: str | Adjoint = "auto",
    rtol: float | jax.Array | None = None,
    atol: float | jax.Array | None = None,
    max_steps: int | None = None,
    probe: Info | None = None,
) -> tuple[jax.Array, State, Info]:
    """`parallel`, of a sequence whose steps are spread over an axis of a mesh.

    The linear recurrence of a sweep is scanned on every device by itself; then the devices gather
    one product of Jacobians and one state of each, and know where their blocks start from.

    Args:
      mesh, axis: as for `implicit_sharded`.
      cell, params, xs, length, state, jacobian, damping, adjoint, rtol, atol, max_steps, probe: as
        for `parallel`.
    """

    def block(params: Params, xs: jax.Array, _: None, length: jax.Array, given: tuple) -> tuple:
        state, (rtol, atol), probe = given
        ys, last, info = parallel(
            cell, params, xs, _own(length, xs, axis), state, jacobian=jacobian, damping=damping,
            adjoint=adjoint, rtol=rtol, atol=atol, probe=probe, mesh_axis=axis,
            max_steps=max_steps,
        )  # fmt: skip
        return ys, (last, info)

    given = (state, (rtol, atol), probe)
    ys, (last, info) = _over_time(block, params, xs, None, length, given, mesh, axis)
    return ys, last, info


def _over_time(
    block: Callable,
    params: Params,
    xs: jax.Array,
    states: Any,
    length: int | jax.Array | None,
    given: tuple,
    mesh: Mesh | None,
    axis: str,
) -> tuple[Any, Any]:
    """`block(params, xs, states, length, given)` on every device, each with its own rows.

    What it returns is a tree of rows, and a tree of what all devices agree on.
    """
    if xs.ndim != 2:
        raise ValueError(
            f"xs must be one sequence [time, features], got shape {xs.shape}; "
            "use jax.vmap for a batch"
        )

    def local(params: Params, xs: jax.Array, states: Any, length: jax.Array, given: tuple) -> tuple:
        # Once, here: each use of what is shared would add up its gradient by itself.
        here = lax.axis_index(axis)
        params, edges = jax.tree.map(lambda leaf: vary_with(leaf, here), (params, given[0]))
        return block(params, xs, states, length, (edges, *given[1:]))

    if mesh is None:
        if axis not in jax.sharding.get_abstract_mesh().manual_axes:
            raise ValueError(f"pass mesh=, or call inside shard_map over an axis {axis!r}")
        whole = xs.shape[0] * lax.axis_size(axis)
        return local(params, xs, states, jnp.asarray(whole if length is None else length), given)
    if axis not in mesh.axis_names:
        raise ValueError(f"the mesh has no axis {axis!r}; its axes are {mesh.axis_names}")
    time = xs.shape[0]
    missing = -time % mesh.shape[axis]

    def padded(leaf: jax.Array) -> jax.Array:
        return jnp.pad(leaf, [(0, missing)] + [(0, 0)] * (leaf.ndim - 1)) if missing else leaf

    run = jax.shard_map(
        local, mesh=mesh, in_specs=(P(), P(axis), P(axis), P(), P()), out_specs=(P(axis), P())
    )
    xs, states = jax.tree.map(padded, (xs, states))
    if AxisType.Explicit in mesh.axis_types:
        if missing:
            raise ValueError(
                f"on a mesh with explicit axes {time} steps cannot be divided by "
                f"{mesh.shape[axis]} devices: pad xs, and say how many count (length=)"
            )
        xs, states = jax.sharding.reshard((xs, states), NamedSharding(mesh, P(axis)))
    length = jnp.asarray(time if length is None else length)
    found, info = run(params, xs, states, length, given)
    return jax.tree.map(lambda leaf: leaf[:time] if missing else leaf, found), info


def _own(length: jax.Array, xs: jax.Array, axis: str) -> jax.Array:
    """How many steps of the device's block count."""
    return jnp.clip(length - lax.axis_index(axis) * xs.shape[0], 0, xs.shape[0])


def _extended(axis: str) -> Callable[[Cell, Equation, State], State]:
    """`equation.extended`, with the states of the neighbouring blocks around those of a block."""

    def extended(cell: Cell, equation: Equation, states: State) -> State:
        back, ahead = cell.reach

        def extend(leaf: jax.Array, before: jax.Array, after: jax.Array) -> jax.Array:
            body = jnp.where(mask(equation, leaf), leaf, after)
            parts = [body]
            if back:
                edge = jnp.broadcast_to(before, (back, *leaf.shape[1:]))
                parts.insert(0, from_before(body, back, edge, axis))
            if ahead:
                edge = jnp.broadcast_to(after, (ahead, *leaf.shape[1:]))
                parts.append(from_after(body, ahead, edge, axis))
            return jnp.concatenate(parts)

        return jax.tree.map(extend, states, equation.before, equation.after)

    return extended


def _first(cell: Cell, equation: Equation, axis: str, start: str | None) -> State:
    """The states to start from."""
    if start is None and cell.at_rest is not None:
        rest = cell.at_rest(equation.params, equation.xi)
        states, bands = jax.tree.map(
            lambda leaf: jnp.where(mask(equation, leaf), leaf, 0), lax.stop_gradient(rest)
        )
        return inverse_of(bands, axis)(states)
    rows = jax.tree.leaves(equation.xi)[0].shape[:1]
    return jax.tree.map(lambda leaf: jnp.zeros((*rows, *leaf.shape), leaf.dtype), equation.before)


def _how(
    cell: Cell, axis: str, method: str | Method | solvers.Cascade, adjoint: str | Adjoint
) -> tuple[Any, Any]:
    """Method and adjoint; bands that are split, where the cell has bands."""
    sweep: Any = None
    bands: Any = None
    inverse: Any = None
    if cell.bands is not None:
        sweep = equation_sweep(cell, _extended(axis))
        bands = equation_bands(cell, _extended(axis))
        inverse = solvers.precondition(bands, axis)
    if method == "auto":
        method = solvers.auto(bands, sweep=sweep, mesh_axis=axis)
    elif method == "banded":
        if sweep is None:
            raise ValueError(f'{cell.name} has no bands: method="anderson", or "auto"')
        method = solvers.banded(sweep=sweep)
    elif method == "newton":
        method = solvers.newton(precond=inverse)
    if adjoint == "auto":
        solver: Any = linear.bicgstab()
        if inverse is not None:
            solver = linear.cascade(linear.richardson(max_steps=20, accelerated=True), solver)
        adjoint = solvers.adjoint.implicit(solver, precond=inverse)
    return method, adjoint
