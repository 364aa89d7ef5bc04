"""Solvers for equations on pytrees, and the adjoints that carry gradients through them.

`fixed_point` solves `x = f(theta, x)`, `root` solves `g(theta, x) = 0`, `linear_solve` solves
`A x = b`; `implicit_diff` differentiates a solution found elsewhere. All work on one problem, and
`jax.vmap` makes the batch. Nothing here knows of networks.
"""

from solvers import adjoint, bands, batch, diagnose, linear, penalties
from solvers.adjoint import adjoint_probe, read_probe
from solvers.adjoint.given import implicit_diff
from solvers.bands import Bands
from solvers.batch import Sweeps, compacted, lockstep, race
from solvers.fixed_point import (
    METHODS,
    Cascade,
    Stage,
    anderson,
    auto,
    banded,
    bracket,
    broyden,
    newton,
    picard,
    precondition,
    recurrence,
)
from solvers.fixed_point.root import root
from solvers.fixed_point.solve import fixed_point
from solvers.info import Info, SolveError, Status, check, explain
from solvers.linear import LinearSolver, linear_solve

__all__ = [
    "METHODS",
    "Bands",
    "Cascade",
    "Info",
    "LinearSolver",
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
    "bracket",
    "broyden",
    "check",
    "compacted",
    "diagnose",
    "explain",
    "fixed_point",
    "implicit_diff",
    "linear",
    "linear_solve",
    "lockstep",
    "newton",
    "penalties",
    "picard",
    "precondition",
    "race",
    "read_probe",
    "recurrence",
    "root",
]
