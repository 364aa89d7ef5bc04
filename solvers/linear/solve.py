"""`linear_solve`: a linear solve that can be differentiated, to any order and in both modes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import jax
import jax.numpy as jnp
from jax import lax

from solvers.info import Info, require_converged
from solvers.linear.base import Operator, SolverRecord
from solvers.linear.bicgstab import bicgstab
from solvers.linear.lsqr import LeastSquares
from solvers.mesh import agreed, vary_like
from solvers.programs import compiled
from solvers.settings import Settings
from solvers.space import Space, Tree, add, require_like, require_real, subtract, zeros_like

if TYPE_CHECKING:
    from solvers.adjoint.closure import Closed

OnFailure = Literal["best", "zero", "nan"]
Raising = Literal["nowhere", "transposed", "everywhere"]
Solver = SolverRecord | Callable[..., tuple[Tree, Info]]


def linear_solve(
    matvec: Operator,
    b: Tree,
    *,
    solver: Solver | str | None = None,
    x0: Tree | None = None,
    precond: Operator | None = None,
    on_failure: OnFailure = "best",
    throw: bool = False,
    unscaled: bool = False,
) -> tuple[Tree, Info]:
    """Solves `A x = b`; derivatives pass to `b` and to whatever `matvec` closes over.

    The derivative is that of the exact solution, `dx = A^-1 (db - dA x)`, computed by the same
    solver; reverse mode solves with `A^T`, preconditioned by the transpose of `precond`. Several
    right-hand sides are `jax.vmap` over `b`; what `matvec` closes over is then shared.

    Args:
      matvec: `v -> A v`, linear, on pytrees like `b`. For `lsqr`, whose `A` need not be square, on
        pytrees like `x0`.
      b: right-hand side.
      solver: any of `solvers.linear` or its name (default `bicgstab`), or a function with the same
        signature.
      x0: where to start (for the solve itself; derivatives start from zero).
      precond: `v -> M v` with `M` close to the inverse of `A`. Not differentiated.
      on_failure: what to return where the solve fails: its best iterate, zeros, or NaN.
      throw: raise an error if the solve, or that of its gradient, fails, also out of `jit` and
        `vmap`.
      unscaled: `A` is of order one (`I - J`): spare the product that tells its scale.

    >>> x, info = linear_solve(lambda v: 2.0 * v, jnp.ones(3))
    >>> print(x, bool(info.converged))
    [0.5 0.5 0.5] True
    """
    solver = resolve(solver)
    check_policy(on_failure)
    b = require_real(b, "b")
    if x0 is not None:
        x0 = lax.stop_gradient(require_real(x0, "x0"))
    if isinstance(solver, SolverRecord) and solver.closed:
        x, info = _compiled(matvec, b, solver, x0, precond, on_failure, unscaled, throw)
    else:
        raising: Raising = "transposed" if throw else "nowhere"
        x, info = solve_system(matvec, b, solver, x0, precond, on_failure, unscaled, raising)
    if throw:
        x, info = require_converged(judged(solver, info), (x, info), "linear solves")
    return x, info


@dataclasses.dataclass(frozen=True, eq=False)
class Spec(Settings):
    """The static part of a linear solve."""

    matvec: Closed
    precond: Closed | None
    solver: Solver
    on_failure: OnFailure
    unscaled: bool
    throw: bool


def _compiled(
    matvec: Operator,
    b: Tree,
    solver: Solver,
    x0: Tree | None,
    precond: Operator | None,
    on_failure: OnFailure,
    unscaled: bool,
    throw: bool,
) -> tuple[Tree, Info]:
    """`solve_system`, of which eager calls that are alike share one program."""
    from solvers.adjoint.closure import close

    def closed(b: Tree, x0: Tree | None) -> tuple:
        of_inverse = (None, []) if precond is None else close(precond, b)
        return *close(matvec, b if x0 is None else x0), *of_inverse

    program, constants, inverse, rest = closed(b, x0)
    if jax.sharding.get_abstract_mesh().manual_axes:
        b, x0 = vary_like((b, x0), (b, x0, constants, rest))
        program, constants, inverse, rest = closed(b, x0)
        constants, rest = vary_like((constants, rest), b)
    return _run(Spec(program, inverse, solver, on_failure, unscaled, throw), constants, rest, b, x0)


@compiled
def _run(spec: Spec, constants: list, rest: list, b: Tree, x0: Tree | None) -> tuple[Tree, Info]:
    def matvec(vector: Tree) -> Tree:
        return spec.matvec(constants, vector)

    inverse = spec.precond
    precond = None if inverse is None else lambda vector: inverse(rest, vector)
    raising: Raising = "transposed" if spec.throw else "nowhere"
    return solve_system(
        matvec, b, spec.solver, x0, precond, spec.on_failure, spec.unscaled, raising
    )


def solve_system(
    matvec: Operator,
    b: Tree,
    solver: Any,
    x0: Tree | None = None,
    precond: Operator | None = None,
    on_failure: OnFailure = "best",
    unscaled: bool = False,
    raising: Raising = "nowhere",
    space: Space = Space(),  # noqa: B008
) -> tuple[Tree, Info]:
    """`linear_solve`, for programs that are compiled already.

    Args:
      raising: where a failure is an error: nowhere, in the solve that the gradient asks for, or
        there and here. Not all that differentiates a solve can be shown its status.
    """
    if isinstance(solver, LeastSquares) and solver.least(b, x0):
        x, info = _least_squares(matvec, b, solver, x0, precond)
        return apply_policy(x, solver.failed(info), on_failure), info
    require_like(jax.eval_shape(matvec, b), b, "matvec(b)", "b")
    return _square(matvec, b, solver, x0, precond, on_failure, unscaled, raising, space)


def _square(
    matvec: Operator,
    b: Tree,
    solver: Any,
    x0: Tree | None,
    precond: Operator | None,
    on_failure: str,
    unscaled: bool,
    raising: Raising,
    space: Space,
) -> tuple[Tree, Info]:
    ours = isinstance(solver, SolverRecord)
    options: dict[str, Any] = {"unscaled": True} if unscaled and ours else {}
    if space.mesh_axis is not None:
        base = solver.func if isinstance(solver, partial) else solver  # Newton's sets a tolerance
        if not isinstance(base, SolverRecord) or not base.spreads:
            raise ValueError("a system spread over a mesh needs an iterative solver: bicgstab()")
        options["space"] = space
    if precond is not None:
        precond = _frozen(precond, b)

    def solved(
        matvec: Operator, b: Tree, x0: Tree | None, precond: Any, throw: bool
    ) -> tuple[Tree, Info]:
        x, info = solver(matvec, b, x0, precond, **options)
        if throw:
            x = require_converged(judged(solver, info), x, "linear solves of a derivative")
        x = apply_policy(x, failed(solver, info), on_failure)
        # All that a linear solve returns has to vary alike.
        return x, info if space.mesh_axis is None else vary_like(info, x)

    def forward(matvec: Operator, b: Tree) -> tuple[Tree, Info]:
        return solved(matvec, b, x0, precond, raising == "everywhere")

    def transposed(matvec: Operator, b: Tree) -> tuple[Tree, Info]:
        precond_t = precond and (lambda v: jax.linear_transpose(precond, b)(v)[0])
        x, info = solved(matvec, b, None, precond_t, raising != "nowhere")
        return (pass_on(x, b) if on_failure == "best" else x), info

    # The matrix may give back what it was given in another precision.
    same = jax.tree.map(lambda leaf: leaf.dtype, b)
    x, info = lax.custom_linear_solve(
        lambda v: jax.tree.map(lambda leaf, dtype: leaf.astype(dtype), matvec(v), same),
        b,
        forward,
        transposed,
        has_aux=True,
    )
    return x, agreed(info, space.mesh_axis)


def _least_squares(
    matvec: Operator, b: Tree, solver: LeastSquares, x0: Tree | None, precond: Operator | None
) -> tuple[Tree, Info]:
    """Found by `solver`; its derivative is that of the equations it solves, at full rank:

    (A^T A + damp^2) x = A^T b;    for fewer rows than columns, undamped,
    A (x0 + A^T y) = b,    x = x0 + A^T y.
    """
    from solvers.adjoint import tangent
    from solvers.adjoint.given import implicit_diff

    like = b if x0 is None else require_real(x0, "x0")
    frozen = _frozen(matvec, like)
    x, info = solver(frozen, lax.stop_gradient(b), x0, precond)
    x = lax.stop_gradient(x)

    def back(image: Tree) -> Tree:
        return jax.linear_transpose(matvec, like)(image)[0]

    def normal(_: None, x: Tree) -> Tree:
        excess = subtract(matvec(x), b)
        return jax.tree.map(lambda g, leaf: g + solver.damp**2 * leaf, back(excess), x)

    def of_rows(_: None, y: Tree) -> Tree:
        return subtract(matvec(add(like, back(y))), b)

    settings = solver.rtol, solver.atol, solver.max_steps
    adjoint = tangent(LeastSquares(solver.method, *settings))
    rows, columns = (sum(leaf.size for leaf in jax.tree.leaves(tree)) for tree in (b, like))
    if solver.damp or rows >= columns:
        return implicit_diff(normal, None, x, kind="root", adjoint=adjoint)[0], info
    transpose = lambda v: jax.linear_transpose(frozen, like)(v)[0]  # noqa: E731
    y, _ = solver(transpose, subtract(x, like), zeros_like(b))
    y, _ = implicit_diff(of_rows, None, y, kind="root", adjoint=adjoint)
    move = back(y)
    return add(x, subtract(move, lax.stop_gradient(move))), info


def resolve(solver: Solver | str | None) -> Any:
    """A solver given as itself or by name; `bicgstab()` if not given."""
    from solvers.linear import SOLVERS

    if solver is None:
        return bicgstab()
    if not isinstance(solver, str):
        if not callable(solver):
            raise TypeError(
                "a linear solver is a record of solvers.linear, its name, or a function "
                f"solve(matvec, b, x0, precond); got {type(solver).__name__}"
            )
        return solver
    if solver not in SOLVERS:
        raise ValueError(f"unknown linear solver {solver!r}; choose from {sorted(SOLVERS)}")
    if solver == "neumann":
        raise ValueError("the solver 'neumann' needs its number of terms: neumann(steps)")
    return SOLVERS[solver]()


def failed(solver: Any, info: Info) -> jax.Array:
    """Whether a solve is of no use, by the solver's own judgement where it has one."""
    return solver.failed(info) if isinstance(solver, SolverRecord) else ~info.converged


def judged(solver: Any, info: Info) -> Info:
    """`info` for those who ask for convergence: a series cut off as it was asked to has it."""
    return info._replace(status=jnp.where(failed(solver, info), info.status, 0))


def check_policy(on_failure: str) -> None:
    """Refuses an unknown failure policy."""
    if on_failure not in ("best", "zero", "nan"):
        raise ValueError(f'on_failure must be "best", "zero" or "nan", got {on_failure!r}')


def apply_policy(x: Tree, bad: jax.Array, on_failure: str, spread: Callable | None = None) -> Tree:
    """`x`, or its replacement where the solve was `bad`."""
    if on_failure == "best":
        return x
    fill = 0.0 if on_failure == "zero" else jnp.nan
    place = spread or (lambda numbers, leaf: numbers)
    return jax.tree.map(
        lambda leaf: jnp.where(place(bad, leaf), jnp.asarray(fill, leaf.dtype), leaf), x
    )


def pass_on(w: Tree, cotangent: Tree) -> Tree:
    """`w`, and NaN where the cotangent is not finite: that is no failure of a backward solve.

    A linear function of both, as transposition asks.
    """
    return add(w, jax.tree.map(lambda leaf: 0 * leaf, cotangent))


def _frozen(function: Operator, example: Tree) -> Operator:
    """`function` with everything it closes over held constant under differentiation."""
    from solvers.adjoint.closure import close

    closed, constants = close(function, example)
    constants = lax.stop_gradient(constants)
    return lambda vector: closed(constants, vector)
