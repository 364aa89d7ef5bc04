"""What a run came to, in the words of its folder; and whether anything of it was lost."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from implicit_rnn.training.folder import LOCKS
from tests.implicit_rnn.experiments.problems import without_times


def metrics(folder: Path) -> list[dict[str, Any]]:
    """All lines of `metrics.jsonl`, read by a reader of its own, without times."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return without_times([json.loads(line) for line in lines])


def outcome(folder: Path) -> dict[str, Any]:
    """What `result.json` says of the model."""
    content = json.loads((folder / "result.json").read_text())
    return {key: content[key] for key in ("test", "valid", "best_update", "updates", "parameters")}


def files(folder: Path) -> dict[str, str]:
    """Checksums of all files below a folder, but for the lock, by name."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in LOCKS
    }


def lost(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """Files whose content is nowhere any more."""
    return [name for name, content in before.items() if content not in after.values()]
