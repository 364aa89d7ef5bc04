"""Back through iterations that were really made: all of them, or the last ones."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from solvers.adjoint.solution import Spec
from solvers.adjoint.system import as_gradient, no_gradient
from solvers.info import Info, Status, require_converged
from solvers.linear.solve import apply_policy
from solvers.mesh import settled, varying
from solvers.space import Space, Vector, epsilon
from solvers.verdict import of_remainder, relative, verdict

_SPACE = Space()


def unroll(
    spec: Spec, operands: tuple, x0: Vector, tolerances: tuple, probe: Info | None, extras: tuple
) -> tuple[Vector, Info]:
    """A solve that is differentiated step by step."""
    return _solve(spec, operands, x0, tolerances, extras, probe)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _solve(
    spec: Spec, operands: tuple, x0: Vector, tolerances: tuple, extras: tuple, probe: Info | None
) -> tuple[Vector, Info]:
    cut, info = _cut(spec, operands, x0, tolerances, extras)
    return _from_cut(spec, operands, x0, cut, info, tolerances, extras)


def _solve_forward(spec, operands, x0, tolerances, extras, probe):
    cut, before = _cut(spec, operands, x0, tolerances, extras)
    x, pull, info = jax.vjp(
        lambda operands, cut: _from_cut(spec, operands, x0, cut, before, tolerances, extras),
        operands,
        cut,
        has_aux=True,
    )
    return (x, info), (pull, info, x0, tolerances, extras, probe)


def _solve_backward(spec: Spec, saved: tuple, cotangents: tuple):
    pull, forward_info, x0, tolerances, extras, probe = saved
    operands_bar, cut_bar = pull(cotangents[0])
    # What has not yet been brought to the parameters arrives at the cut: the truncation error.
    residual = relative(_SPACE.norm(cut_bar), _SPACE.norm(cotangents[0]))
    status = of_remainder(residual, epsilon(cut_bar) ** (2 / 3))
    steps = spec.adjoint.steps
    taken = forward_info.steps if steps is None else jnp.full_like(forward_info.steps, steps)
    info = Info(taken, residual, status, taken)
    bad = (status == Status.NONFINITE) | (status == Status.DIVERGED)
    bad |= forward_info.status != Status.CONVERGED
    x0_bar = cut_bar if steps is None else no_gradient(x0)
    smooth, rest = _split(operands_bar, bad)
    smooth, x0_bar = apply_policy((smooth, x0_bar), bad, spec.adjoint.on_failure)
    if spec.throw:
        smooth = require_converged(
            info._replace(status=jnp.where(bad, status, 0)), smooth, "unrolled gradients"
        )
    nothing = (no_gradient(tolerances), no_gradient(extras))
    return rest(smooth), x0_bar, *nothing, as_gradient(info, probe)


_solve.defvjp(_solve_forward, _solve_backward)


def _split(tree: Any, bad: jax.Array) -> tuple[list, Any]:
    """The leaves of a cotangent that belong to this example, and the way back.

    Those of integers are no numbers; what all devices of a mesh share has been added up already.
    """
    leaves, structure = jax.tree.flatten(tree)
    own = [leaf.dtype != jax.dtypes.float0 and varying(bad) <= varying(leaf) for leaf in leaves]

    def back(chosen: list) -> Any:
        given = iter(chosen)
        mixed = [next(given) if mine else leaf for leaf, mine in zip(leaves, own, strict=True)]
        return jax.tree.unflatten(structure, mixed)

    return [leaf for leaf, mine in zip(leaves, own, strict=True) if mine], back


def _cut(spec: Spec, operands: tuple, x0: Vector, tolerances: tuple, extras: tuple) -> tuple:
    """Where the iterations that are differentiated begin, and what happened before."""
    if spec.adjoint.steps is None:
        return x0, None
    frozen = lax.stop_gradient((operands, x0, tolerances))
    x, info, _ = spec.forward(extras[0], *frozen)
    return lax.stop_gradient((x, info))


def _from_cut(
    spec: Spec,
    operands: tuple,
    x0: Vector,
    cut: Vector,
    info: Any,
    tolerances: tuple,
    extras: tuple,
) -> tuple[Vector, Info]:
    """The iterations that are differentiated."""
    if spec.adjoint.steps is None:
        x, info, _ = spec.forward(extras[0], operands, cut, tolerances)
        return x, info
    x = _applied(spec, operands, cut)
    assert spec.backward is not None
    residual, met = spec.backward(extras[1], *lax.stop_gradient((operands, x0, x)), tolerances)
    finite = jnp.isfinite(residual)
    status = verdict(
        finite=finite,
        met=met,
        stalled=info.status == Status.STALLED,
        diverged=info.status == Status.DIVERGED,
        broken=info.status == Status.BREAKDOWN,
    )
    steps = spec.adjoint.steps
    x = _SPACE.where(finite, x, cut)
    return x, info._replace(
        steps=info.steps + steps,
        residual=residual,
        status=status,
        evaluations=info.evaluations + steps + 1,
    )


def _applied(spec: Spec, operands: tuple, x: Vector) -> Vector:
    """The map, `steps` times."""
    steps, segment = spec.adjoint.steps, spec.adjoint.checkpoint
    assert steps is not None

    def body(x: Vector, number: jax.Array) -> tuple[Vector, None]:
        image = spec.f(operands, x)
        return _SPACE.where(number < steps, image, x) if segment else image, None

    x = settled(lambda x: spec.f(operands, x), x)
    if segment is None:
        return lax.scan(body, x, None, length=steps)[0]
    rows = jnp.arange(math.ceil(steps / segment) * segment).reshape(-1, segment)
    several = jax.checkpoint(lambda x, row: (lax.scan(body, x, row)[0], None))
    return lax.scan(several, x, rows)[0]
