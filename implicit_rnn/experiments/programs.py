"""Compiled programs, kept from command to command."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import warnings
from pathlib import Path
from typing import Any

import jax

from implicit_rnn.experiments.data.files import cache

_SHORTEST = 0.3  # seconds of compilation that are worth a file
_MOST = 2**31  # bytes; what has not been used for longest goes first


def keep() -> None:
    """Keeps compiled programs in the user's cache, unless JAX has been told where, or not to.

    A folder for each kind of processor: a program for one may hold instructions that another lacks.
    """
    settings: Any = jax.config
    if settings.jax_compilation_cache_dir or not settings.jax_enable_compilation_cache:
        return
    folder = cache() / "programs" / _processor()
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        return  # nothing depends on it
    # A disk that is full, or what a kill has left of a file: compiled anew, and nothing is lost.
    warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache")
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_compilation_cache_max_size", _MOST)
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", _SHORTEST)


def _processor() -> str:
    """A name for what this machine can execute."""
    known = [platform.machine(), platform.processor()]
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        known += sorted({line for line in lines if line.startswith(("flags", "Features"))})
    return f"{platform.machine()}-{hashlib.sha256(repr(known).encode()).hexdigest()[:12]}"
