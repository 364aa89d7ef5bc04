"""Truncated Neumann series: `x = sum_{k=0..K} J^k b` for `A = I - J`."""

from __future__ import annotations

from typing import NamedTuple

from solvers.iterate import Goal, Method, Progress
from solvers.linear.base import LinearProblem, LinearSolver
from solvers.vectors import Vector, norm


class State(NamedTuple):
    sum: Vector  # g_k = sum of the terms so far
    term: Vector  # v_k = J^k b


def init(problem: LinearProblem, _: Vector) -> tuple[State, Progress]:
    state = State(problem.rhs, problem.rhs)
    return state, _progress(problem, state, 0)


def step(problem: LinearProblem, state: State, _: Goal) -> tuple[State, Progress]:
    term = state.term - problem.operator(state.term)
    state = State(state.sum + term, term)
    return state, _progress(problem, state, 1)


def _progress(problem: LinearProblem, state: State, evaluations: int) -> Progress:
    # The last term is the remainder of the series without it: an estimate one step behind, which
    # ends the sum early only where all later terms are zero.
    size = norm(state.term)
    return Progress(state.sum, size, problem.scale, evaluations, trusted=size == 0)


def neumann(steps: int) -> LinearSolver:
    """`sum_{k=0..steps} J^k b`, given `matvec(v) = v - J v` (Algorithm 2 of the 2018 paper).

    `steps` products give `steps + 1` terms; the remainder is at most
    `||(I - J)^-1|| ||J||^(steps+1)` (Proposition 2).
    """
    return LinearSolver(Method(init, step, "neumann"), max_steps=steps, truncated=True)
