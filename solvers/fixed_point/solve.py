"""`fixed_point`: solve `x = f(theta, x)` and let gradients pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from solvers import adjoint as adjoints
from solvers import iterate
from solvers.adjoint.closure import shape_of
from solvers.adjoint.solution import solution
from solvers.adjoint.system import Backward
from solvers.fixed_point.base import Cascade, Map, Stage
from solvers.fixed_point.broyden import Broyden
from solvers.fixed_point.forward import Forward, Limits
from solvers.info import Info
from solvers.space import Tree, cast_like, require_real


def fixed_point(
    f: Map,
    theta: Any,
    x0: Tree,
    *,
    method: iterate.Method | Cascade | str = "auto",
    adjoint: adjoints.Adjoint | str = "implicit",
    rtol: float | jax.Array | None = None,
    atol: float | jax.Array | None = None,
    max_steps: int = 200,
    probe: Info | None = None,
    trace: int = 0,
    patience: int | None = 60,
    blowup: float | None = 1e6,
    norm: Callable[[Tree], jax.Array] | None = None,
    record: Sequence[int] = (),
    has_aux: bool = False,
    throw: bool = False,
    mesh_axis: str | None = None,
) -> tuple[Any, Info]:
    """Solves `x = f(theta, x)` from `x0`.

    Args:
      f: the map; `f(theta, x)` has the structure and shapes of `x`. It may close over anything:
        arrays that are being differentiated, an example's data under `vmap`, integers, keys.
      theta: parameters, any pytree; leaves that are no numbers reach `f` as they are.
      x0: where to start: a pytree of real floating-point arrays.
      method: a method, a cascade or the name of one (`solvers.METHODS`).
      adjoint: how gradients pass, or its name (`solvers.adjoint.ADJOINTS`).
      rtol, atol: stop at `||f(x) - x|| <= max(rtol max(||x||, ||f(x)||), atol)`; may be traced.
        By default the 2/3 power of the rounding unit (2e-5 in float32), and the square of the
        rounding unit times the size of the start and its image.
      max_steps: step limit.
      probe: `solvers.adjoint_probe()`, whose gradient reports the backward solve.
      trace: length of the residual trace in the returned `Info`.
      patience: steps without a smaller residual before the solve ends as STALLED; None: never.
      blowup: growth of the residual at which it ends as DIVERGED; None: never.
      norm: `tree -> scalar`, in place of the Euclidean norm.
      record: numbers of steps after which the iterate is wanted, for losses on the way
        (`Info.iterates`, one more leading axis). Each is given after one more evaluation of the
        map, through which its gradient passes; of a solve that ends earlier, the last one.
      has_aux: `f` returns `(x, aux)`; `aux` at the solution is returned beside it.
      throw: raise an error if the solve, or its backward solve, does not converge, also out of
        `jit` and `vmap`. By default the status alone says so.
      mesh_axis: inside `shard_map`, the axis of the mesh over which `x` is spread: norms, products
        and decisions are those of the whole, and `f` may exchange what it needs. Adjoints are those
        that solve (`implicit`, `rbp`, ...).

    Returns:
      The best iterate, in the structure and dtypes of `x0`, or `(iterate, aux)`; and its `Info`.

    >>> import jax.numpy as jnp
    >>> x, info = fixed_point(lambda a, x: jnp.cos(a * x), 1.0, jnp.zeros(()))
    >>> print(f"{x:.4f}", bool(info.converged))
    0.7391 True
    """
    return solve_equation(
        f,
        theta,
        x0,
        method=method,
        adjoint=adjoint,
        tolerances=(rtol, atol),
        probe=probe,
        norm=norm,
        has_aux=has_aux,
        throw=throw,
        max_steps=max_steps,
        patience=patience,
        blowup=blowup,
        trace=trace,
        record=record,
        mesh_axis=mesh_axis,
    )


def solve_equation(
    f: Map,
    theta: Any,
    x0: Tree,
    *,
    method: iterate.Method | Cascade | str,
    adjoint: adjoints.Adjoint | str,
    tolerances: tuple,
    probe: Info | None,
    norm: Callable[[Tree], jax.Array] | None,
    has_aux: bool,
    throw: bool,
    root: bool = False,
    mesh_axis: str | None = None,
    **numbers: Any,
) -> tuple[Any, Info]:
    """`fixed_point`, or `root` where `f(theta, x) = 0` is the equation; `numbers` are `Limits`."""
    x0 = require_real(x0, "x0")
    limits, tolerances = Limits.of(x0, *tolerances, **numbers)
    chosen = adjoints.resolve(adjoint)
    stages = resolve(method)
    if mesh_axis is not None and (chosen.mode != "reverse" or norm is not None):
        raise ValueError("over a mesh_axis: an adjoint such as implicit(), and no norm of your own")
    require_fitting(chosen, stages, limits.max_steps)
    name = "g" if root else "f"
    if has_aux:
        image = shape_of(f, theta, x0)
        if not (isinstance(image, tuple) and len(image) == 2):
            raise ValueError(
                f"with has_aux, {name} must return (x, aux), got {type(image).__name__}"
            )

    def value_of(theta: Any, x: Tree) -> Tree:
        return f(theta, x)[0] if has_aux else f(theta, x)

    x, info = solution(
        value_of,
        theta,
        x0,
        adjoint=chosen,
        forward=lambda f: Forward.of(f, stages, limits, x0, chosen, norm, mesh_axis),
        backward=lambda f: Backward(f, chosen, throw, mesh_axis),
        tolerances=tolerances,
        probe=probe,
        root=root,
        names=(f"{name}(theta, x0)", "x0"),
        throw=throw,
        mesh_axis=mesh_axis,
    )
    if limits.record:
        states = jax.lax.stop_gradient(cast_like(info.iterates, x))
        info = info._replace(iterates=jax.lax.map(lambda x: value_of(theta, x), states))
    return ((x, f(theta, x)[1]) if has_aux else x), info


def require_fitting(adjoint: adjoints.Adjoint, stages: tuple[Stage, ...], max_steps: int) -> None:
    """Refuses an adjoint that needs what the forward solve does not have."""
    if adjoint.steps is not None and adjoint.steps > max_steps:
        raise ValueError(
            f"{adjoint.name}({adjoint.steps}) needs max_steps >= {adjoint.steps}, got {max_steps}"
        )
    fixed = [stage.method.name for stage in stages if not stage.method.unrollable]
    if fixed and adjoint.name == "bptt":
        raise ValueError(
            f"bptt cannot go back through {fixed[0]}, which compares signs: implicit()"
        )
    if adjoint.precond == "forward" and not isinstance(stages[-1].method, Broyden):
        raise ValueError(
            f"{adjoint.name} takes the inverse that broyden ends with: method=broyden()"
        )


def resolve(method: iterate.Method | Cascade | str) -> tuple[Stage, ...]:
    """The stages of a method given as itself, as a cascade or by name."""
    from solvers.fixed_point import METHODS

    if isinstance(method, str):
        if method not in METHODS:
            raise ValueError(f"unknown method {method!r}; choose from {sorted(METHODS)}")
        method = METHODS[method]()
    if isinstance(method, Cascade):
        return method.stages
    if isinstance(method, iterate.Method):
        return (Stage(method),)
    raise TypeError(
        f"method must be a solvers method, a cascade or a name, got {type(method).__name__}"
    )
