"""Compiled programs and memory that the command line keeps."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

SHOW = """
import jax
from implicit_rnn.experiments import programs
programs.keep()
print(jax.config.jax_compilation_cache_dir)
"""


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "{cache}/implicit_rnn/programs/"),
        ({"JAX_COMPILATION_CACHE_DIR": "/elsewhere"}, "/elsewhere"),
        ({"JAX_ENABLE_COMPILATION_CACHE": "false"}, "None"),
        ({"XDG_CACHE_HOME": "/proc/none"}, "None"),
    ],
)
def test_programs_go_to_the_users_cache_or_where_jax_is_told(
    tmp_path: Path, changes: dict[str, str], expected: str
) -> None:
    given = {name: text for name, text in os.environ.items() if "CACHE" not in name}
    given |= {"XDG_CACHE_HOME": str(tmp_path)} | changes
    done = subprocess.run(
        [sys.executable, "-c", SHOW], env=given, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(expected.format(cache=tmp_path)), done.stdout
    assert not done.stderr


FAULTS = """
import resource
from implicit_rnn.experiments import memory

kept = memory.keep()
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for call in range(20):
    if call == 10:
        before = faults()
    size = len(b"x" * (2**26 + call))
print(kept, faults() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator")
@pytest.mark.parametrize("told", [False, True])
def test_memory_is_kept_from_call_to_call_unless_told_otherwise(told: bool) -> None:
    given = {n: text for n, text in os.environ.items() if not n.startswith(("MALLOC_", "GLIBC"))}
    given |= {"JAX_PLATFORMS": "cpu"} | ({"MALLOC_ARENA_MAX": "8"} if told else {})
    done = subprocess.run(
        [sys.executable, "-c", FAULTS], env=given, capture_output=True, text=True, check=True
    )
    kept, faults = done.stdout.split()
    assert kept == str(not told)
    # Ten blocks of 16,000 pages.
    assert (int(faults) > 100_000) if told else (int(faults) < 1000), faults
