"""Gradients against the implicit function theorem, and truncated ones against their series.

With `J = diag(e) W` at the value that was returned and `c` the cotangent, `bias_bar = e w` and
`weight_bar = (e w) x^T`, where `(I - J^T) w = c`, or `w` is the series that the adjoint defines.
For `g = r (x - f(x))` series are about `I - dg/dx = I - r (I - J)`, and `e` becomes `r e`.
"""

from __future__ import annotations

import numpy as np

from solvers import Status
from tests.fuzz.cases import Case, Program
from tests.fuzz.maps import Exact, exact, limits, working_eps

_GENERAL = ("bicgstab", "gmres", "lsqr", "dense", "cgne", "cascade")
_WELL = 100.0  # a condition number that every general solver copes with


def judge_gradients(case: Case, results: dict[str, np.ndarray]) -> tuple[str, str] | None:
    """What is wrong with the gradients, if anything."""
    program, data = case.program, case.data
    if not program.differentiated:
        return None
    per_row = program.transform.endswith("vmap_grad")
    total, slack, known = np.zeros_like(data.weight), 0.0, True
    for row, x in enumerate(results["x"]):
        bias_bar, about = results["bias_bar"][row], f"row {row}, forward {_name(results, row)}"
        if "backward" in results:
            about += f", backward {Status(int(results['backward'][row])).name}"
        weight_bar = results["weight_bar"]
        own = weight_bar[row] if per_row else None
        excused = _may_be_nan(case, results, row)
        bad = not np.all(np.isfinite(bias_bar)) or (
            own is not None and not np.all(np.isfinite(own))
        )
        if bad and not excused:
            return "nan_returned", f"gradient {bias_bar} ({about})"
        replaced = _replaced(program, results, row)
        if replaced == "zero" and np.any(bias_bar != 0):
            return "wrong_gradient", f"on_failure=zero gave {bias_bar} ({about})"
        if replaced == "nan" and not np.all(np.isnan(bias_bar)):
            return "wrong_gradient", f"on_failure=nan gave {bias_bar} ({about})"
        if replaced or bad or not np.all(np.isfinite(x)):
            known = known and replaced == "zero"
            continue
        expected = reference(case, results, row)
        if expected is None:
            known = False
            continue
        value, bound = expected
        eps, tiny = limits(program.dtype)
        bound += 4 * eps * np.linalg.norm(value) + 8 * x.size * tiny
        if not np.linalg.norm(bias_bar - value) <= bound:
            return "wrong_gradient", f"{bias_bar}, not {value} within {bound:.3g} ({about})"
        outer = np.outer(value, x)
        if program.kind == "linear_solve":  # the matrix is units (I - W)
            outer, bound = data.units * outer, data.units * bound
        share = bound * np.linalg.norm(x) + 8 * eps * np.linalg.norm(outer) + 8 * x.size**2 * tiny
        if own is not None and not np.linalg.norm(own - outer) <= share:
            return (
                "wrong_gradient",
                f"of the weight: {own}, not {outer} within {share:.3g} ({about})",
            )
        total, slack = total + outer, slack + share
    if per_row or not known:
        return None
    if not np.linalg.norm(results["weight_bar"] - total) <= slack + 8 * eps_of(program) * slack:
        return (
            "wrong_gradient",
            f"of the weight: {results['weight_bar']}, not {total} within {slack:.3g}",
        )
    return None


def reference(case: Case, results: dict, row: int) -> tuple[np.ndarray, float] | None:
    """`bias_bar` and a bound on the error it may have; None where there is nothing to compare."""
    program, data = case.program, case.data
    x, cotangent = results["x"][row], data.cotangent[row]
    if not np.all(np.isfinite(data.weight)) or not np.all(np.isfinite(data.bias[row])):
        return None
    at = exact(program.act, data.weight, data.bias[row], data.scale, x, program.dtype)
    units = data.units if program.kind == "root" or program.option == "root" else 1.0
    noise = _noise(program, data.weight, at)
    name, _, setting = program.adjoint.partition(":")
    series = _series(program)
    converged = results["status"][row] == Status.CONVERGED
    if series is not None:
        terms, damping = series
        step = np.eye(x.size) - damping * units * (np.eye(x.size) - at.jacobian)
        w, term, bound, growth = np.zeros_like(x), damping * cotangent, 0.0, 1.0
        grown = np.eye(x.size) + damping * units * (np.eye(x.size) + np.abs(at.jacobian))
        for number in range(terms):
            w, term = w + term, step.T @ term
            bound += 4 * (number + 1) * growth * noise * max(1.0, units) * np.linalg.norm(cotangent)
            growth *= np.linalg.norm(grown, 2)
        left = np.linalg.norm(term) / (damping * np.linalg.norm(cotangent))
        if program.on_failure != "best" and left > 1 - bound / np.linalg.norm(cotangent):
            return None  # a series that grows has failed
        value = units * at.slope * w
        return value, units * bound + at.slope_error * units * np.linalg.norm(w)
    if not converged or (name not in ("implicit", "tangent", "") and setting != "rtol"):
        return None
    matrix = np.eye(x.size) - at.jacobian
    if program.kind == "linear_solve":
        units, matrix = data.units, np.eye(x.size) - data.weight
    small = np.linalg.svd(matrix, compute_uv=False)
    if small[-1] == 0 or (condition := small[0] / small[-1]) > 1e6:
        return None
    reported = results["backward"][row] == Status.CONVERGED if "backward" in results else False
    solver = program.linear if program.kind == "linear_solve" else setting
    sure = solver in _GENERAL and condition < _WELL and program.dtype != "bfloat16"
    # The products of a nested map are as inexact as its inner solves.
    sure = sure and program.kind != "lockstep" and program.act != "nested"
    if not reported and not sure:
        return None
    w = np.linalg.solve(matrix.T, cotangent)
    rtol = 1e-4 if setting == "rtol" else working_eps(program.dtype) ** (2 / 3)
    if program.kind == "linear_solve":
        rtol = limits(program.dtype)[0] ** (2 / 3)
    length, bound = np.linalg.norm(w), 1.02 * rtol * np.linalg.norm(cotangent)
    bound = (bound + noise * length) / small[-1]
    if bound > 0.3 * length:
        return None
    if program.kind == "linear_solve":
        return w / units, bound / units
    return at.slope * w, bound * np.max(np.abs(at.slope)) + at.slope_error * length


def eps_of(program: Program) -> float:
    return limits(program.dtype)[0]


def _noise(program: Program, weight: np.ndarray, at: Exact) -> float:
    """Relative error of a product with `I - J`: roundings, and slopes that are a little off."""
    rounding = (
        4 * (at.image.size + 3) * eps_of(program) * (1 + np.linalg.norm(np.abs(at.jacobian), 2))
    )
    return rounding + at.slope_error * np.linalg.norm(np.abs(weight), 2)


def _series(program: Program) -> tuple[int, float] | None:
    """Number of terms and damping of the series that an adjoint is; None if it is none."""
    name, _, setting = program.adjoint.partition(":")
    if program.kind in ("linear_solve", "lockstep"):
        return None
    if name == "one_step":
        return 1, 1.0
    if name in ("neumann", "rbp", "phantom") and setting.isdigit():
        return int(setting) + (name == "neumann"), 0.5 if name == "phantom" else 1.0
    return None


def _replaced(program: Program, results: dict, row: int) -> str:
    """What the policy puts in place of this row's gradient; "" if nothing for certain."""
    if program.on_failure == "best" or program.kind == "linear_solve":
        return ""
    return program.on_failure if results["status"][row] != Status.CONVERGED else ""


def _may_be_nan(case: Case, results: dict, row: int) -> bool:
    """Whether a gradient of this row may be NaN."""
    program, data = case.program, case.data
    if program.on_failure == "nan":
        return True
    parts = (data.weight, data.bias[row])
    if program.kind == "implicit_diff":
        parts = (*parts, data.start[row])
    finite = all(np.all(np.isfinite(part)) for part in parts)
    if not finite:
        return program.on_failure == "best" or program.kind == "linear_solve"
    # Intermediate numbers of the order of scale times gradient must be representable.
    largest = float(np.max(np.abs(results["x"][row]), initial=abs(data.scale)))
    return program.dtype != "float64" and largest * max(data.units, 1 / data.units) > 1e28


def _name(results: dict, row: int) -> str:
    return Status(int(results["status"][row])).name
