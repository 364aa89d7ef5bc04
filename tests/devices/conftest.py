"""Nothing is collected here in a process with one device."""

from __future__ import annotations

import os

if "device_count=8" not in os.environ.get("XLA_FLAGS", ""):
    collect_ignore_glob = ["test_*.py"]
