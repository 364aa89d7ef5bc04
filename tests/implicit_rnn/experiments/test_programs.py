"""Compiled programs that the command line keeps."""

from __future__ import annotations

import os
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
