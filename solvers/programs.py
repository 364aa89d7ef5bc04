"""How many programs eager calls compile, and how many of them are kept."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.extend import core

from solvers.settings import Settings

MOST_PROGRAMS = 128
"""Compiled programs that are kept of each kind of solve; the one used longest ago is dropped."""


def compiled(function: Callable) -> Callable:
    """`function(spec, *arrays)`, compiled once for every `spec`; the latest programs are kept."""

    @functools.lru_cache(maxsize=MOST_PROGRAMS)
    def program(spec: Settings) -> Callable:
        return jax.jit(functools.partial(function, spec))

    return lambda spec, *arrays: program(spec)(*arrays)


def lifted(jaxpr: core.Jaxpr) -> tuple[core.Jaxpr, list[np.ndarray]]:
    """`jaxpr`, of which the real numbers are the last constants, and these.

    A number that a map closes over looks like one that stands in its code: calls with another value
    of it are the same program. Exponents stay, and what compilers know by heart: zero and one.
    """
    if jaxpr.effects:  # which may go by the places of inputs
        return jaxpr, []
    variables, values = list[core.Var](), list[np.ndarray]()

    def atom(atom: Any) -> Any:
        if not isinstance(atom, core.Literal):
            return atom
        kind: Any = atom.aval
        if kind.shape or not jax.dtypes.issubdtype(kind.dtype, np.floating):
            return atom
        value = np.asarray(atom.val, kind.dtype)
        if not np.isfinite(value) or value in (0, 1):
            return atom
        # Each by itself, for two that are equal now need not be at the next call.
        variables.append(core.Var(kind))
        values.append(value)
        return variables[-1]

    equations = [
        e if e.primitive.name == "pow" else e.replace(invars=[atom(v) for v in e.invars])
        for e in jaxpr.eqns
    ]
    return jaxpr.replace(constvars=[*jaxpr.constvars, *variables], eqns=equations), values
