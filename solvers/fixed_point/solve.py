"""`fixed_point`: solve `x = f(theta, x)` and let gradients pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from solvers import adjoint as adjoints
from solvers import iterate
from solvers.fixed_point.base import Cascade, FixedPointProblem, Map, Stage
from solvers.info import Info, Status
from solvers.vectors import (
    Tree,
    Vector,
    epsilon,
    ravel,
    require_like,
    require_real,
    unraveler,
    working_dtype,
)


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
) -> tuple[Tree, Info]:
    """Solves `x = f(theta, x)` from `x0`.

    Args:
      f: the map; `f(theta, x)` has the structure and shapes of `x`. It may close over arrays that
        are being differentiated.
      theta: parameters, any pytree.
      x0: where to start: a pytree of real floating-point arrays.
      method: a method, a cascade or the name of one (`solvers.METHODS`).
      adjoint: how gradients pass, or its name (`solvers.adjoint.ADJOINTS`).
      rtol, atol: stop at `||f(x) - x|| <= max(rtol max(||x||, ||f(x)||), atol)`; may be traced.
        By default the 2/3 power of the rounding unit (2e-5 in float32) and the rounding unit.
      max_steps: step limit.
      probe: `solvers.adjoint_probe()`, whose gradient reports the backward solve.
      trace: length of the residual trace in the returned `Info`.

    Returns:
      The best iterate, in the structure and dtypes of `x0`, and its `Info`.

    >>> x, info = fixed_point(lambda a, x: jnp.cos(a * x), 1.0, jnp.zeros(()))
    >>> print(f"{x:.4f}", bool(info.converged))
    0.7391 True
    """
    if max_steps < 0:
        raise ValueError(f"max_steps must be at least 0, got {max_steps}")
    x0 = require_real(x0, "x0")
    require_like(jax.eval_shape(f, theta, x0), x0, "f(theta, x0)", "x0")
    stages = resolve(method)

    def forward(
        f: Map, theta: Any, x0: Tree, tolerances: tuple, max_steps: int, unrolled: bool = False
    ) -> tuple[Tree, Info]:
        sequence = tasks(stages, f, theta, x0, tolerances, max_steps, trace)
        x, info = run(sequence, unrolled=True) if unrolled else run(sequence)
        return unraveler(x0)(x), info

    return adjoints.differentiate(
        forward,
        f,
        theta,
        x0,
        adjoint=adjoints.resolve(adjoint),
        tolerances=tolerances(x0, rtol, atol),
        max_steps=max_steps,
        probe=probe,
    )


def tolerances(
    x0: Tree, rtol: float | jax.Array | None, atol: float | jax.Array | None
) -> tuple[float | jax.Array, float | jax.Array]:
    """`(rtol, atol)` with the defaults that the precision of `x0` suggests."""
    eps = epsilon(x0)
    return eps ** (2 / 3) if rtol is None else rtol, eps if atol is None else atol


def tasks(
    stages: tuple[Stage, ...],
    f: Map,
    theta: Any,
    x0: Tree,
    tolerances: tuple,
    max_steps: int,
    trace: int = 0,
) -> list[iterate.Task]:
    """One task per stage, all from `x0`; `run` gives the later ones the start they deserve.

    `theta` is the pair that `adjoint.differentiate` makes; methods see its first half.
    """
    dtype, unravel = working_dtype(x0), unraveler(x0)

    def flat(x: Vector) -> Vector:
        return ravel(f(theta, unravel(x)), dtype)

    problem = FixedPointProblem(flat, theta[0], unravel, lambda tree: ravel(tree, dtype))
    result: list[iterate.Task] = []
    left, (rtol, atol) = max_steps, tolerances
    for stage in stages:
        allowed = left if stage.max_steps is None else min(stage.max_steps, left)
        stop = iterate.Stop(rtol, atol, allowed, trace=trace)
        result.append(iterate.Task(stage.method, problem, ravel(x0, dtype), stop))
        left -= allowed
    return result


def run(
    tasks: list[iterate.Task],
    loop: Callable[[iterate.Task, iterate.Loop], iterate.Loop] = iterate.resume,
    unrolled: bool = False,
) -> tuple[Vector, Info]:
    """The tasks one after the other, each from the best iterate of the one before.

    `unrolled` makes a program through which reverse mode can pass.
    """
    loop = iterate.unroll if unrolled else loop
    x, info = iterate.outcome(loop(tasks[0], iterate.begin(tasks[0])))
    for task in tasks[1:]:

        def proceed(before: tuple[Vector, Info], task: iterate.Task = task) -> tuple[Vector, Info]:
            x, latest = iterate.outcome(loop(task, iterate.begin(task._replace(start=before[0]))))
            return x, combine(before[1], latest)

        if unrolled:
            x, info = proceed((x, info))
        else:
            x, info = iterate.unless(info.converged, proceed, (x, info))
    return x, info


def combine(first: Info, second: Info) -> Info:
    """The `Info` of two stages that followed one another.

    A start that was not finite stays visible: a later stage begins from its finite part.
    """
    trace = None
    if first.trace is not None and second.trace is not None:
        position = jnp.arange(first.trace.size)
        later = jnp.clip(position - first.steps, 0, first.trace.size - 1)
        trace = jnp.where(position <= first.steps, first.trace, second.trace[later])
    return second._replace(
        steps=first.steps + second.steps,
        evaluations=first.evaluations + second.evaluations,
        status=jnp.where(
            (first.status == Status.NONFINITE) & (first.steps == 0), first.status, second.status
        ),
        trace=trace,
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
