"""Truncated Neumann series: `x = sum_{k=0..K} J^k b` for `A = I - J`."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from solvers.iterate import Goal, Method, Progress
from solvers.linear.base import LinearProblem, LinearSolver
from solvers.space import Vector, add, subtract


class State(NamedTuple):
    sum: Vector  # g_k = sum of the terms so far
    term: Vector  # v_k = J^k b


@dataclasses.dataclass(frozen=True, eq=False)
class Neumann(Method):
    scale_free = False

    def init(self, problem: LinearProblem, _: Vector) -> tuple[State, Progress]:
        return self._report(problem, State(problem.rhs, problem.rhs), 0)

    def step(self, problem: LinearProblem, state: State, _: Goal) -> tuple[State, Progress]:
        term = subtract(state.term, problem.operator(state.term))
        return self._report(problem, State(add(state.sum, term), term), 1)

    @staticmethod
    def _report(problem: LinearProblem, state: State, products: int) -> tuple[State, Progress]:
        # The last term is the remainder of the series without it: an estimate one step behind,
        # which ends the sum early only where all later terms are zero.
        size = problem.space.norm(state.term)
        return state, Progress(state.sum, size, problem.scale, products, trusted=size == 0)


def neumann(steps: int) -> LinearSolver:
    """`sum_{k=0..steps} J^k b`, given `matvec(v) = v - J v` (Algorithm 2 of the 2018 paper).

    `steps` products give `steps + 1` terms; the remainder is at most
    `||(I - J)^-1|| ||J||^(steps+1)` (Proposition 2).
    """
    return LinearSolver(Neumann(), max_steps=steps, truncated=True)
