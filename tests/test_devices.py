"""What needs several devices, on virtual ones: XLA gives as many as it is told when it starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def on_devices(root: Path, name: str) -> None:
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=8"
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-m", "slow or not slow"]
    done = subprocess.run(
        [*command, str(root / "tests" / "devices" / name)],
        cwd=root,
        capture_output=True,
        text=True,
        env=os.environ | {"XLA_FLAGS": flags},
    )
    assert done.returncode == 0, done.stdout[-5000:]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["test_data.py", "test_time.py"])
def test_on_eight_devices(root: Path, name: str):
    on_devices(root, name)
