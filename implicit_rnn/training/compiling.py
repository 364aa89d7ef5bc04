"""How programs are compiled that run once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

# Compiling takes a fourth of the time; a program takes several times as long as it could.
_QUICKLY = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
}


def once(function: Callable, **how: Any) -> Callable:
    """`jax.jit` of what runs once: on CPUs it is not optimised, which would take longer than it."""
    plain = jax.jit(function, **how)
    if jax.default_backend() != "cpu":
        return plain
    quick = jax.jit(function, compiler_options=_QUICKLY, **how)

    def run(*args: Any) -> Any:
        # A part of another program is compiled as that is.
        leaves = [jnp.zeros(()), *jax.tree.leaves(args)]
        traced = any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)
        return plain(*args) if traced else quick(*args)

    return run
