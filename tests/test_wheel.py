"""What a wheel gives to somebody who has no clone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

PARTS = ("implicit_rnn", "solvers", "configs", "pyproject.toml", "setup.py", "MANIFEST.in")
ABOUT = ("README.md", "LICENSE")


def call(*command: str | Path, cwd: Path) -> str:
    own = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=own, capture_output=True, text=True
    )
    assert not done.returncode, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_command_works_from_a_wheel_in_an_empty_folder(root: Path, tmp_path: Path) -> None:
    source, empty, home = tmp_path / "source", tmp_path / "empty", tmp_path / "environment"
    source.mkdir()
    empty.mkdir()
    for name in PARTS + ABOUT:  # a copy: a build leaves files behind, and takes old ones along
        (shutil.copytree if (root / name).is_dir() else shutil.copy)(root / name, source / name)
    pip = (sys.executable, "-m", "pip", "-q", "--disable-pip-version-check")
    call(*pip, "wheel", "--no-deps", "-w", tmp_path, source, cwd=empty)
    venv.create(home)
    python = home / "bin" / "python"
    (site,) = home.glob("lib/*/site-packages")
    call(*pip, "--python", python, "install", "--no-deps", *tmp_path.glob("*.whl"), cwd=empty)
    # Dependencies come from where the tests run; the package itself must not.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    place = call(python, "-c", "import implicit_rnn; print(implicit_rnn.__file__)", cwd=empty)
    assert place.startswith(str(site))
    command = home / "bin" / "implicit-rnn"
    assert "biased_walk" in call(command, "list", cwd=empty)
    settings = ("training.updates=2", "training.evaluate_every=2", "task.train=200")
    chosen = [part for setting in settings for part in ("--set", setting)]
    call(command, "train", "biased_walk", "--profile", "quick", *chosen, cwd=empty)
    assert (empty / "runs" / "biased_walk-quick" / "table.json").exists()
