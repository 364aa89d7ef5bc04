"""One small equation for every method, linear solver and adjoint, with a numpy oracle.

All rows of the transform matrix are functions `y(w, c, scale, key)` of a parameter `w` and of what
the map closes over: data `c` (a float or an integer), a `scale` of the state, and a key. The state
is `[time, channels]`, or a scalar for `bracket`; `y` is a fixed combination of its entries.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import solvers
from solvers import Bands, adjoint, linear

TIME, WIDTH = 3, 2
COTANGENT = np.cos(np.arange(TIME * WIDTH)).reshape(TIME, WIDTH)
UPPER = 0.2
MATRIX = np.random.default_rng(0).standard_normal((TIME * WIDTH, TIME * WIDTH))
MATRIX = (MATRIX + MATRIX.T) / np.linalg.norm(MATRIX + MATRIX.T, 2)
RHS = np.sin(1 + np.arange(TIME * WIDTH))

METHODS: dict[str, Callable[[], Any]] = {
    **solvers.METHODS,
    "banded": lambda: None,
    "auto_banded": lambda: None,
    "recurrence": lambda: None,
    "bracket": lambda: None,
}
LINEAR = {name: make for name, make in linear.SOLVERS.items() if name != "neumann"} | {
    "neumann": lambda: linear.neumann(40),
    "cascade": lambda: linear.cascade(linear.richardson(max_steps=2), linear.bicgstab()),
}
ADJOINTS: dict[str, Callable[[], adjoint.Adjoint]] = {
    "implicit": adjoint.implicit,
    "implicit_banded": lambda: adjoint.implicit("gmres"),
    "shine": lambda: adjoint.shine(40),
    "neumann": lambda: adjoint.neumann(40),
    "rbp": lambda: adjoint.rbp(40),
    "rbp_uniform": lambda: adjoint.rbp(rtol=1e-6, start="uniform"),
    "cg_rbp": lambda: adjoint.cg_rbp(rtol=1e-6),
    "bptt": adjoint.bptt,
    "tbptt": lambda: adjoint.tbptt(30),
    "phantom": lambda: adjoint.phantom(60, 0.8),
    "one_step": adjoint.one_step,
    "tangent": adjoint.tangent,
}
BATCHES = ("race", "compacted", "lockstep")
ROWS = [
    *(f"method:{name}" for name in METHODS),
    *(f"linear:{name}" for name in LINEAR),
    *(f"adjoint:{name}" for name in ADJOINTS),
    *(f"batch:{name}" for name in BATCHES),
]


def step(w: Any, x: Any, c: Any, upper: float, numpy: Any = jnp) -> Any:
    """`0.5 tanh(w x[t-1]) + upper sin(x[t+1]) + 0.1 c`, for `[time, ...]`."""
    nothing = numpy.zeros_like(x[:1])
    past = numpy.concatenate([nothing, x[:-1]])
    future = numpy.concatenate([x[1:], nothing])
    return 0.5 * numpy.tanh(w * past) + upper * numpy.sin(future) + 0.1 * c + 0.3


def bands(w: Any, x: jax.Array, upper: float) -> Bands:
    nothing = jnp.zeros_like(x[:1])
    past = jnp.concatenate([nothing, x[:-1]])
    future = jnp.concatenate([x[1:], nothing])
    return Bands(0.5 * w * (1 - jnp.tanh(w * past) ** 2), upper * jnp.cos(future))


def value(row: str, w: Any, c: Any, scale: Any = 1.0, key: Any = None, dtype: str = "float32"):
    """`(y / scale, Info)`, by the row's solver."""
    kind, name = row.split(":")
    if kind == "linear":
        return _linear_value(name, w, c, scale, key, dtype)
    if name == "bracket":
        return _scalar_value(w, c, scale, key, dtype)
    upper = 0.0 if name == "recurrence" else UPPER
    x0 = jnp.zeros((TIME, WIDTH), dtype)

    def f(w: Any, x: Any) -> Any:
        image = scale * step(w, x / scale, c + _nothing(key), upper)
        return image.astype(jnp.result_type(x, w))

    def band(w: Any, x: Any) -> Bands:
        found = bands(w, x / scale, upper)
        return Bands(found.lower + 0 * c, found.upper)  # closes over data, as the map does

    settings: dict[str, Any] = {}
    if kind == "method":
        method = {
            "banded": lambda: solvers.banded(band),
            "auto_banded": lambda: solvers.auto(band),
            "recurrence": lambda: solvers.recurrence(lambda w, x: (f(w, x), band(w, x).lower)),
        }.get(name, METHODS[name])()
        settings = {"method": method}
    if kind == "adjoint":
        chosen = ADJOINTS[name]()
        if name == "implicit_banded":
            chosen = adjoint.implicit("gmres", precond=solvers.precondition(band))
        settings = {"method": "broyden" if name == "shine" else "picard", "adjoint": chosen}
        settings["max_steps"] = 60
    if kind == "batch":
        return _batch_value(name, f, band, w, x0, scale)
    x, info = solvers.fixed_point(f, w, x0, **settings)
    return jnp.sum(jnp.asarray(COTANGENT, dtype) * (x / scale)), info


def _nothing(key: Any) -> Any:
    return 0.0 if key is None else 0.0 * jax.random.uniform(key)


def _linear_value(name: str, w: Any, c: Any, scale: Any, key: Any, dtype: str):
    matrix = jnp.asarray(MATRIX, dtype)
    b = scale * jnp.asarray(RHS, dtype) + scale * (0.1 * c + _nothing(key))

    def matvec(v: jax.Array) -> jax.Array:
        return (v - 0.5 * w * (matrix @ v)).astype(jnp.result_type(v, w))

    x, info = solvers.linear_solve(matvec, b.astype(dtype), solver=LINEAR[name]())
    return jnp.sum(jnp.asarray(COTANGENT.ravel(), dtype) * (x / scale)), info


def _scalar_value(w: Any, c: Any, scale: Any, key: Any, dtype: str):
    def g(w: Any, x: Any) -> Any:
        image = x - scale * (0.5 * jnp.tanh(w * x / scale) + 0.1 * c + 0.3 + _nothing(key))
        return image.astype(jnp.result_type(x, w))

    method = solvers.bracket(-2 * scale, 4 * scale)
    x, info = solvers.root(g, w, jnp.zeros((), dtype), method=method)
    return x / scale, info


def _batch_value(name: str, f: Callable, band: Callable, w: Any, x0: jax.Array, scale: Any):
    if name == "race":
        x, info = solvers.race(f, w, jnp.stack([x0, x0 + 0.1 * scale]), method="picard")
    elif name == "compacted":
        x, info = solvers.compacted(f, w, jnp.stack([x0, x0]), in_axes=None, method="picard")
        x, info = x[1], jax.tree.map(lambda leaf: leaf[1], info)
    else:
        x, info = solvers.lockstep(lambda w, x: (f(w, x), band(w, x)), w, jnp.stack([x0, x0], 1))
        x, info = x[:, 1], jax.tree.map(lambda leaf: leaf[1], info)
    return jnp.sum(jnp.asarray(COTANGENT, x0.dtype) * (x / scale)), info


def oracle(row: str, w: float, c: float) -> float:
    """`y` in float64, by substitution or a dense solve."""
    kind, name = row.split(":")
    if kind == "linear":
        matrix = np.eye(RHS.size) - 0.5 * w * MATRIX
        return float(COTANGENT.ravel() @ np.linalg.solve(matrix, RHS + 0.1 * c))
    if name == "bracket":
        x = 0.0
        for _ in range(400):
            x = 0.5 * np.tanh(w * x) + 0.1 * c + 0.3
        return float(x)
    return float(np.sum(COTANGENT * _fixed(w, c, 0.0 if name == "recurrence" else UPPER)))


def _fixed(w: float, c: float, upper: float) -> np.ndarray:
    x = np.zeros((TIME, WIDTH))
    for _ in range(200):
        x = step(w, x, c, upper, np)
    return x


def slopes(row: str, w: float, c: float) -> tuple[float, float]:
    """The derivatives of `y` by `w` and `c`: differences of the oracle."""
    h = 1e-5
    if row == "adjoint:one_step":  # of one evaluation at the solution
        x = _fixed(w, c, UPPER)
        ends = [(step(w + e, x, c, UPPER, np), step(w, x, c + e, UPPER, np)) for e in (h, -h)]
        change = [(a - b) / (2 * h) for a, b in zip(*ends, strict=True)]
        return tuple(float(np.sum(COTANGENT * part)) for part in change)  # type: ignore
    by_w = oracle(row, w + h, c) - oracle(row, w - h, c)
    by_c = oracle(row, w, c + h) - oracle(row, w, c - h)
    return by_w / (2 * h), by_c / (2 * h)
