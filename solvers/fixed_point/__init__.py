"""Methods for `x = f(theta, x)`.

| method | evaluations a step | use it when |
| --- | --- | --- |
| `picard` | 1 | the map contracts strongly, or its own iterations are the model |
| `anderson` | 1 | the map contracts weakly; memory for `2 depth` states |
| `broyden` | 1 | as `anderson`, where differences are less regular |
| `banded` | 1 and a tridiagonal solve | the Jacobian is dominated by neighbours in time |
| `recurrence` | 1 and a linear recurrence | a row depends on the row before it alone |
| `newton` | several products | nothing contracts, or high accuracy is wanted |
| `bracket` | 1 | a scalar equation whose root lies between two points |
| `auto` | | nothing is known: cheap first, Newton for what is left |
"""

from collections.abc import Callable

from solvers.fixed_point.anderson import Anderson as anderson
from solvers.fixed_point.auto import auto
from solvers.fixed_point.banded import Banded as banded
from solvers.fixed_point.banded import precondition
from solvers.fixed_point.base import Cascade, FixedPointProblem, Point, Stage, evaluate
from solvers.fixed_point.broyden import Broyden as broyden
from solvers.fixed_point.newton import Newton as newton
from solvers.fixed_point.picard import Picard as picard
from solvers.fixed_point.recurrence import Recurrence as recurrence
from solvers.fixed_point.root import Bracket as bracket
from solvers.iterate import Method

METHODS: dict[str, Callable[..., Method | Cascade]] = {
    "picard": picard,
    "anderson": anderson,
    "broyden": broyden,
    "newton": newton,
    "auto": auto,
}
"""Methods by name; `banded`, `bracket` and `recurrence`, which need arguments, have none."""

__all__ = [
    "METHODS",
    "Cascade",
    "FixedPointProblem",
    "Point",
    "Stage",
    "auto",
    "banded",
    "bracket",
    "evaluate",
    "precondition",
    "recurrence",
    *METHODS,
]
