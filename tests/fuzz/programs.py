"""From the static part of a case to a function of its arrays."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import solvers
from solvers import adjoint, linear
from tests.fuzz.cases import Case, Program
from tests.fuzz.maps import CHANNELS, TIME, apply, bands, couplings, flat, shaped

Args = dict[str, Any]
_STARTS = (1.0, -1.0, 2.0)  # of a race, as multiples of the drawn one


def make_linear(name: str) -> Any:
    if name == "neumann":
        return linear.neumann(5)
    if name == "cascade":
        return linear.cascade(linear.richardson(max_steps=5), linear.gmres())
    return linear.SOLVERS[name]()


def make_adjoint(name: str, on_failure: str) -> adjoint.Adjoint:
    kind, _, setting = name.partition(":")
    settings: dict[str, Any] = {"on_failure": on_failure}
    if kind in ("implicit", "tangent") and setting != "forward":
        return getattr(adjoint, kind)(make_linear(setting), **settings)
    if setting == "forward":
        settings["precond"] = "forward"
    elif setting == "checkpoint":
        settings["checkpoint"] = 4
    elif setting == "rtol":
        settings["rtol"] = 1e-4
    elif setting == "uniform":
        settings.update(steps=4, start="uniform")
    elif setting:
        settings["steps"] = int(setting)
    return getattr(adjoint, kind)(**settings)


def make_method(program: Program, args: Args, of_theta: Callable) -> Any:
    """The method; `of_theta(theta)` gives weight and bias of the map."""
    name, _, setting = program.method.partition(":")
    act, scale = program.act, args["scale"]

    def found(what: Callable, theta: Any, x: Any) -> Any:
        return what(act, *of_theta(theta), scale, flat("time", x))

    if name == "bracket":
        return solvers.bracket(-20 * scale, 20 * scale)
    if name == "recurrence":

        def sweep(theta: Any, x: Any) -> tuple:
            image = shaped("time", found(apply, theta, x))
            return image, found(couplings, theta, x)

        return solvers.recurrence(sweep)
    in_bands = functools.partial(found, bands)
    if name == "banded":
        return solvers.banded(in_bands, accelerated=setting == "accelerated")
    if setting == "bands":
        return solvers.auto(in_bands)
    if name == "newton" and setting:
        return solvers.newton(make_linear(setting))
    if setting:
        return solvers.picard(float(setting))
    return name


def solve(program: Program, args: Args, weight: Any, bias: Any, start: Any, probe: Any) -> tuple:
    """One solve: the ravelled value and its `Info`."""
    options = _options(program, args, probe)
    scale, units, shape = args["scale"], args["units"], program.shape
    theta, of_theta = _closure(program.closure, weight, bias)

    def f(theta: Any, x: Any) -> Any:
        return shaped(shape, apply(program.act, *of_theta(theta), scale, flat(shape, x)))

    def g(theta: Any, x: Any) -> Any:
        return jax.tree.map(lambda a, b: units * (a - b), x, f(theta, x))

    x0 = shaped(shape, start)
    if program.kind == "linear_solve":
        x, info = solvers.linear_solve(
            lambda v: shaped(shape, units * (flat(shape, v) - flat(shape, v) @ weight.T)),
            shaped(shape, bias),
            solver=make_linear(program.linear),
            on_failure=program.on_failure,
            throw=program.throw,
            x0=x0 if program.has_rtol else None,
        )
        return flat(shape, x), info
    if program.kind == "implicit_diff":
        call = g if program.option == "root" else f
        x, info = solvers.implicit_diff(call, theta, x0, kind=program.option, **options)
        return flat(shape, x), info
    options.update(method=make_method(program, args, of_theta), max_steps=program.max_steps)
    if program.kind == "fixed_point":
        x, info = solvers.fixed_point(f, theta, x0, **options)
    elif program.kind == "root":
        x, info = solvers.root(g, theta, x0, **options)
    else:
        starts = shaped(shape, jnp.stack([m * start for m in _STARTS]))
        x, info = solvers.race(f, theta, starts, **options)
    return flat(shape, x), info


def solve_batch(
    program: Program, args: Args, weight: Any, bias: Any, start: Any, probe: Any
) -> tuple:
    """A batch by `compacted` or `lockstep`: values `[batch, n]` and their `Info`."""
    options = _options(program, args, probe)
    options["max_steps"] = program.max_steps
    scale, shape = args["scale"], program.shape
    if program.kind == "compacted":
        theta, of_theta = ((weight, bias), lambda theta: theta)
        axes: Any = (None, 0)
        if program.closure != "theta":
            theta, of_theta, axes = bias, lambda theta: (weight, theta), 0
        x, info = solvers.compacted(
            lambda theta, x: shaped(
                shape, apply(program.act, *of_theta(theta), scale, flat(shape, x))
            ),
            theta,
            shaped(shape, start),
            in_axes=axes,
            method=make_method(program, args, of_theta),
            **options,
        )
        return flat(shape, x), info

    def wide(vectors: jax.Array) -> jax.Array:  # [batch, n] -> [time, batch, channels]
        return jnp.moveaxis(vectors.reshape(-1, TIME, CHANNELS), 0, 1)

    def narrow(x: jax.Array) -> jax.Array:
        return jnp.moveaxis(x, 1, 0).reshape(-1, TIME * CHANNELS)

    def sweep(theta: Any, x: jax.Array) -> tuple:
        at = (program.act, theta[0], narrow(theta[1]), scale, narrow(x))
        found = jax.tree.map(lambda band: jnp.moveaxis(band, 0, 1), bands(*at))
        return wide(apply(*at)), found

    options.pop("adjoint")
    methods = {"picard": solvers.picard, "anderson": solvers.anderson, "broyden": solvers.broyden}
    method = solvers.newton() if program.method == "newton" else None
    if program.method in methods:
        method = methods[program.method]()
    x, info = solvers.lockstep(
        sweep,
        (weight, wide(bias)),
        wide(start),
        in_axes=(None, 1) if program.option == "rescue" or program.on_failure == "zero" else None,
        method=method,
        rescue=program.option == "rescue",
        free_sweeps=program.option == "free",
        backward=solvers.Sweeps(
            on_failure=program.on_failure, steps=3 if program.option == "steps" else None
        ),
        **options,
    )
    return narrow(x), info


def _options(program: Program, args: Args, probe: Any) -> dict[str, Any]:
    options: dict[str, Any] = {
        "rtol": args["rtol"] if program.has_rtol else None,
        "probe": probe,
        "throw": program.throw,
    }
    if program.adjoint:
        options["adjoint"] = make_adjoint(program.adjoint, program.on_failure)
    return options


def _closure(kind: str, weight: Any, bias: Any) -> tuple[Any, Callable]:
    if kind == "theta":
        return (weight, bias), lambda theta: theta
    if kind == "data":
        return weight, lambda theta: (theta, bias)
    return None, lambda theta: (weight, bias)


def has_probe(program: Program) -> bool:
    """Whether a gradient of this program can report to a probe."""
    return program.kind == "lockstep" or (
        program.kind != "linear_solve" and not program.adjoint.startswith("tangent")
    )


@functools.lru_cache(maxsize=64)
def build(program: Program) -> Callable[[Args], dict]:
    """`args -> results`, with the transforms of the program around its solve."""
    steps = program.transform.split("_")
    native = program.kind in ("compacted", "lockstep")
    one = solve_batch if native else solve
    call = functools.partial(one, program)

    def reported(info: Any) -> dict:
        return {"status": info.status, "residual": info.residual, "steps": info.steps}

    def values(args: Args) -> dict:
        def row(bias: Any, start: Any) -> tuple:
            return call(args, args["weight"], bias, start, None)

        x, info = (jax.vmap(row) if "vmap" in steps else row)(args["bias"], args["start"])
        return {"x": x, **reported(info)}

    def loss(weight: Any, bias: Any, probe: Any, args: Args, start: Any, cotangent: Any) -> tuple:
        x, info = call(args, weight, bias, start, probe)
        return jnp.sum(x * cotangent), (x, info)

    def gradients(args: Args) -> dict:
        batch = args["bias"].shape[:-1]
        probe = solvers.adjoint_probe(batch) if has_probe(program) else None
        wanted = (0, 1, 2) if probe is not None else (0, 1)
        rows = (args["start"], args["cotangent"])
        axes = (None, 0, None if probe is None else 0, None, 0, 0)
        function: Callable = loss
        if program.transform.endswith("grad_vmap"):

            def function(weight: Any, bias: Any, probe: Any, args: Args, *rows: Any) -> tuple:
                total, aux = jax.vmap(loss, axes)(weight, bias, probe, args, *rows)
                return jnp.sum(total), aux

        function = jax.grad(function, wanted, has_aux=True)
        if program.transform.endswith("vmap_grad"):
            function = jax.vmap(function, axes)
        bars, (x, info) = function(args["weight"], args["bias"], probe, args, *rows)
        results = {"x": x, **reported(info), "weight_bar": bars[0], "bias_bar": bars[1]}
        if probe is not None:
            results["backward"] = solvers.read_probe(bars[2]).status
        return results

    function = gradients if program.differentiated else values
    return jax.jit(function) if "jit" in steps else function


def run(case: Case) -> dict[str, np.ndarray]:
    """The results of a case, with a leading axis for the batch, in float64."""
    program, data = case.program, case.data
    dtype = jnp.dtype(program.dtype)
    rows = {name: getattr(data, name) for name in ("bias", "start", "cotangent")}
    if not program.batched:
        rows = {name: row[0] for name, row in rows.items()}
    shared = {"weight": data.weight, "scale": data.scale, "units": data.units}
    args = {name: jnp.asarray(value, dtype) for name, value in (shared | rows).items()}
    working = jnp.float32 if program.dtype == "bfloat16" else dtype
    args["rtol"] = jnp.asarray(data.rtol, working)
    results = {name: np.asarray(value) for name, value in build(program)(args).items()}
    for name, value in results.items():
        wide = value if value.dtype.kind == "i" else value.astype(np.float64)
        results[name] = wide if program.batched or name == "weight_bar" else wide[None]
    return results
