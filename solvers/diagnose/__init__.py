"""What a map looks like to a solver at one point, and how far a gradient can be trusted.

With `J = df/dx`: the spectral radius says whether plain iteration converges, `||J||_2` whether it
does so from the first step, and the condition of `I - J` how much a gradient is worth. `report`
puts it in words. Nothing here is differentiated: `solvers.penalties` has the terms for a loss.
"""

from solvers.diagnose.measure import (
    Certificate,
    Condition,
    certificate,
    condition,
    jacobian_norm,
    spectral_radius,
)
from solvers.diagnose.report import report

__all__ = [
    "Certificate",
    "Condition",
    "certificate",
    "condition",
    "jacobian_norm",
    "report",
    "spectral_radius",
]
