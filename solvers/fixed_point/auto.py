"""`auto`: a cheap method first, a safeguarded Newton for the examples that need it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from solvers.bands import Bands
from solvers.fixed_point.anderson import Anderson
from solvers.fixed_point.banded import Banded, Sweep, precondition
from solvers.fixed_point.base import Cascade, Stage
from solvers.fixed_point.newton import Newton
from solvers.settings import require_count
from solvers.space import Tree


def auto(
    bands: Callable[[Any, Tree], Bands] | None = None,
    cheap_steps: int = 30,
    *,
    sweep: Sweep | None = None,
    mesh_axis: str | None = None,
) -> Cascade:
    """The cascade that serves when nothing is known of the map.

    1. `cheap_steps` accelerated steps of `banded` (by `sweep`, if given), or of `anderson(5)`
       without bands: one evaluation each, and enough for any map that contracts well.
    2. `newton` with line search, preconditioned by the bands where there are some, from the best
       iterate so far, for the examples that did not converge. It needs no contraction.

    Under `vmap` an example that the first stage solved takes no Newton step, and when all are
    solved the second stage costs nothing. `mesh_axis` is that of `fixed_point`.
    """
    require_count("cheap_steps", cheap_steps)
    first: Anderson | Banded = Anderson(5)
    if bands is not None:
        first = Banded(bands if sweep is None else None, sweep=sweep, accelerated=True)
    second = Newton(precond=None if bands is None else precondition(bands, mesh_axis))
    return Cascade((Stage(first, cheap_steps), Stage(second)))
