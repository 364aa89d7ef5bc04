"""Our solvers and their peers in JAX, all as `solve(tolerance, *data) -> (value, evaluations)`.

A peer that is not installed is left out and named in `missing`.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import linear_call
from jax.scipy.sparse.linalg import bicgstab as jax_bicgstab
from jax.scipy.sparse.linalg import gmres as jax_gmres

import solvers
from benchmarks.contest import Contender, jax_contender
from benchmarks.problems import Equilibrium, LinearSystem

RESTART = 20
DEPTH = 5
MAX_STEPS = 500

missing: list[str] = []


def optional(name: str) -> ModuleType | None:
    """The module, or None where it is not installed."""
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message="JAXopt is no longer", category=DeprecationWarning
        )
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError:
            missing.append(name)
            return None


jaxopt, lineax, optimistix = (optional(name) for name in ("jaxopt", "lineax", "optimistix"))

if jaxopt is not None:
    from jaxopt import linear_solve as jaxopt_linear


def linear_contenders(method: str, system: LinearSystem) -> list[Contender]:
    """`method` is "bicgstab" or "gmres"; ours comes first."""

    def contender(name: str, solve_one: Callable, counted: bool = False) -> Contender:
        def one(tolerance: jax.Array, coefficients: tuple, b: jax.Array) -> tuple:
            return solve_one(lambda v: system.matvec(coefficients, v), b, tolerance)

        solve = jax.vmap(one, in_axes=(None, 0, 0)) if system.batched else one
        count = partial(_count_products, solve_one, system) if counted else None
        return jax_contender(name, solve, (system.coefficients, system.rhs), count)

    ours = getattr(solvers.linear, method)
    ours = (
        ours(max_steps=MAX_STEPS)
        if method == "bicgstab"
        else ours(max_steps=MAX_STEPS, restart=RESTART)
    )

    def with_ours(matvec: Callable, b: jax.Array, tolerance: jax.Array) -> tuple:
        x, info = ours(matvec, b, rtol=tolerance)
        return x, info.evaluations

    def with_jax(matvec: Callable, b: jax.Array, tolerance: jax.Array, **options: Any) -> tuple:
        solve = jax_bicgstab if method == "bicgstab" else partial(jax_gmres, restart=RESTART)
        return solve(matvec, b, tol=tolerance, maxiter=MAX_STEPS, **options)[0], None

    def with_lineax(matvec: Callable, b: jax.Array, tolerance: jax.Array) -> tuple:
        assert lineax is not None
        # ||b|| is 1, so the absolute tolerance is the relative one, in the norm all others use.
        settings = {"rtol": 0.0, "atol": tolerance, "norm": lineax.internal.two_norm}
        if method == "bicgstab":
            solver = lineax.BiCGStab(**settings, max_steps=MAX_STEPS)
        else:
            solver = lineax.GMRES(**settings, max_steps=MAX_STEPS, restart=RESTART)
        operator = lineax.FunctionLinearOperator(matvec, jax.eval_shape(lambda: b))
        solution = lineax.linear_solve(operator, b, solver, throw=False)
        steps = solution.stats["num_steps"]
        products = 1 + 2 * steps if method == "bicgstab" else 1 + (steps - 1) * (RESTART + 1)
        return solution.value, products

    found = [contender(f"solvers {method}", with_ours)]
    if method == "bicgstab":
        found.append(contender("jax.scipy", with_jax, counted=True))
    else:
        found.append(contender("jax.scipy batched", with_jax, counted=True))
        incremental = partial(with_jax, solve_method="incremental")
        found.append(contender("jax.scipy incremental", incremental, counted=True))
    if lineax is not None:
        found.append(contender("lineax", with_lineax))
    return found


def _count_products(solve_one: Callable, system: LinearSystem, tolerance: float) -> int:
    """How many products the longest solve of the batch makes, by counting them on the host."""
    products = [0]

    def tick(v: np.ndarray) -> np.ndarray:
        products[0] += 1
        return np.zeros_like(v)

    def product(coefficients: tuple, v: jax.Array) -> jax.Array:
        shape = jax.ShapeDtypeStruct((), v.dtype)
        return system.matvec(coefficients, v) + jax.pure_callback(tick, shape, v.reshape(-1)[0])

    def transposed(coefficients: tuple, v: jax.Array) -> jax.Array:
        return jax.linear_transpose(lambda u: system.matvec(coefficients, u), v)(v)[0]

    @jax.jit
    def solve(coefficients: tuple, b: jax.Array) -> jax.Array:
        # jax.scipy transposes its matrix while tracing, and a callback has no transpose.
        counted = partial(linear_call, product, transposed, coefficients)
        return solve_one(counted, b, np.float32(tolerance))[0]

    most = 0
    for index in range(len(system.rhs) if system.batched else 1):
        data = (system.coefficients, system.rhs)
        if system.batched:
            data = jax.tree.map(lambda leaf, i=index: leaf[i], data)
        products[0] = 0
        jax.block_until_ready(solve(*data))
        most = max(most, products[0])
    return most


def equation(theta: tuple, x: jax.Array) -> jax.Array:
    weights, bias = theta
    return jnp.tanh(weights @ x + bias)


def fixed_point_contenders(method: str, problem: Equilibrium, gradient: bool) -> list[Contender]:
    """`method` is "picard" or "anderson"; ours comes first.

    A contender returns the solution, or with `gradient` the gradient with respect to the bias
    (that with respect to the weights is computed as well).
    """

    def contender(name: str, solve_one: Callable) -> Contender:
        forward = solve_one
        if problem.batched:
            forward = jax.vmap(solve_one, in_axes=(None, (None, 0), 0))

        def both(
            tolerance: jax.Array, theta: tuple, start: jax.Array, upstream: jax.Array
        ) -> tuple:
            def loss(theta: tuple) -> tuple:
                x, evaluations = forward(tolerance, theta, start)
                return jnp.vdot(x, upstream), evaluations

            return jax.grad(loss, has_aux=True)(theta)

        theta, start = (problem.weights, problem.bias), jnp.zeros_like(problem.bias)
        if gradient:
            return jax_contender(name, both, (theta, start, problem.cotangent))
        return jax_contender(name, forward, (theta, start))

    def with_ours(tolerance: jax.Array, theta: tuple, start: jax.Array) -> tuple:
        own = solvers.picard() if method == "picard" else solvers.anderson(DEPTH)
        backward = solvers.linear.bicgstab(max_steps=MAX_STEPS)
        x, info = solvers.fixed_point(
            equation,
            theta,
            start,
            method=own,
            rtol=tolerance,
            atol=0.0,
            max_steps=MAX_STEPS,
            adjoint=solvers.adjoint.implicit(partial(backward, rtol=tolerance)),
        )
        return x, info.evaluations

    def with_jaxopt(
        tolerance: jax.Array, theta: tuple, start: jax.Array, backward: Callable, **options: Any
    ) -> tuple:
        assert jaxopt is not None
        settings = {
            "tol": tolerance,
            "maxiter": MAX_STEPS,
            "implicit_diff_solve": partial(backward, tol=tolerance, maxiter=MAX_STEPS),
        }
        fun = lambda x, theta: equation(theta, x)  # noqa: E731
        if method == "picard":
            solver = jaxopt.FixedPointIteration(fun, **settings)
        else:
            solver = jaxopt.AndersonAcceleration(fun, history_size=DEPTH, **settings, **options)
        x, state = solver.run(start, theta)
        return x, state.num_fun_eval

    def with_optimistix(
        tolerance: jax.Array, theta: tuple, start: jax.Array, linear: Callable | None = None
    ) -> tuple:
        assert optimistix is not None
        solver = optimistix.FixedPointIteration(rtol=0.0, atol=tolerance, norm=optimistix.two_norm)
        adjoint = optimistix.ImplicitAdjoint()
        if linear is not None:
            adjoint = optimistix.ImplicitAdjoint(linear_solver=linear(tolerance))
        solution = optimistix.fixed_point(
            lambda x, theta: equation(theta, x),
            solver,
            start,
            theta,
            max_steps=MAX_STEPS,
            adjoint=adjoint,
            throw=False,
        )
        return solution.value, solution.stats["num_steps"]

    found = [contender(f"solvers {method}", with_ours)]
    if jaxopt is not None:
        normal, bicgstab = jaxopt_linear.solve_normal_cg, jaxopt_linear.solve_bicgstab
        if not gradient:
            found.append(contender("jaxopt", partial(with_jaxopt, backward=bicgstab)))
        else:
            found.append(contender("jaxopt, normal cg", partial(with_jaxopt, backward=normal)))
            found.append(contender("jaxopt, bicgstab", partial(with_jaxopt, backward=bicgstab)))
        if method == "anderson":
            # Its default regularisation is absolute and in the way near the solution.
            weak = partial(with_jaxopt, backward=bicgstab, ridge=1e-12)
            found.append(contender("jaxopt, ridge 1e-12", weak))
    if optimistix is not None and method == "picard":
        if not gradient:
            found.append(contender("optimistix", with_optimistix))
        else:
            if not problem.batched:  # 32 dense factorisations of n = 500 are no contest
                found.append(contender("optimistix, dense", with_optimistix))
            if lineax is not None:
                gmres = partial(
                    lineax.GMRES, 0.0, norm=lineax.internal.two_norm, max_steps=MAX_STEPS
                )
                found.append(contender("optimistix, gmres", partial(with_optimistix, linear=gmres)))
    return found
