"""Inputs that must be refused, each with a word that the message has to contain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import solvers
from solvers import adjoint, linear

Call = Callable[[], Any]
NOTHING = "accepted"  # the word for inputs that are unusual and fine


def _half(theta: Any, x: Any) -> Any:
    return jax.tree.map(lambda leaf: 0.5 * leaf + 1, x)


def _solve(f: Any = _half, theta: Any = None, x0: Any = None, **settings: Any) -> Call:
    x0 = jnp.ones(3) if x0 is None else x0
    return lambda: solvers.fixed_point(f, theta, x0, **settings)


def _root(g: Any = None, x0: Any = None, **settings: Any) -> Call:
    x0 = jnp.ones(3) if x0 is None else x0
    return lambda: solvers.root(g or (lambda _, x: x - 1), None, x0, **settings)


def _linear(b: Any = None, matvec: Any = None, **settings: Any) -> Call:
    b = jnp.ones(3) if b is None else b
    return lambda: solvers.linear_solve(matvec or (lambda v: 2.0 * v), b, **settings)


def _given(x: Any = None, **settings: Any) -> Call:
    x = jnp.ones(3) if x is None else x
    return lambda: solvers.implicit_diff(lambda _, x: 0.5 * x, None, x, **settings)


def _compacted(theta: Any = None, x0: Any = None, **settings: Any) -> Call:
    theta = jnp.ones(2) if theta is None else theta
    x0 = jnp.ones((2, 3)) if x0 is None else x0
    return lambda: solvers.compacted(lambda c, x: 0.5 * x + c, theta, x0, **settings)


def _lockstep(x0: Any = None, **settings: Any) -> Call:
    x0 = jnp.ones((4, 2, 3)) if x0 is None else x0

    def sweep(_: Any, x: Any) -> tuple:
        return 0.5 * x + 1, solvers.Bands(jnp.zeros_like(x), jnp.zeros_like(x))

    return lambda: solvers.lockstep(sweep, None, x0, **settings)


def _race(starts: Any = None, **settings: Any) -> Call:
    starts = jnp.ones((2, 3)) if starts is None else starts
    return lambda: solvers.race(_half, None, starts, **settings)


def _tolerances(maker: Callable, *names: str) -> dict[str, tuple[Callable, str]]:
    wrong = {
        "negative": -1e-3,
        "nan": float("nan"),
        "text": "small",
        "negative_array": np.float32(-1),
    }
    return {
        f"{maker.__name__[1:]} {name} {kind}": (lambda n=name, v=value: maker(**{n: v})(), name)
        for name in names
        for kind, value in wrong.items()
    }


def _counts(maker: Callable, *names: str) -> dict[str, tuple[Callable, str]]:
    wrong = {"fraction": 10.5, "negative": -1, "text": "ten", "true": True, "none": None}
    return {
        f"{maker.__name__[1:]} {name} {kind}": (lambda n=name, v=value: maker(**{n: v})(), name)
        for name in names
        for kind, value in wrong.items()
        if not (value is None and name == "patience")
    }


def _states(maker: Callable, name: str, shape: tuple = (3,)) -> dict[str, tuple[Callable, str]]:
    wrong = {
        "integers": jnp.ones(shape, jnp.int32),
        "complex": jnp.ones(shape, jnp.complex64),
        "truth": jnp.ones(shape, bool),
        "text": "start",
    }
    return {
        f"{maker.__name__[1:]} {name} {kind}": (lambda v=value: maker(**{name: v})(), name)
        for kind, value in wrong.items()
    }


def _names(maker: Callable, *names: str) -> dict[str, tuple[Callable, str]]:
    return {
        f"{maker.__name__[1:]} {name} {value}": (lambda n=name, v=value: maker(**{n: v})(), name)
        for name in names
        for value in ("unknown", 3)
    }


_EVERY = (_solve, _root, _race, _compacted)

BAD: dict[str, tuple[Callable[[], Any], str]] = {
    **{k: v for m in (*_EVERY, _lockstep) for k, v in _tolerances(m, "rtol", "atol").items()},
    **_tolerances(_given, "rtol"),
    **{k: v for m in (*_EVERY, _lockstep) for k, v in _counts(m, "max_steps").items()},
    **_counts(_solve, "trace", "patience"),
    **_counts(_compacted, "levels"),
    **_states(_solve, "x0"),
    **_states(_root, "x0"),
    **_states(_given, "x"),
    **_states(_linear, "b"),
    **_states(_race, "starts", (2, 3)),
    **_states(_compacted, "x0", (2, 3)),
    **_states(_lockstep, "x0", (4, 2, 3)),
    **{k: v for m in _EVERY for k, v in _names(m, "method", "adjoint").items()},
    **_names(_given, "adjoint", "kind"),
    **_names(_linear, "solver", "on_failure"),
    "image of another structure": (_solve(f=lambda _, x: {"y": x}), "f(theta, x0)"),
    "image of another shape": (_solve(f=lambda _, x: x[:2]), "f(theta, x0)"),
    "image of integers": (_solve(f=lambda _, x: x.astype(int)), "f(theta, x0)"),
    "image of complex numbers": (_solve(f=lambda _, x: x + 1j), "f(theta, x0)"),
    "image that is None": (_solve(f=lambda _, x: None), "f(theta, x0)"),
    "image of a root of another shape": (_root(g=lambda _, x: x[:2]), "g(theta, x0)"),
    "image of a root with no aux": (_root(has_aux=True), "has_aux"),
    "no aux": (_solve(has_aux=True), "has_aux"),
    "race of other shapes": (_race(starts={"a": jnp.ones((2, 3)), "b": jnp.ones((3,))}), "starts"),
    "race of no starts": (_race(starts=jnp.ones((0, 3))), "starts"),
    "race of a scalar": (_race(starts=jnp.ones(())), "starts"),
    "race of nothing": (_race(starts={}), "starts"),
    "matrix of another shape": (_linear(matvec=lambda v: v[:2]), "matvec"),
    "matrix of another structure": (_linear(matvec=lambda v: (v, v)), "matvec"),
    "linear start of another shape": (_linear(x0=jnp.ones(2)), "x0"),
    "linear start of integers": (_linear(x0=jnp.ones(3, int)), "x0"),
    "neumann by name": (_linear(solver="neumann"), "neumann"),
    "adjoint without steps": (_solve(adjoint="neumann"), "steps"),
    "adjoint with steps below zero": (lambda: adjoint.neumann(-1), "steps"),
    "adjoint with a fraction of steps": (lambda: adjoint.tbptt(1.5), "steps"),
    "adjoint with both lengths": (lambda: adjoint.rbp(3, rtol=0.1), "steps"),
    "adjoint with unknown start": (lambda: adjoint.rbp(3, start="ones"), "start"),
    "adjoint with unknown policy": (lambda: adjoint.implicit(on_failure="raise"), "on_failure"),
    "adjoint with unknown solver": (lambda: adjoint.implicit("lu"), "solver"),
    "adjoint with damping below zero": (lambda: adjoint.phantom(3, -0.5), "damping"),
    "linear neumann of a fraction": (lambda: linear.neumann(2.5), "steps"),
    "linear rtol below zero": (lambda: linear.gmres(-1.0), "rtol"),
    "linear steps of a fraction": (lambda: linear.bicgstab(max_steps=10.5), "max_steps"),
    "gmres with no restart": (lambda: linear.gmres(restart=0), "restart"),
    "lsqr damped below zero": (lambda: linear.lsqr(damp=-1.0), "damp"),
    "dense by an unknown algorithm": (lambda: linear.dense("svd"), "algorithm"),
    "empty cascade": (lambda: linear.cascade(), "cascade"),
    "cascade of a name": (lambda: linear.cascade("cg"), "cascade"),
    "cascade of a dense solve last": (
        _linear(solver=linear.cascade(linear.cg(), linear.dense())),
        NOTHING,
    ),
    "forcing above one": (lambda: solvers.newton(forcing=2.0), "forcing"),
    "anderson without memory": (lambda: solvers.anderson(0), "depth"),
    "banded without bands": (lambda: solvers.banded(), "bands"),
    "bracket of a vector": (_root(method=solvers.bracket(0.0, 2.0)), "x0"),
    "bracket that is reversed": (
        _root(x0=jnp.ones(()), method=solvers.bracket(2.0, 0.0)), NOTHING
    ),
    "recurrence of a vector": (
        _solve(method=solvers.recurrence(lambda _, x: (x, x))), "[time, n]"
    ),
    "compacted of unknown axes": (_compacted(in_axes=1), "in_axes"),
    "compacted of named axes": (_compacted(in_axes="batch"), "in_axes"),
    "compacted of axes for other leaves": (_compacted(in_axes=(0, 0)), "in_axes"),
    "compacted of unequal batches": (_compacted(theta=jnp.ones(5)), "theta"),
    "compacted of a scalar": (_compacted(x0=jnp.ones(())), "x0"),
    "compacted of no examples": (_compacted(theta=jnp.ones(0), x0=jnp.ones((0, 3))), NOTHING),
    "lockstep of a matrix": (_lockstep(x0=jnp.ones((4, 2))), "x0"),
    "lockstep of no examples": (_lockstep(x0=jnp.ones((4, 0, 3))), NOTHING),
    "lockstep of no time": (_lockstep(x0=jnp.ones((0, 2, 3))), NOTHING),
    "lockstep of nothing": (_lockstep(x0={}), "x0"),
    "lockstep by a name": (_lockstep(method="picard"), "method"),
    "lockstep rescued blindly": (_lockstep(rescue=True), "in_axes"),
    "empty array": (_solve(x0=jnp.ones(0)), NOTHING),
    "empty tree": (_solve(x0={}), NOTHING),
    "empty root": (_root(x0=jnp.ones(0)), NOTHING),
    "empty right-hand side": (_linear(b=jnp.ones(0)), NOTHING),
    "empty given solution": (_given(x=jnp.ones(0)), NOTHING),
    "empty race": (_race(starts=jnp.ones((2, 0))), NOTHING),
    "vmap over no examples": (
        lambda: jax.vmap(lambda x: solvers.fixed_point(_half, None, x))(jnp.ones((0, 3))), NOTHING
    ),
    "gradient over no examples": (
        lambda: jax.grad(
            lambda c: jnp.sum(
                jax.vmap(lambda x: solvers.fixed_point(lambda c, x: 0.5 * x + c, c, x)[0])(
                    jnp.ones((0, 3))
                )
            )
        )(1.0),
        NOTHING,
    ),
    "start that is a float": (_solve(x0=1.0), NOTHING),
    "start that is an integer": (_solve(x0=1), "x0"),
    "start that is a numpy array": (_solve(x0=np.ones(3)), NOTHING),
    "start that is NaN": (_solve(x0=jnp.full(3, jnp.nan)), NOTHING),
    "start that is infinite": (_solve(x0=jnp.full(3, jnp.inf)), NOTHING),
    "blowup below one": (_solve(blowup=0.5), "blowup"),
    "record of a fraction": (_solve(record=(1.5,)), "record"),
    "record beyond the end": (_solve(record=(1000,)), NOTHING),
    "trace of one entry": (_solve(trace=1), NOTHING),
    "steps of numpy": (_solve(max_steps=np.int64(20)), NOTHING),
}  # fmt: skip
