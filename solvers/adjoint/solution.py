"""From a solve and an adjoint to a differentiable program that is compiled once.

`solution` closes the map, the forward and the backward program over nothing, and runs them as one
function of arrays. Programs that are equal share it, so that an eager call of the same map, method
and shapes is compiled once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from solvers.adjoint import Adjoint
from solvers.adjoint.closure import Closed, Direct, Frame, Map, close_map, seal, shape_of
from solvers.info import Info, require_converged
from solvers.mesh import placed_like, settled, vary_like, vary_with
from solvers.programs import compiled
from solvers.settings import Settings
from solvers.space import Tree, Vector, cast_like, require_like, working


@dataclasses.dataclass(frozen=True, eq=False)
class Spec(Settings):
    """The static part of a differentiable solve.

    Attributes:
      f: the map on working precision.
      adjoint: its mode, policy and numbers of steps.
      forward: `(constants, operands, x0, tolerances) -> (x, Info, memory)`.
      backward: `(constants, operands, x, cotangent, status, memory) -> (w, Info)`; for the tangent
        mode `(constants, operands, x, rhs, memory) -> v`; for the last steps of the unrolled one
        what a point is worth, `(constants, operands, x0, x, tolerances) -> (residual, met)`.
      finish: `(constants, operands, x, f(x), Info) -> (x, Info)`: makes a better value of the
        evaluation that carries gradients, which are those at `x`.
      clean: `(operands, x, Info) -> (operands, x)`: for a batch, takes out what belongs to failed
        examples.
      throw: raise an error where a solve fails.
    """

    f: Any
    adjoint: Adjoint
    forward: Closed | Direct
    backward: Closed | Direct | None = None
    finish: Closed | Direct | None = None
    clean: Any = None
    throw: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class Judge(Settings):
    """`(operands, x0, x, tolerances) -> (residual, met)`, by the stop rule of a forward program."""

    forward: Any

    def __call__(self, operands: tuple, x0: Vector, x: Vector, tolerances: tuple) -> tuple:
        return self.forward.judged(operands, x0, x, tolerances)


def solution(
    f: Callable[[Any, Tree], Tree],
    theta: Any,
    x0: Tree,
    *,
    adjoint: Adjoint,
    forward: Callable[[Map], Settings],
    tolerances: tuple,
    probe: Info | None = None,
    backward: Callable[[Map], Settings] | None = None,
    finish: Callable[[Map], Settings] | None = None,
    clean: Callable[[Map], Settings] | None = None,
    lift: Callable[[Map], Any] | None = None,
    example: tuple[Any, Tree] | None = None,
    root: bool = False,
    names: tuple[str, str] = ("f(theta, x0)", "x0"),
    throw: bool = False,
    what: str = "solves",
    mesh_axis: str | None = None,
) -> tuple[Tree, Info]:
    """Runs a solve; its derivative is what `adjoint` says.

    Args:
      f: the map, on trees like `x0`; what it closes over is differentiated too.
      theta: its parameters; leaves that are no numbers are passed on as they are.
      x0: where to start.
      forward, backward, finish, clean: make the programs of a `Spec` for a closed map.
      tolerances: rtol and atol, which may be traced.
      probe: receives the report of the backward solve as its gradient.
      lift: makes of the map for one problem the one that the solution belongs to (a batch).
      example: parameters and a state for `f`, where these are not `theta` and `x0` (batches).
      root: the equation is `f(theta, x) = 0`, not `x = f(theta, x)`.
      names: of the image of the map and of what it has to be like, for messages.
      throw: raise an error where a solve fails; `what` failed, it says.
      mesh_axis: over which `x0` is spread.
    """
    if probe is not None and not isinstance(probe, Info):
        raise TypeError(f"probe must be solvers.adjoint_probe(), got {type(probe).__name__}")
    one_theta, one = (theta, x0) if example is None else example
    require_like(image := shape_of(f, one_theta, one), one, *names)
    if example is None:
        x0 = one = placed_like(x0, image)
    point, state = working(one), working(x0)

    def on_working(theta: Any, x: Vector) -> Vector:
        return cast_like(f(theta, cast_like(x, one)), point)

    if adjoint.key is not None and jax.sharding.get_abstract_mesh().manual_axes:
        raise ValueError(
            'rbp(start="uniform") draws one start for all devices of a shard_map: use start="zeros"'
        )
    point = settled(lambda x: on_working(one_theta, x), point)
    if adjoint.mode == "unroll" or adjoint.on_failure == "zero" or lift is not None:
        # These look at what belongs to every device before it is added up.
        theta, one_theta = (_vary_arrays(tree, point) for tree in (theta, one_theta))
    state = jax.tree.map(vary_with, state, point)
    tolerances = vary_like(jax.tree.map(jnp.asarray, tolerances), point, mesh_axis)
    closed, (_, constants) = close_map(on_working, one_theta, point, root)
    operands = (closed.frame.arrays(theta), constants)
    makers = Makers(forward, backward, finish, clean, lift)
    spec, extras = _spec(makers, closed, adjoint, throw, operands, state, point, tolerances)
    x, info = _run(spec, operands, state, tolerances, probe, extras)
    found = cast_like(x, one), info
    return require_converged(info, found, what) if throw else found


class Makers(NamedTuple):
    """Of the programs of a `Spec`, from a closed map."""

    forward: Callable[[Map], Any]
    backward: Callable[[Map], Settings] | None
    finish: Callable[[Map], Settings] | None
    clean: Callable[[Map], Settings] | None
    lift: Callable[[Map], Any] | None


def _spec(
    make: Makers,
    closed: Map,
    adjoint: Adjoint,
    throw: bool,
    operands: tuple,
    state: Vector,
    point: Vector,
    tolerances: tuple,
) -> tuple[Spec, tuple]:
    """The static part of a solve, and what its programs close over."""
    from solvers.adjoint.system import Backward, Tangent

    forward = make.forward(closed)
    ahead, ahead_extras = seal(forward, operands, state, tolerances)
    # What else there is to the adjoint is in the backward program.
    rule = dataclasses.replace(adjoint, linear=None, precond=None, key=None)
    spec = Spec(make.lift(closed) if make.lift else closed, rule, ahead, throw=throw)
    extras: list = [ahead_extras, [], []]
    if adjoint.mode == "unroll":
        if adjoint.steps is not None:
            judge, extras[1] = seal(Judge(forward), operands, state, point, tolerances)
            spec = dataclasses.replace(spec, backward=judge)
        return spec, tuple(extras)
    x, info, memory = _blank(ahead, ahead_extras, operands, state, tolerances)
    if adjoint.mode == "tangent":
        back, extras[1] = seal(Tangent(closed, adjoint, throw), operands, x, x, memory)
    else:
        record = make.backward(closed) if make.backward else Backward(closed, adjoint, throw)
        back, extras[1] = seal(record, operands, x, x, info.status, memory)
    spec = dataclasses.replace(spec, backward=back)
    if make.finish is not None:
        last, extras[2] = seal(make.finish(closed), operands, x, x, info)
        spec = dataclasses.replace(spec, finish=last)
    if make.clean is not None:
        spec = dataclasses.replace(spec, clean=make.clean(closed))
    return spec, tuple(extras)


def _vary_arrays(theta: Any, like: Vector) -> Any:
    if not jax.sharding.get_abstract_mesh().manual_axes:
        return theta
    frame = Frame(theta)
    arrays = [jnp.asarray(leaf) for leaf in frame.arrays(theta)]
    return frame.join(vary_like(arrays, like))


def _blank(function: Callable, *args: Any) -> Any:
    """What `function(*args)` looks like, to trace with."""
    traced, shapes = jax.make_jaxpr(function, return_shape=True)(*args)
    leaves, structure = jax.tree.flatten(shapes)
    types = traced.out_avals
    blanks = [vary_with(jnp.zeros(s.shape, s.dtype), t) for s, t in zip(leaves, types, strict=True)]
    return jax.tree.unflatten(structure, placed_like(blanks, types))


@compiled
def _run(
    spec: Spec, operands: tuple, x0: Vector, tolerances: tuple, probe: Info | None, extras: tuple
) -> tuple[Vector, Info]:
    from solvers.adjoint.reverse import reverse
    from solvers.adjoint.tangents import tangent
    from solvers.adjoint.unroll import unroll

    modes = {"reverse": reverse, "tangent": tangent, "unroll": unroll}
    return modes[spec.adjoint.mode](spec, operands, x0, tolerances, probe, extras)
