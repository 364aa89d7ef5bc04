"""`equilibrium`: the state at which a causal cell stays if its input does not change."""

from __future__ import annotations

import jax

import solvers
from implicit_rnn.cells.base import Cell, Params, State
from implicit_rnn.cells.scan import start_state
from implicit_rnn.sequence.fit import explains_misfits
from solvers import Info, adjoint, linear
from solvers.adjoint import Adjoint
from solvers.iterate import Method

RULES = ("bptt", "tbptt", "rbp", "cg_rbp", "neumann", "bicgstab", "gmres", "lsqr")


@explains_misfits
def equilibrium(
    cell: Cell,
    params: Params,
    x: jax.Array,
    *,
    state: State | None = None,
    method: str | Method | solvers.Cascade = "picard",
    adjoint: str | Adjoint = "implicit",
    rtol: float | jax.Array | None = None,
    atol: float | jax.Array | None = None,
    max_steps: int = 200,
    probe: Info | None = None,
    trace: int = 0,
) -> tuple[State, Info]:
    """Solves `h = step(params, xi, h)`: a convergent recurrent network with a fixed input.

    Args:
      cell: a cell with stencil (-1,).
      params: its parameters.
      x: the input `[input_size]`, the same at every step.
      state: where to start, by default the cell's own.
      method: `"picard"` runs the network until it settles; any other method of `fixed_point` finds
        the same state in fewer steps. Methods that sweep along time (`"banded"`) have none here.
      adjoint: how gradients pass: `learning_rule`, any adjoint, its name, or `"auto"`, which is
        `"implicit"`.
      rtol, atol, max_steps, probe, trace: as for `solvers.fixed_point`.

    Returns:
      The state, and the `Info` of the solve.
    """
    if not cell.causal:
        raise ValueError(f"equilibrium takes a causal cell; {cell.name} looks ahead: use implicit")
    if x.ndim != 1:
        raise ValueError(f"x must be one input [features], got shape {x.shape}; use jax.vmap")

    def step(theta: tuple, h: State) -> State:
        params, xi = theta
        return cell.step(params, xi, h)

    start = start_state(cell, params, x, state)
    # A cell that sees more than one input at a time takes a sequence of one.
    xi = jax.tree.map(lambda leaf: leaf[0], cell.project(params, x[None]))
    passing = "implicit" if isinstance(adjoint, str) and adjoint == "auto" else adjoint
    return solvers.fixed_point(
        step,
        (params, xi),
        start,
        method=method,
        adjoint=passing,
        rtol=rtol,
        atol=atol,
        max_steps=max_steps,
        probe=probe,
        trace=trace,
    )


def learning_rule(
    name: str, steps: int, *, uniform: bool = False, key: jax.Array | None = None
) -> Adjoint:
    """Recurrent back-propagation by name, cut off after so many steps.

    Args:
      name: `"bptt"` (back through every step of the network, whatever `steps` is), `"tbptt"` (the
        last ones), `"rbp"`, `"cg_rbp"`, `"neumann"` (Algorithms 1 to 3 of the 2018 paper),
        `"bicgstab"`, `"gmres"` or `"lsqr"`.
      steps: of the backward solve; `neumann` adds as many terms to the first.
      uniform: let `rbp` start from draws in [0, 1], as the paper does, and not from zero.
      key: what draws them.
    """
    if name not in RULES:
        raise ValueError(f"unknown rule {name!r}; choose from {', '.join(RULES)}")
    if uniform and name != "rbp":
        raise ValueError(f'only "rbp" starts from draws, not {name!r}')
    if name == "bptt":
        return adjoint.bptt()
    if name in ("tbptt", "neumann", "cg_rbp"):
        return adjoint.ADJOINTS[name](steps)
    if name == "rbp":
        return adjoint.rbp(steps, start="uniform", key=key) if uniform else adjoint.rbp(steps)
    if name == "gmres":
        return adjoint.implicit(linear.gmres(max_steps=steps, restart=steps))
    return adjoint.implicit(getattr(linear, name)(max_steps=steps))
