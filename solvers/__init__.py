"""Solvers for equations on pytrees, and the adjoints that carry gradients through them.

`fixed_point` solves `x = f(theta, x)`, `linear_solve` solves `A x = b`; both work on one problem,
and `jax.vmap` makes the batch. Nothing here knows of networks.
"""

from solvers import adjoint, bands, batch, diagnose, linear, penalties
from solvers.adjoint import adjoint_probe
from solvers.bands import Bands
from solvers.batch import compacted, race
from solvers.fixed_point import (
    METHODS,
    Cascade,
    Stage,
    anderson,
    auto,
    banded,
    broyden,
    newton,
    picard,
    precondition,
    recurrence,
)
from solvers.fixed_point.solve import fixed_point
from solvers.info import Info, SolveError, Status, check, explain
from solvers.linear import LinearSolver, linear_solve
from solvers.lockstep import Rescue, Sweeps, lockstep

__all__ = [
    "METHODS",
    "Bands",
    "Cascade",
    "Info",
    "LinearSolver",
    "Rescue",
    "SolveError",
    "Stage",
    "Status",
    "Sweeps",
    "adjoint",
    "adjoint_probe",
    "anderson",
    "auto",
    "banded",
    "bands",
    "batch",
    "broyden",
    "check",
    "compacted",
    "diagnose",
    "explain",
    "fixed_point",
    "linear",
    "linear_solve",
    "lockstep",
    "newton",
    "penalties",
    "picard",
    "precondition",
    "race",
    "recurrence",
]
