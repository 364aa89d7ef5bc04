"""Runs one case and judges it by float64 numpy."""

from __future__ import annotations

import dataclasses
import traceback
from pathlib import Path

import numpy as np

import solvers
from solvers import Status
from tests.fuzz.bad import BAD, NOTHING
from tests.fuzz.cases import Case, Program
from tests.fuzz.gradients import judge_gradients
from tests.fuzz.maps import exact, limits, working_eps
from tests.fuzz.programs import run

OK, REFUSED = "ok", "refused"
_SOLVERS = str(Path(solvers.__file__).parent)


@dataclasses.dataclass(frozen=True)
class Verdict:
    """`name` is `ok`, `refused` or what is wrong; `details` says it in words."""

    name: str
    details: str = ""
    statuses: tuple[str, ...] = ()

    @property
    def failed(self) -> bool:
        return self.name not in (OK, REFUSED)


def check(case: Case) -> Verdict:
    """The verdict on one case."""
    word = expected_refusal(case.program)
    try:
        results = BAD[case.program.bad][0]() if case.program.bad else run(case)
    except Exception as error:
        return judge_error(case, error, word)
    if word and word != NOTHING:
        return Verdict("not_refused", f"expected a message with {word!r}")
    if case.program.bad:
        return Verdict(OK)
    statuses = tuple(Status(int(number)).name for number in results["status"].ravel())
    # A series ends where it was asked to: that is no failure.
    fine = {"CONVERGED", "MAX_STEPS" if case.program.linear == "neumann" else "CONVERGED"}
    if case.program.throw and not fine.issuperset(statuses):
        return Verdict("not_refused", f"throw=True raised nothing at {statuses}", statuses)
    for judge in (judge_values, judge_gradients):
        problem = judge(case, results)
        if problem:
            return Verdict(*problem, statuses)
    return Verdict(OK, "", statuses)


def judge_error(case: Case, error: Exception, word: str) -> Verdict:
    """Whether an error is one that the library means."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    text = f"{type(error).__name__}: {str(error)[:300]} ({place.filename}:{place.lineno})"
    if case.program.throw and "did not converge" in str(error):
        return Verdict(REFUSED, text)
    ours = place.filename.startswith(_SOLVERS)
    if not ours or not isinstance(error, TypeError | ValueError | solvers.SolveError):
        return Verdict("foreign_error", text)
    if not word or word == NOTHING:
        return Verdict("unexpected_refusal", text)
    if word not in str(error):
        return Verdict("unclear_refusal", f"no {word!r} in: {text}")
    return Verdict(REFUSED, text)


def expected_refusal(program: Program) -> str:
    """A word of the message with which the settings have to be refused; "" if they are fine."""
    kind, name, steps = program.kind, *program.adjoint.partition(":")[::2]
    forward = name == "shine" or steps == "forward"
    if kind == "bad_input":
        return BAD[program.bad][1]
    if kind == "lockstep":
        if program.option == "free" and program.method != "none":
            return "free_sweeps"
        return "newton" if program.method == "newton" else ""
    if kind == "linear_solve":
        return ""
    if kind == "compacted" and (
        forward or name in ("bptt", "tbptt", "tangent") or steps in ("dense", "cascade")
    ):
        return "compacted"
    if kind == "implicit_diff":
        return "iterations" if forward or name in ("bptt", "tbptt") else ""
    if program.method == "bracket" and name == "bptt":
        return "bracket"
    if kind == "race" and (forward or name == "bptt"):
        return "race"
    if name == "tbptt" and int(steps) > program.max_steps:
        return "max_steps"
    if forward and program.method != "broyden":
        return "broyden"
    return ""


def judge_values(case: Case, results: dict[str, np.ndarray]) -> tuple[str, str] | None:
    """NaNs in values, and claims of convergence that are not true."""
    program, data = case.program, case.data
    for row, x in enumerate(results["x"]):
        status = Status(int(results["status"][row]))
        given = program.kind == "implicit_diff" and not np.all(np.isfinite(data.start[row]))
        failed = status != Status.CONVERGED
        asked = program.kind == "linear_solve" and program.on_failure == "nan" and failed
        if not np.all(np.isfinite(x)) and not given and not asked:
            return "nan_returned", f"row {row} ended as {status.name} at {x}"
        if failed or program.option == "free":
            continue
        residual, allowed = measured(case, x, row)
        if not residual <= allowed:
            return (
                "untrue_converged",
                f"row {row}: residual {residual:.4g} > {allowed:.4g}, "
                f"reported {results['residual'][row]:.4g} after {results['steps'][row]} steps",
            )
    return None


def measured(case: Case, x: np.ndarray, row: int) -> tuple[float, float]:
    """The residual at `x`, and the largest that CONVERGED can stand for.

    What was asked for, and on top of it what rounding makes of one evaluation (`Exact.error`) and
    of the difference `f(x) - x`; a half precision state is rounded once more when it is returned.
    """
    program, data = case.program, case.data
    eps, tiny = limits(program.dtype)
    work, norm = working_eps(program.dtype), np.linalg.norm
    weight, bias, start = data.weight, data.bias[row], data.start[row]
    start = np.where(np.isfinite(start), start, 0)
    units = data.units
    if program.kind == "linear_solve":
        matrix = units * (np.eye(x.size) - weight)
        terms = abs(units) * (np.abs(x) + np.abs(weight) @ np.abs(x))
        error = (x.size + 4) * eps * (norm(terms) + norm(bias)) + 8 * x.size * tiny
        rtol = eps ** (2 / 3)
        return norm(bias - matrix @ x), 1.02 * rtol * norm(bias) + error
    here = exact(program.act, weight, bias, data.scale, x, program.dtype)
    first = exact(program.act, weight, bias, data.scale, start, program.dtype)
    error = here.error + 4 * eps * max(norm(x), norm(here.image)) + 8 * x.size * tiny
    default = eps ** (1 / 2 if program.kind == "implicit_diff" else 2 / 3)
    rtol = data.rtol if program.has_rtol else default
    size = max(norm(x), norm(here.image))
    residual = norm(here.image - x)
    is_root = program.kind == "root" or program.option == "root"
    if not is_root:
        floor = 4 * eps**2 * max(norm(start), norm(first.image)) * 3
        return residual, max(rtol * size, floor) * (1 + 8 * work) + error
    if program.kind == "implicit_diff":
        # By how much the equation varies over a distance of x, from a difference with noise.
        scale = 1.01 * (norm(x) + here.magnitude) + 2 * error / work**0.5
        return units * residual, units * (rtol * scale + error)
    before = norm(first.image - start) + first.error + 4 * eps * norm(start)
    noise = first.error + 4 * eps * max(norm(start), norm(first.image))
    floor = 8 * work * (norm(start) + first.magnitude) + 8 * work**0.5 * noise
    return units * residual, units * (max(rtol * before, floor) * (1 + 8 * work) + error)
