"""The demonstration behind `implicit-rnn demo`: one implicit recurrence, every method and adjoint.

The states of a whole sequence are defined at once, each by its neighbours on both sides,

    h_t = tanh(W x_t + P h_{t-1} + N h_{t+1} + b),    t = 1..time,    h_0 = h_{time+1} = 0.

`P` and `N` are diagonal but for a weak coupling, so their diagonals give useful bands; their norms
add up to less than one, so the map contracts, slowly, for every seed.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import platform
import time as clock
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

import solvers
from implicit_rnn.experiments import plots
from implicit_rnn.training import FolderError

INPUTS = 4
FORWARD_STEPS = 200
BACKWARD_STEPS = 300
TERMS = 10  # of the truncated series; tbptt and rbp get one more step, which makes them equal


class Theta(NamedTuple):
    """The parameters of the recurrence."""

    previous: jax.Array  # P, [width, width]
    following: jax.Array  # N, [width, width]
    inputs: jax.Array  # W, [width, INPUTS]
    bias: jax.Array  # b, [width]


class System(NamedTuple):
    """The equation `h = f(theta, h)` over a sequence, and a loss of its solution."""

    f: Callable[[Theta, jax.Array], jax.Array]
    bands: Callable[[Theta, jax.Array], solvers.Bands]
    loss: Callable[[jax.Array], jax.Array]
    theta: Theta
    start: jax.Array  # [time, width]


def build(seed: int, time: int, width: int) -> System:
    """Draws the parameters, the inputs and the target of the loss."""
    keys = iter(jax.random.split(jax.random.key(seed), 8))

    def neighbour() -> jax.Array:
        own = jax.random.uniform(next(keys), (width,), minval=0.44, maxval=0.47)
        coupling = jax.random.normal(next(keys), (width, width))
        return jnp.diag(own) + 0.028 * coupling / jnp.linalg.norm(coupling, 2)

    theta = Theta(
        previous=neighbour(),
        following=neighbour(),
        inputs=0.04 * jax.random.normal(next(keys), (width, INPUTS)),
        bias=jnp.zeros(width),
    )
    xs = jax.random.normal(next(keys), (time, INPUTS))
    target = 0.1 * jax.random.normal(next(keys), (time, width))

    def f(theta: Theta, h: jax.Array) -> jax.Array:
        padded = jnp.pad(h, ((1, 1), (0, 0)))
        neighbours = padded[:-2] @ theta.previous.T + padded[2:] @ theta.following.T
        return jnp.tanh(xs @ theta.inputs.T + neighbours + theta.bias)

    def bands(theta: Theta, h: jax.Array) -> solvers.Bands:
        slope = 1 - f(theta, h) ** 2
        return solvers.Bands(
            lower=slope * jnp.diagonal(theta.previous), upper=slope * jnp.diagonal(theta.following)
        )

    def loss(h: jax.Array) -> jax.Array:
        return 0.5 * jnp.mean((h - target) ** 2)

    return System(f, bands, loss, theta, jnp.zeros((time, width)))


def methods(system: System) -> dict[str, dict[str, Any]]:
    """Solves the recurrence with every method; one row per method."""
    choices = {
        "picard": solvers.picard(),
        "anderson": solvers.anderson(),
        "broyden": solvers.broyden(),
        "newton": solvers.newton(),
        "banded": solvers.banded(system.bands),
        "auto": solvers.auto(),
    }

    def solve(method: Any) -> solvers.Info:
        run = jax.jit(
            lambda theta: solvers.fixed_point(
                system.f,
                theta,
                system.start,
                method=method,
                max_steps=FORWARD_STEPS,
                trace=FORWARD_STEPS + 1,
            )
        )
        return run(system.theta)[1]

    return {name: _row(solve(method)) for name, method in choices.items()}


def linear(system: System, h: jax.Array) -> dict[str, dict[str, Any]]:
    """Solves the backward system `(I - J^T) w = dloss/dh` with every linear solver.

    One more row shows what the transposed bands do as a preconditioner.
    """
    cotangent = jax.grad(system.loss)(h)
    factories: dict[str, Callable[..., Any]] = {**solvers.linear.SOLVERS}
    choices = {
        name: make(steps=TERMS) if name == "neumann" else make() for name, make in factories.items()
    }

    def solve(solver: Any, preconditioned: bool) -> solvers.Info:
        # A direct solver takes no steps whose residuals could be kept.
        kept = {} if isinstance(solver, solvers.linear.Dense) else {"trace": BACKWARD_STEPS + 1}

        @jax.jit
        def run(theta: Theta, h: jax.Array) -> solvers.Info:
            pull = jax.vjp(lambda h: system.f(theta, h), h)[1]
            transposed = jax.linear_transpose(solvers.precondition(system.bands)(theta, h), h)
            return solver(
                lambda w: w - pull(w)[0],
                cotangent,
                precond=(lambda w: transposed(w)[0]) if preconditioned else None,
                **kept,
            )[1]

        return run(system.theta, h)

    rows = {name: _row(solve(solver, False)) for name, solver in choices.items()}
    # While it runs, the series knows the residual of the sum before; its last is in the table.
    series = rows["neumann"]
    series["trace"] = [*series["trace"][1:], series["residual"]]
    rows["bicgstab, bands"] = _row(solve(solvers.linear.bicgstab(), True))
    return rows


def adjoints(system: System, h: jax.Array) -> dict[str, dict[str, Any]]:
    """Differentiates the loss with every adjoint and compares with the dense implicit gradient."""
    adjoint = solvers.adjoint
    choices = {
        "implicit": adjoint.implicit(),
        "implicit, bands": adjoint.implicit(precond=solvers.precondition(system.bands)),
        "tangent": adjoint.tangent(),
        "bptt": adjoint.bptt(),
        "cg_rbp(1e-3)": adjoint.cg_rbp(rtol=1e-3),
        f"neumann({TERMS})": adjoint.neumann(TERMS),
        f"rbp({TERMS + 1})": adjoint.rbp(TERMS + 1),
        f"tbptt({TERMS + 1})": adjoint.tbptt(TERMS + 1),
        f"phantom({TERMS})": adjoint.phantom(TERMS),
        "one_step": adjoint.one_step(),
        "shine": adjoint.shine(),
    }
    exact = _flat(dense_gradient(system, h))
    rows = {}
    for name, choice in choices.items():
        gradient, info = _gradient(system, choice)
        error = np.linalg.norm(_flat(gradient) - exact) / np.linalg.norm(exact)
        rows[name] = (_row(info) if info else {}) | {"gradient_error": float(error)}
    return rows


def _gradient(system: System, choice: solvers.adjoint.Adjoint) -> tuple[Theta, Any]:
    probed = choice.mode != "tangent"
    # shine takes the inverse that the forward method has built up.
    method = solvers.broyden() if choice.precond == "forward" else solvers.picard()

    def loss(theta: Theta, probe: solvers.Info | None) -> jax.Array:
        # Tight, so that what is compared is the adjoint and not the forward solve.
        h, _ = solvers.fixed_point(
            system.f,
            theta,
            system.start,
            method=method,
            adjoint=choice,
            rtol=1e-6,
            max_steps=FORWARD_STEPS,
            probe=probe,
        )
        return system.loss(h)

    if probed:
        run = jax.jit(jax.grad(loss, argnums=(0, 1)))
        return run(system.theta, solvers.adjoint_probe())
    return jax.jit(jax.grad(loss))(system.theta, None), None


def reference_state(system: System) -> jax.Array:
    """The solution, as accurate as single precision lets it be."""
    method = solvers.newton(precond=solvers.precondition(system.bands))
    solve = jax.jit(
        lambda theta: solvers.fixed_point(
            system.f, theta, system.start, method=method, rtol=1e-6, max_steps=FORWARD_STEPS
        )
    )
    h, info = solve(system.theta)
    solvers.check(info)
    return h


def dense_gradient(system: System, h: jax.Array) -> Theta:
    """`(df/dtheta)^T (I - J^T)^-1 dloss/dh` with the whole Jacobian and a direct solve."""
    jacobian = jax.jit(jax.jacobian(system.f, argnums=1))(system.theta, h)
    matrix = np.eye(h.size) - np.asarray(jacobian, np.float64).reshape(h.size, h.size)
    cotangent = np.asarray(jax.grad(system.loss)(h), np.float64).ravel()
    w = np.linalg.solve(matrix.T, cotangent).reshape(h.shape)
    pull = jax.vjp(lambda theta: system.f(theta, h), system.theta)[1]
    return pull(jnp.asarray(w, h.dtype))[0]


def _flat(theta: Theta) -> np.ndarray:
    return np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in theta])


def _row(info: solvers.Info) -> dict[str, Any]:
    row = {
        "steps": int(info.steps),
        "evaluations": int(np.asarray(info.evaluations)),
        "residual": float(info.residual),
        "status": solvers.Status(int(info.status)).name,
    }
    if info.trace is not None:
        trace = np.asarray(info.trace, np.float64)
        row["trace"] = trace[np.isfinite(trace) & (trace >= 0)].tolist()
    return row


def run(output: Path, seed: int = 0, time: int = 64, width: int = 16, command: str = "") -> dict:
    """Runs the demonstration, prints its tables and writes its files under `output`.

    Returns what it wrote to `result.json`.
    """
    console, began = Console(highlight=False), clock.perf_counter()
    if output.exists() and not output.is_dir():
        raise FolderError(f"{output} is a file: name a folder (--output)")
    output.mkdir(parents=True, exist_ok=True)
    system = build(seed, time, width)
    console.print(
        f"h_t = tanh(W x_t + P h_(t-1) + N h_(t+1) + b)   {time} steps x {width} channels, "
        f"seed {seed}\n"
    )
    result: dict[str, Any] = {
        "command": command,
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": _versions(),
        "device": jax.devices()[0].platform,
        "seed": seed,
        "time": time,
        "width": width,
    }
    with console.status("compiling and solving"):
        result["methods"] = methods(system)
        _print(console, "Forward: h = f(h)", "method", result["methods"])
        h = reference_state(system)
        result["linear"] = linear(system, h)
        title = "Backward: (I - J^T) w = dloss/dh"
        _print(console, title, "linear solver", result["linear"])
        result["adjoints"] = adjoints(system, h)
        title = "Gradient: relative error against a dense direct solve"
        _print(console, title, "adjoint", result["adjoints"])

    figures = {
        "methods": ("convergence_methods.png", "Residual of h = f(h), method by method"),
        "linear": ("convergence_linear.png", "Residual of the backward system, solver by solver"),
    }
    written = []
    for name, (file, title) in figures.items():
        traces = {
            key: np.asarray(row["trace"]) for key, row in result[name].items() if "trace" in row
        }
        written.append(plots.convergence(traces, output / file, title))
    result["seconds"] = round(clock.perf_counter() - began, 2)
    record = output / "result.json"
    record.write_text(json.dumps(result, indent=1) + "\n")
    for path in (*written, record):
        console.print(f"wrote {path}", soft_wrap=True)
    return result


def _print(console: Console, title: str, first: str, rows: dict[str, dict[str, Any]]) -> None:
    table = Table(title=title, title_justify="left", title_style="bold")
    columns = {
        "steps": "steps",
        "evaluations": "evaluations",
        "residual": "residual",
        "status": "status",
        "gradient_error": "error",
    }
    shown = [key for key in columns if any(key in row for row in rows.values())]
    table.add_column(first, no_wrap=True)
    for key in shown:
        table.add_column(columns[key], justify="left" if key == "status" else "right")
    for name, row in rows.items():
        table.add_row(name, *(_cell(row.get(key)) for key in shown))
    if any(row.get("status") == "MAX_STEPS" for row in rows.values()):
        table.caption = "MAX_STEPS: the series was truncated, as asked"
        table.caption_justify = "left"
    console.print(table, "")


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.1e}" if isinstance(value, float) else str(value)


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in ("implicit-rnn", "jax", "jaxlib", "numpy"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return versions
