"""How a gradient passes a solve.

At `x = f(theta, x)` with `J = df/dx` and `c` the cotangent of `x`, the gradient is

    w = (I - J^T)^-1 c,    theta_bar = (df/dtheta)^T w.

An adjoint says how `w` is found: exactly, by a truncated series, or, for `bptt` and `tbptt`, by
going back through iterations that were really made. `docs/choosing.md` compares them.
"""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from solvers.info import Info, Status
from solvers.linear import LinearSolver, cgne, linear_solve, richardson
from solvers.linear import neumann as neumann_series
from solvers.linear import resolve as resolve_linear
from solvers.linear.base import failed
from solvers.linear.solve import OnFailure, check_policy
from solvers.vectors import Tree, epsilon, norm, ravel, working_dtype

Forward = Callable[..., tuple[Tree, Info]]
Backward = Callable[..., tuple[Any, Info]]


@dataclasses.dataclass(frozen=True, eq=False)
class Adjoint:
    """How a gradient passes a solve; made by the factories of this module.

    Attributes:
      name: for messages.
      mode: "reverse" (a linear solve in the backward pass), "tangent" (a linear solve for
        tangents, transposed for cotangents) or "unroll" (back through iterations).
      linear: the solver for `(I - J^T) w = c`.
      on_failure: what a failed backward solve yields: its best iterate, zero, or NaN.
      precond: `(theta, x) -> (v -> M v)`, `M` close to `(I - J)^-1`; used transposed.
      start: draws the start of the backward solve, or None for zeros.
      steps: iterations to go back through, for "unroll"; None is all of them.
    """

    name: str
    mode: str
    linear: LinearSolver | Callable | None = None
    on_failure: OnFailure = "best"
    precond: Callable | None = None
    start: Callable[[Tree], Tree] | None = None
    steps: int | None = None

    def __post_init__(self) -> None:
        check_policy(self.on_failure)


def implicit(
    linear: LinearSolver | Callable | str | None = None,
    *,
    precond: Callable | None = None,
    on_failure: OnFailure = "best",
) -> Adjoint:
    """Exact: solves `(I - J^T) w = c` with any linear solver (or its name), by default
    `bicgstab()`."""
    return Adjoint("implicit", "reverse", resolve_linear(linear), on_failure, precond)


def neumann(steps: int, *, on_failure: OnFailure = "best") -> Adjoint:
    """Neumann-RBP, Algorithm 2: `v <- J^T v; g <- g + v` from `v = g = c`, `steps` times."""
    return Adjoint("neumann", "reverse", neumann_series(_count(steps)), on_failure)


def rbp(
    steps: int | None = None,
    *,
    rtol: float | None = None,
    start: str = "zeros",
    key: jax.Array | None = None,
    precond: Callable | None = None,
    on_failure: OnFailure = "best",
) -> Adjoint:
    """Recurrent back-propagation, Algorithm 1: `z <- J^T z + c`, `steps` times or until `rtol`.

    From `start="zeros"`, `K + 1` steps equal `neumann(K)` (Proposition 3). The algorithm's own
    start is `"uniform"` in [0, 1], drawn with `key` (by default `jax.random.key(0)`, the same at
    every call). A `precond` turns it into the preconditioned iteration
    `z <- z + M^T (c - (I - J^T) z)`.
    """
    if start not in ("zeros", "uniform"):
        raise ValueError(f'start must be "zeros" or "uniform", got {start!r}')
    draw = partial(_uniform, key) if start == "uniform" else None
    linear = richardson(**_length("rbp", steps, rtol))
    return Adjoint("rbp", "reverse", linear, on_failure, precond, draw)


def cg_rbp(
    steps: int | None = None, *, rtol: float | None = None, on_failure: OnFailure = "best"
) -> Adjoint:
    """CG-RBP: conjugate gradients on `(I - J)(I - J^T) z = (I - J) c`."""
    return Adjoint("cg_rbp", "reverse", cgne(**_length("cg_rbp", steps, rtol)), on_failure)


def phantom(steps: int, damping: float = 0.5, *, on_failure: OnFailure = "best") -> Adjoint:
    """Phantom gradient: `damping sum_{k<steps} (damping J^T + (1 - damping) I)^k c`.

    What automatic differentiation of `steps` damped iterations at the solution gives, without
    keeping them.
    """
    linear = richardson(max_steps=_count(steps), damping=damping, truncated=True)
    return Adjoint("phantom", "reverse", linear, on_failure)


def one_step(*, on_failure: OnFailure = "best") -> Adjoint:
    """`w = c`: the gradient of one last evaluation of the map; no backward solve at all."""
    return Adjoint("one_step", "reverse", neumann_series(0), on_failure)


def tangent(
    linear: LinearSolver | Callable | str | None = None,
    *,
    precond: Callable | None = None,
    on_failure: OnFailure = "best",
) -> Adjoint:
    """Exact, in both modes and to any order: `jvp`, `jacfwd` and `hessian` work.

    Tangents solve `(I - J) x_dot = (df/dtheta) theta_dot`; reverse mode transposes that solve,
    whose status is then not visible to a probe.
    """
    return Adjoint("tangent", "tangent", resolve_linear(linear), on_failure, precond)


def bptt(*, on_failure: OnFailure = "best") -> Adjoint:
    """Back through every iteration of the forward method, its coefficients held fixed.

    The forward loop becomes a scan of `max_steps` steps and memory grows with it. Derivatives
    reach `x0`.
    """
    return Adjoint("bptt", "unroll", None, on_failure)


def tbptt(steps: int, *, on_failure: OnFailure = "best") -> Adjoint:
    """Back through the last `steps` evaluations of the map.

    The forward method gets `max_steps - steps` steps; then the map is applied `steps` times and
    these applications are differentiated. At the fixed point `tbptt(K + 1)` equals `neumann(K)`
    (Proposition 1). Memory grows with `steps`.
    """
    return Adjoint("tbptt", "unroll", None, on_failure, steps=_count(steps))


ADJOINTS: dict[str, Callable[..., Adjoint]] = {
    "implicit": implicit,
    "neumann": neumann,
    "rbp": rbp,
    "cg_rbp": cg_rbp,
    "bptt": bptt,
    "tbptt": tbptt,
    "phantom": phantom,
    "one_step": one_step,
    "tangent": tangent,
}


def resolve(adjoint: Adjoint | str) -> Adjoint:
    """An adjoint given as itself or, where it has no required setting, by name."""
    if isinstance(adjoint, Adjoint):
        return adjoint
    if not isinstance(adjoint, str):
        raise TypeError(f"adjoint must be an Adjoint or a name, got {type(adjoint).__name__}")
    if adjoint not in ADJOINTS:
        raise ValueError(f"unknown adjoint {adjoint!r}; choose from {sorted(ADJOINTS)}")
    try:
        return ADJOINTS[adjoint]()
    except TypeError:
        raise ValueError(
            f"adjoint {adjoint!r} needs its number of steps: solvers.adjoint.{adjoint}(steps=...)"
        ) from None


def adjoint_probe(shape: tuple[int, ...] = ()) -> Info:
    """A zero-valued probe: pass it to `fixed_point` and differentiate with respect to it.

    Its "gradient" is the `Info` of the backward solve, as float32. Under `vmap` pass a probe of
    shape `(batch,)`, mapped, to see every example.
    """
    zero = jnp.zeros(shape, jnp.float32)
    return Info(zero, zero, zero, zero)


def differentiate(
    forward: Forward,
    f: Callable,
    theta: Any,
    x0: Tree,
    *,
    adjoint: Adjoint,
    tolerances: tuple,
    max_steps: int,
    probe: Info | None,
    backward: Backward | None = None,
    transposed: Backward | None = None,
    example: tuple[Any, Tree] | None = None,
    finish: Callable[[Any, Tree, Tree, Info], tuple[Tree, Info]] | None = None,
) -> tuple[Tree, Info]:
    """`forward(f, theta, x0, tolerances, max_steps)` with the derivative that `adjoint` defines.

    What `f` closes over is differentiated too: `forward` and `backward` see it as the second
    half of `theta`. In place of the adjoint's own, `transposed(f, theta, x, cotangent, adjoint)`
    solves the backward system, and `backward` goes on to the gradient of `theta`. `example` are
    arguments for `f` where they differ from `theta` and `x0`. `finish(theta, x, f(theta, x), info)`
    makes a better value of the evaluation that carries gradients, which are those at `x`.
    """
    f, constants = jax.closure_convert(f, *(example or (theta, x0)))
    spec = _Spec(
        forward,
        lambda both, x: f(both[0], x, *both[1]),
        adjoint,
        max_steps,
        backward,
        transposed or _solve_transposed,
    )
    arguments = ((theta, constants), x0, tolerances)
    if adjoint.mode == "tangent":
        if probe is not None:
            raise ValueError("the tangent adjoint cannot report to a probe; use implicit()")
        return _tangent(spec, *arguments)
    if adjoint.mode == "unroll":
        return _unrolled(spec, *arguments, probe)
    if backward is not None or adjoint.on_failure == "zero":
        return _reverse(spec, *arguments, probe)
    x, info = _reverse(spec, *arguments, None)
    return _attached(spec, (theta, constants), x, info, probe, finish)


@dataclasses.dataclass(frozen=True, eq=False)
class _Spec:
    """The static part of a differentiable solve."""

    forward: Forward
    f: Callable[[Any, Tree], Tree]
    adjoint: Adjoint
    max_steps: int
    backward: Backward | None
    transposed: Backward

    def solve(self, theta: Any, x0: Tree, tolerances: tuple) -> tuple[Tree, Info]:
        return self.forward(self.f, theta, x0, tolerances, self.max_steps)


# The forward rules call the differentiable function itself, so that a second derivative meets
# the rule again and not the loop.


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _reverse(
    spec: _Spec, theta: Any, x0: Tree, tolerances: tuple, probe: Info | None
) -> tuple[Tree, Info]:
    return spec.solve(theta, x0, tolerances)


def _reverse_forward(spec: _Spec, theta: Any, x0: Tree, tolerances: tuple, probe: Info | None):
    x, info = _reverse(spec, theta, x0, tolerances, probe)
    return (x, info), (theta, x, x0, tolerances, probe)


def _reverse_backward(spec: _Spec, saved: tuple, cotangents: tuple):
    theta, x, x0, tolerances, probe = saved
    if spec.backward is not None:
        theta_bar, info = spec.backward(spec.f, theta, x, cotangents[0], spec.adjoint)
    else:
        theta_bar, info = _backward(spec, theta, x, cotangents[0])
    return theta_bar, zeros(x0), zeros(tolerances), _seen(probe, info)


_reverse.defvjp(_reverse_forward, _reverse_backward)


def _attached(
    spec: _Spec, theta: Any, x: Tree, info: Info, probe: Info | None, finish: Callable | None
) -> tuple[Tree, Info]:
    """A solution `x`, tied to `theta` by one evaluation of the map instead of by `_reverse`.

    The backward solve hands its `w` to that evaluation, and what goes on to `theta` is ordinary
    differentiation. Under `vmap` this makes the gradient of weights that the examples share in one
    product over the batch; the rule of `_reverse` would make one for each example and add them up.
    """
    quiet = _silent(x)
    image = spec.f(theta, quiet)
    value = quiet
    if finish is not None:
        value, info = lax.stop_gradient(finish(theta[0], x, image, info))
    return _hook(spec, _silent(theta), quiet, image, value, probe), info


@jax.custom_jvp
def _silent(tree: Tree) -> Tree:
    """`tree`, constant in the first derivative; higher derivatives see the identity."""
    return tree


@partial(_silent.defjvp, symbolic_zeros=True)
def _silent_rule(primals: tuple, tangents: tuple) -> tuple[Tree, Tree]:
    return primals[0], jax.custom_derivatives.zero_from_primal(primals[0], symbolic_zeros=True)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _hook(spec: _Spec, theta: Any, x: Tree, image: Tree, value: Tree, probe: Info | None) -> Tree:
    """`value`, whose cotangent reaches `image` as the solution of the backward system at `x`."""
    return value


def _hook_forward(
    spec: _Spec, theta: Any, x: Tree, image: Tree, value: Tree, probe: Info | None
) -> tuple[Tree, tuple]:
    return value, (theta, x, probe)


def _hook_backward(spec: _Spec, saved: tuple, cotangent: Tree):
    theta, x, probe = saved
    w, info = spec.transposed(spec.f, theta, x, cotangent, spec.adjoint)
    return None, None, w, None, _seen(probe, info)


_hook.defvjp(_hook_forward, _hook_backward)


def _backward(spec: _Spec, theta: Any, x: Tree, cotangent: Tree) -> tuple[Any, Info]:
    """The gradient with respect to `theta`, and what the solve for it did."""
    w, info = spec.transposed(spec.f, theta, x, cotangent, spec.adjoint)
    theta_bar = jax.vjp(lambda theta: spec.f(theta, x), theta)[1](w)[0]
    if spec.adjoint.on_failure == "zero":
        # A zero cotangent does not stop a NaN inside the map: 0 * NaN.
        bad = failed(spec.adjoint.linear, info)
        theta_bar = jax.tree.map(lambda leaf: _fill_where(bad, leaf, 0.0), theta_bar)
    return theta_bar, info


def _solve_transposed(
    f: Callable, theta: Any, x: Tree, cotangent: Tree, adjoint: Adjoint
) -> tuple[Tree, Info]:
    """`w` of `(I - J^T) w = cotangent`."""
    matvec, inverse = transposed_system(f, theta, x, adjoint)
    return linear_solve(
        matvec,
        cotangent,
        solver=adjoint.linear,
        x0=None if adjoint.start is None else adjoint.start(cotangent),
        precond=inverse,
        on_failure=adjoint.on_failure,
    )


def transposed_system(
    f: Callable, theta: Any, x: Tree, adjoint: Adjoint
) -> tuple[Callable[[Tree], Tree], Callable[[Tree], Tree] | None]:
    """`w -> (I - J^T) w`, and the transposed preconditioner if the adjoint has one."""
    _, pull = jax.vjp(lambda x: f(theta, x), x)
    inverse = adjoint.precond and adjoint.precond(theta[0], x)
    return (
        lambda w: jax.tree.map(jnp.subtract, w, pull(w)[0]),
        inverse and (lambda w: jax.linear_transpose(inverse, x)(w)[0]),
    )


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _tangent(spec: _Spec, theta: Any, x0: Tree, tolerances: tuple) -> tuple[Tree, Info]:
    return spec.solve(theta, x0, tolerances)


@_tangent.defjvp
def _tangent_rule(spec: _Spec, primals: tuple, tangents: tuple):
    theta, theta_dot = primals[0], tangents[0]
    x, info = _tangent(spec, *primals)
    f_dot = jax.jvp(lambda theta: spec.f(theta, x), (theta,), (theta_dot,))[1]
    _, push = jax.linearize(lambda x: spec.f(theta, x), x)
    x_dot, _ = linear_solve(
        lambda v: jax.tree.map(jnp.subtract, v, push(v)),
        jax.tree.map(lambda leaf, like: leaf.astype(like.dtype), f_dot, x),
        solver=spec.adjoint.linear,
        precond=spec.adjoint.precond and spec.adjoint.precond(theta[0], x),
        on_failure=spec.adjoint.on_failure,
    )
    return (x, info), (x_dot, zeros(info))


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _unrolled(
    spec: _Spec, theta: Any, x0: Tree, tolerances: tuple, probe: Info | None
) -> tuple[Tree, Info]:
    begin, unroll = _unrolled_parts(spec, tolerances)
    return unroll(theta, *begin(theta, x0))


def _unrolled_forward(spec: _Spec, theta: Any, x0: Tree, tolerances: tuple, probe: Info | None):
    begin, unroll = _unrolled_parts(spec, tolerances)
    cut, info = begin(theta, x0)
    x, pull, info = jax.vjp(lambda theta, cut: unroll(theta, cut, info), theta, cut, has_aux=True)
    return (x, info), (pull, info, x0, tolerances, probe)


def _unrolled_backward(spec: _Spec, saved: tuple, cotangents: tuple):
    pull, forward_info, x0, tolerances, probe = saved
    theta_bar, cut_bar = pull(cotangents[0])
    # What has not yet been brought to the parameters arrives at the cut: the truncation error.
    size, dtype = norm(_flat(cotangents[0])), working_dtype(cut_bar)
    residual = norm(_flat(cut_bar)) / jnp.where(size > 0, size, 1)
    finite = jnp.isfinite(residual)
    status = jnp.select(
        [~finite, residual <= epsilon(cut_bar) ** (2 / 3), residual > 1],
        [int(Status.NONFINITE), int(Status.CONVERGED), int(Status.DIVERGED)],
        int(Status.MAX_STEPS),
    )
    steps = forward_info.steps if spec.adjoint.steps is None else spec.adjoint.steps
    steps = jnp.asarray(steps, jnp.int32)
    info = Info(steps, jnp.where(finite, residual, jnp.inf).astype(dtype), status, steps)
    if spec.adjoint.on_failure != "best":
        bad = (status == Status.NONFINITE) | (status == Status.DIVERGED)
        fill = 0.0 if spec.adjoint.on_failure == "zero" else jnp.nan
        theta_bar, cut_bar = jax.tree.map(
            lambda leaf: _fill_where(bad, leaf, fill), (theta_bar, cut_bar)
        )
    x0_bar = cut_bar if spec.adjoint.steps is None else zeros(x0)
    return theta_bar, x0_bar, zeros(tolerances), _seen(probe, info)


_unrolled.defvjp(_unrolled_forward, _unrolled_backward)


def _unrolled_parts(spec: _Spec, tolerances: tuple) -> tuple[Callable, Callable]:
    """`begin(theta, x0) -> (cut, info)`, not differentiated, and `unroll(theta, cut, info)`."""
    steps, f = spec.adjoint.steps, spec.f
    if steps is None:
        nothing = Info(jnp.int32(0), jnp.float32(0), jnp.int32(0))

        def whole(theta: Any, x0: Tree, _: Info) -> tuple[Tree, Info]:
            return spec.forward(f, theta, x0, tolerances, spec.max_steps, unrolled=True)

        return lambda theta, x0: (x0, nothing), whole
    if steps > spec.max_steps:
        raise ValueError(f"tbptt({steps}) needs max_steps >= {steps}, got {spec.max_steps}")

    def begin(theta: Any, x0: Tree) -> tuple[Tree, Info]:
        frozen = lax.stop_gradient((theta, x0))
        return lax.stop_gradient(spec.forward(f, *frozen, tolerances, spec.max_steps - steps))

    def last(theta: Any, cut: Tree, info: Info) -> tuple[Tree, Info]:
        x = lax.scan(lambda x, _: (f(theta, x), None), cut, None, length=steps)[0]
        image = lax.stop_gradient(f(theta, x))
        size = norm(_flat(jax.tree.map(jnp.subtract, image, x)))
        scale = jnp.maximum(norm(_flat(x)), norm(_flat(image)))
        met = size <= jnp.maximum(tolerances[0] * scale, tolerances[1])
        missed = jnp.where(info.converged, int(Status.MAX_STEPS), info.status)
        missed = jnp.where(jnp.isfinite(size), missed, int(Status.NONFINITE))
        relative = size / jnp.where(scale > 0, scale, 1)
        return x, info._replace(
            steps=info.steps + steps,
            residual=jnp.where(jnp.isfinite(relative), relative, jnp.inf),
            status=jnp.where(met, int(Status.CONVERGED), missed).astype(jnp.int32),
            evaluations=jnp.asarray(info.evaluations + steps + 1, jnp.int32),
        )

    return begin, last


def _count(steps: int) -> int:
    if not isinstance(steps, numbers.Integral) or steps < 0:
        raise ValueError(f"steps must be an integer of at least 0, got {steps!r}")
    return int(steps)


def _length(name: str, steps: int | None, rtol: float | None) -> dict:
    """Settings of a linear solver that runs for `steps` steps or to `rtol`."""
    if (steps is None) == (rtol is None):
        raise ValueError(f"{name} takes either steps or rtol, got steps={steps}, rtol={rtol}")
    return {"rtol": rtol} if steps is None else {"max_steps": _count(steps), "truncated": True}


def _uniform(key: jax.Array | None, like: Tree) -> Tree:
    leaves, structure = jax.tree.flatten(like)
    key = jax.random.key(0) if key is None else key
    keys = jax.random.split(key, max(len(leaves), 1))
    draws = [
        jax.random.uniform(k, leaf.shape, leaf.dtype) for k, leaf in zip(keys, leaves, strict=False)
    ]
    return jax.tree.unflatten(structure, draws)


def _flat(tree: Tree) -> jax.Array:
    return ravel(tree, working_dtype(tree))


def _seen(probe: Info | None, info: Info) -> Info | None:
    """`info` as the cotangent of the probe."""
    if probe is None:
        return None
    values = Info(info.steps, info.residual, info.status, info.evaluations)
    return jax.tree.map(
        lambda value, like: jnp.broadcast_to(value, like.shape).astype(like.dtype), values, probe
    )


def zeros(tree: Any) -> Any:
    """Zero (co)tangents: float0 for integers."""

    def zero(leaf: Any) -> Any:
        if jnp.issubdtype(jnp.result_type(leaf), jnp.inexact):
            return jnp.zeros_like(leaf)
        return np.zeros(jnp.shape(leaf), jax.dtypes.float0)

    return jax.tree.map(zero, tree)


def _fill_where(bad: jax.Array, leaf: Any, fill: float) -> Any:
    if leaf.dtype == jax.dtypes.float0:
        return leaf
    return jnp.where(bad, jnp.asarray(fill, leaf.dtype), leaf)
