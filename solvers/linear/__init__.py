"""Linear solvers from products alone: factories that return `solve(matvec, b, x0, precond)`.

| solver | products a step | use it when |
| --- | --- | --- |
| `neumann` | 1 | a fixed, small number of terms is the definition (Neumann-RBP) |
| `richardson` | 1 | `I - A` (or `I - A M`) contracts well: the cheapest step there is |
| `bicgstab` | 2 | the default: nonsymmetric, constant memory |
| `gmres` | 1 | `bicgstab` is erratic, and memory for `restart` vectors is there |
| `cgne` | 2 | indefinite or skew systems that are not ill-conditioned |
| `lsqr` | 2 | singular, ill-conditioned, damped or rectangular systems |
| `cg` | 1 | symmetric positive definite systems |
| `dense` | n in all | small systems: LU or QR of the matrix itself |
"""

from collections.abc import Callable

from solvers.linear.base import LinearProblem, LinearSolver
from solvers.linear.bicgstab import bicgstab
from solvers.linear.cascade import LinearCascade, cascade
from solvers.linear.cg import cg
from solvers.linear.cgne import cgne
from solvers.linear.dense import Dense, dense
from solvers.linear.gmres import gmres
from solvers.linear.lsqr import lsqr
from solvers.linear.neumann import neumann
from solvers.linear.richardson import richardson
from solvers.linear.solve import linear_solve, resolve

SOLVERS: dict[str, Callable[..., LinearSolver | Dense]] = {
    "neumann": neumann,
    "richardson": richardson,
    "bicgstab": bicgstab,
    "gmres": gmres,
    "cgne": cgne,
    "lsqr": lsqr,
    "cg": cg,
    "dense": dense,
}
"""Every linear solver by name, `name -> factory(**settings)`."""

__all__ = [
    "SOLVERS",
    "Dense",
    "LinearCascade",
    "LinearProblem",
    "LinearSolver",
    "cascade",
    "linear_solve",
    "resolve",
    *SOLVERS,
]
