"""One contest: programs that solve the same problem, brought to the same accuracy, then timed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from benchmarks.timing import Sampler, Timing, interleaved, stopwatch

# How far from the wanted accuracy a solver's own tolerance may lie, in powers of two. Tolerances
# mean different things: relative or absolute, of the iterate before or after, of the update.
_EXPONENTS, _BISECTIONS = range(12, -9, -4), 6

ALONE = "the evaluations alone"


@dataclasses.dataclass
class Contender:
    """A program `solve(tolerance) -> (result, evaluations)` and how to take a sample of its time.

    `evaluations` is a number, an array with one entry per example (the largest counts: under
    vmap all examples are evaluated until the last is done), or None where the solver does not
    tell; `count(tolerance)` may find it then.
    """

    name: str
    solve: Callable[[float], tuple[Any, Any]]
    sampler: Callable[[float], Sampler]
    count: Callable[[float], int] | None = None


@dataclasses.dataclass
class Entry:
    """What a contender reached."""

    name: str
    tolerance: float
    error: float
    reached: bool
    evaluations: int | None
    timing: Timing

    def record(self, ours: Entry) -> dict[str, Any]:
        return {
            "name": self.name,
            "milliseconds": 1e3 * self.timing.median,
            "fastest_milliseconds": 1e3 * self.timing.minimum,
            "tolerance": self.tolerance,
            "reached": self.error if math.isfinite(self.error) else None,
            "reached_target": self.reached,
            "evaluations": self.evaluations,
            "ours_over_this": self.ratio(ours),
        }

    def ratio(self, ours: Entry) -> float | None:
        """Our time over this one's; None where this one never got to the accuracy."""
        if self is ours or not (self.reached and ours.reached):
            return None
        return ours.timing.over(self.timing)


def jax_contender(
    name: str,
    solve: Callable[..., tuple[Any, Any]],
    data: tuple,
    count: Callable[[float], int] | None = None,
) -> Contender:
    """A contender in this process: `solve(tolerance, *data)`, compiled once for all tolerances."""
    compiled = jax.jit(solve)

    def run(tolerance: float) -> tuple[Any, Any]:
        return compiled(np.float32(tolerance), *data)

    def sampler(tolerance: float) -> Sampler:
        return stopwatch(compiled, np.float32(tolerance), *data)

    return Contender(name, run, sampler, count)


def contest(
    contenders: Sequence[Contender],
    error: Callable[[Any], float],
    target: float,
    rounds: int,
    alone: Callable[[int], Sampler] | None = None,
) -> list[Entry]:
    """Brings every contender to `error <= target` and times them; the first is ours.

    Args:
      contenders: ours and the peers.
      error: what a result is judged by.
      target: the error that all are to reach.
      rounds: of the clock.
      alone: samples so many evaluations of the map or matrix one after the other: timed as the last
        entry, `ALONE`, for as many as ours take.
    """
    entries, samplers = [], {}
    for contender in contenders:

        def error_at(tolerance: float, contender: Contender = contender) -> float:
            try:
                return error(contender.solve(tolerance)[0])
            except jax.errors.JaxRuntimeError:
                return math.inf  # some peers raise where they fail

        tolerance, reached = loosest(error_at, target)
        evaluations = contender.solve(tolerance)[1]
        if contender.count is not None:
            evaluations = contender.count(tolerance)
        if evaluations is not None:
            evaluations = int(np.max(evaluations))
        samplers[contender.name] = contender.sampler(tolerance)
        entries.append((contender.name, tolerance, reached, reached <= target, evaluations))
    if alone is not None:
        samplers[ALONE] = alone(entries[0][-1])
        entries.append((ALONE, math.nan, math.nan, False, entries[0][-1]))
    timings = interleaved(samplers, rounds)
    return [Entry(*entry, timings[entry[0]]) for entry in entries]


def loosest(error: Callable[[float], float], target: float) -> tuple[float, float]:
    """The largest tolerance with `error(tolerance) <= target`, and the error there.

    Coarse steps down, then bisection, both on its logarithm, so that every solver stops as early
    as it may. Where no tolerance does, the one that came closest.
    """
    tried = {}
    for exponent in _EXPONENTS:
        tried[exponent] = error(target * 2.0**exponent)
        if tried[exponent] <= target:
            break
    else:
        closest = min(tried, key=tried.__getitem__)
        return target * 2.0**closest, tried[closest]
    tight, best, loose = float(exponent), tried[exponent], exponent + _EXPONENTS[0] - _EXPONENTS[1]
    for _ in range(_BISECTIONS):
        middle = 0.5 * (loose + tight)
        found = error(target * 2.0**middle)
        if found <= target:
            tight, best = middle, found
        else:
            loose = middle
    return target * 2.0**tight, best
