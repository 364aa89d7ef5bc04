"""Banded splitting for a whole batch in its own layout, forwards and backwards.

`jax.vmap` of a solve is right for every method, but it moves the batch to the front of every array,
and products with shared weights lose the shape in which they are fast. Here the map is evaluated on
`[time, batch, channels]` as it is; every example still has its own record: it stops, fails and
reports by itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from solvers import adjoint as adjoints
from solvers import iterate
from solvers.bands import splitting_inverse
from solvers.fixed_point.banded import Sweep, banded
from solvers.fixed_point.base import FixedPointProblem
from solvers.fixed_point.solve import tolerances
from solvers.info import Info, Status
from solvers.linear.base import LinearProblem, failed, power_of_two, truncated_status
from solvers.linear.richardson import richardson
from solvers.linear.solve import OnFailure, check_policy
from solvers.vectors import Geometry, Tree, Vector, epsilon, require_real, working_dtype


class Rescue(NamedTuple):
    """What to do with a batch in which some examples have not converged; None: nothing."""

    # theta, x, info
    forward: Callable[[Any, Tree, Info], tuple[Tree, Info]] | None = None
    # theta, x, cotangent, w, info
    backward: Callable[[Any, Tree, Tree, Tree, Info], tuple[Tree, Info]] | None = None


@dataclasses.dataclass(frozen=True)
class Sweeps:
    """The backward solve by sweeps with the transposed bands.

    Attributes:
      rtol: tolerance.
      steps: take so many sweeps instead (a truncated banded Neumann series). It fails where what is
        left grows from sweep to sweep. Of three and more the residual that is reported is the one
        before the last sweep: it costs no product of its own.
      max_steps: limit, if not truncated.
      on_failure: what an example whose solve fails gets: its best iterate, zero, or NaN.
    """

    rtol: float | None = None
    steps: int | None = None
    max_steps: int = 200
    on_failure: OnFailure = "best"

    @property
    def truncated(self) -> bool:
        return self.steps is not None

    def __post_init__(self) -> None:
        check_policy(self.on_failure)
        if self.steps is not None and self.steps < 1:
            raise ValueError(f"steps must be at least 1, got {self.steps}")


def lockstep(
    sweep: Sweep,
    theta: Any,
    x0: Tree,
    *,
    backward: Sweeps | None = None,
    rescue: Rescue = Rescue(),  # noqa: B008
    accelerated: bool = True,
    free_sweeps: bool = False,
    rtol: float | jax.Array | None = None,
    atol: float | jax.Array | None = None,
    max_steps: int = 200,
    probe: Info | None = None,
) -> tuple[Tree, Info]:
    """Solves `x = f(theta, x)` for a batch by banded splitting.

    Args:
      sweep: `(theta, x) -> (f(theta, x), Bands)` for the whole batch; no example may depend on
        another.
      theta: parameters, any pytree.
      x0: starts, each leaf `[time, batch, channels]`.
      backward: settings of the backward solve.
      rescue: takes over where examples have not converged after `max_steps` sweeps (or after those
        of the backward solve, unless it is truncated). Costs nothing when all have.
      accelerated: sweeps with secant steps (`solvers.banded`), in both directions.
      free_sweeps: go on by the two sweeps that cost nothing: that of the iterate which met the
        tolerance is known as soon as its residual is, and the evaluation through which gradients
        pass is one more. Both are counted as steps. What is reported is the residual before the
        last one; gradients are those at the point where it is measured. For training, with a
        loose tolerance.
      rtol, atol, max_steps: as for `fixed_point`, per example.
      probe: `solvers.adjoint_probe((batch,))`.

    Returns:
      Values like `x0`, and an `Info` of arrays `[batch]`.
    """
    x0 = require_real(x0, "x0")
    settings = backward or Sweeps()
    space = _Space.of(x0)

    def forward(
        f: Callable, both: Any, x0: Tree, tolerances: tuple, max_steps: int
    ) -> tuple[Tree, Info]:
        theta = both[0]
        problem = FixedPointProblem(f, theta, space.unravel, space.ravel, space.geometry)
        stop = iterate.Stop(tolerances[0], tolerances[1], max_steps)
        method = banded(sweep=sweep, accelerated=accelerated)
        x, info = iterate.run_batch(
            iterate.Task(method, problem, space.ravel(x0), stop), space.spread, free_sweeps
        )
        result = space.unravel(x), info
        follow = rescue.forward
        if follow is None:
            return result
        return iterate.unless(
            jnp.all(info.converged), lambda before: follow(theta, *before), result
        )

    def transposed(
        f: Callable, both: Any, x: Tree, cotangent: Tree, _: adjoints.Adjoint
    ) -> tuple[Tree, Info]:
        _, pull = jax.vjp(lambda x: f(both, x), x)
        theta, frozen = lax.stop_gradient((both[0], x))
        inverse = splitting_inverse(sweep(theta, frozen)[1])

        def matvec(w: Tree) -> Tree:
            return jax.tree.map(jnp.subtract, w, pull(w)[0])

        def undo(w: Tree) -> Tree:
            return jax.linear_transpose(inverse, x)(w)[0]

        def solve(matvec: Callable, rhs: Tree) -> tuple[Tree, Info]:
            w, info = _solve(matvec, undo, rhs, space, settings, accelerated)
            follow = rescue.backward
            if follow is not None and not settings.truncated:
                w, info = iterate.unless(
                    jnp.all(info.converged),
                    lambda before: follow(theta, frozen, rhs, *before),
                    (w, info),
                )
            return _apply_policy(w, info, settings, space), info

        def solve_untransposed(matvec: Callable, rhs: Tree) -> tuple[Tree, Info]:
            return _solve(matvec, inverse, rhs, space, settings, accelerated)

        return lax.custom_linear_solve(matvec, cotangent, solve, solve_untransposed, has_aux=True)

    def finish(theta: Any, x: Tree, image: Tree, info: Info) -> tuple[Tree, Info]:
        at, gap = space.ravel(x), space.ravel(image) - space.ravel(x)
        scale = jnp.maximum(space.norm(at), space.norm(at + gap))
        step = space.ravel(splitting_inverse(sweep(theta, x)[1])(space.unravel(gap)))
        usable = info.converged & jnp.isfinite(space.norm(step))
        residual = space.norm(gap) / jnp.where(scale > 0, scale, 1)
        info = info._replace(
            steps=info.steps + jnp.where(info.converged, 1, 0) + usable,
            residual=jnp.where(usable, residual, info.residual),
            evaluations=info.evaluations + 1,
        )
        return space.unravel(at + jnp.where(space.spread(usable), step, 0)), info

    return adjoints.differentiate(
        forward,
        lambda theta, x: sweep(theta, x)[0],
        theta,
        x0,
        adjoint=adjoints.Adjoint("sweeps", "reverse"),
        tolerances=tolerances(x0, rtol, atol),
        max_steps=max_steps,
        probe=probe,
        transposed=transposed,
        finish=finish if free_sweeps else None,
    )


class _Space(NamedTuple):
    """Trees of leaves `[time, batch, channels]` as one array, and norms per example."""

    structure: Any
    widths: tuple[int, ...]
    dtypes: tuple
    dtype: Any

    @classmethod
    def of(cls, x0: Tree) -> _Space:
        leaves, structure = jax.tree.flatten(x0)
        shapes = {leaf.shape[:2] for leaf in leaves}
        if len(shapes) != 1 or any(leaf.ndim != 3 for leaf in leaves):
            raise ValueError(
                "x0 needs leaves [time, batch, channels], got shapes "
                f"{[leaf.shape for leaf in leaves]}"
            )
        widths, dtypes = zip(*((leaf.shape[2], leaf.dtype) for leaf in leaves), strict=True)
        return cls(structure, widths, dtypes, working_dtype(x0))

    def ravel(self, tree: Tree) -> Vector:
        leaves = [leaf.astype(self.dtype) for leaf in jax.tree.leaves(tree)]
        return leaves[0] if len(leaves) == 1 else jnp.concatenate(leaves, axis=-1)

    def unravel(self, vector: Vector) -> Tree:
        parts = lax.split(vector, self.widths, axis=2) if len(self.widths) > 1 else [vector]
        leaves = [part.astype(dtype) for part, dtype in zip(parts, self.dtypes, strict=True)]
        return jax.tree.unflatten(self.structure, leaves)

    @property
    def geometry(self) -> Geometry:
        return Geometry(
            lambda u, v: jnp.sum(u * v, axis=(0, 2)),
            lambda number, vector: self.spread(number) * vector,
        )

    @staticmethod
    def spread(numbers: jax.Array) -> jax.Array:
        """Numbers `[batch]` beside vectors `[time, batch, channels]`."""
        return numbers[None, :, None]

    def norm(self, vector: Vector) -> jax.Array:
        return self.geometry.norm(vector)


def _solve(
    matvec: Callable,
    inverse: Callable,
    rhs: Tree,
    space: _Space,
    settings: Sweeps,
    accelerated: bool,
) -> tuple[Tree, Info]:
    """`matvec(w) = rhs` by sweeps `w <- w + inverse(rhs - matvec(w))`."""

    def on_vectors(function: Callable) -> Callable[[Vector], Vector]:
        return lambda vector: space.ravel(function(space.unravel(vector)))

    a, m = on_vectors(matvec), on_vectors(inverse)
    target = space.ravel(rhs)
    unit = space.spread(jax.vmap(power_of_two, in_axes=1)(target))
    target = target / unit
    size = space.norm(target)
    rtol = epsilon(rhs) ** (2 / 3) if settings.rtol is None else settings.rtol
    if settings.steps is not None:
        w, lefts = m(target), [target]
        for _ in range(settings.steps - 1):
            lefts.append(target - a(w))
            w = w + m(lefts[-1])
        short = settings.steps < 3
        if short:
            lefts.append(target - a(w))
        before, residual = (space.norm(left) / jnp.where(size > 0, size, 1) for left in lefts[-2:])
        steps = jnp.full(size.shape, settings.steps, jnp.int32)
        # What is left may exceed what was there at first and still be on its way down.
        growing = residual / jnp.maximum(before, 1)
        status = truncated_status(jnp.zeros_like(steps), growing, 0.0)
        status = jnp.where(residual <= rtol, int(Status.CONVERGED), status)
        info = Info(steps, residual, status, steps if short else steps - 1)
        return space.unravel(unit * w), info
    problem = LinearProblem(lambda y: a(m(y)), m, target, size, space.geometry)
    stop = iterate.Stop(rtol, 0.0, settings.max_steps)
    task = iterate.Task(
        richardson(accelerated=accelerated).method, problem, jnp.zeros_like(target), stop
    )
    y, info = iterate.run_batch(task, space.spread)
    return space.unravel(unit * m(y)), info


def _apply_policy(w: Tree, info: Info, settings: Sweeps, space: _Space) -> Tree:
    if settings.on_failure == "best":
        return w
    fill = 0.0 if settings.on_failure == "zero" else jnp.nan
    bad = failed(settings, info)
    return jax.tree.map(
        lambda leaf: jnp.where(space.spread(bad), jnp.asarray(fill, leaf.dtype), leaf), w
    )
