"""A small experiment that several tests train."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from implicit_rnn.cli import main
from implicit_rnn.experiments.config import Config, resolve
from implicit_rnn.training.tables import dump

CONTENT: dict[str, Any] = {
    "task": {
        "name": "biased_walk", "train": 64, "valid": 16, "test": 16, "max_length": 6,
        "dimension": 2, "bias": 2.0,
    },
    "model": {"name": "tagger", "encoder": "igru", "hidden": 3, "feature_dropout": 0.1},
    "optimiser": {"rate": 0.02, "ema": 0.9},
    "training": {
        "updates": 21, "batch": 8, "buckets": 1, "log_every": 5, "evaluate_every": 7,
        "evaluate_batch": 16,
    },
}  # fmt: skip
TIMES = {"seconds", "tokens_per_second"}


def config(*settings: str, content: dict[str, Any] = CONTENT) -> Config:
    return resolve(content, "small.toml", None, settings).runs[""]


def without_times(rows: list[dict]) -> list[dict]:
    return [{key: value for key, value in row.items() if key not in TIMES} for row in rows]


TRAINING = {
    "updates": 4, "batch": 8, "buckets": 1, "log_every": 2, "evaluate_every": 4,
    "evaluate_batch": 20,
}  # fmt: skip


def trained(content: dict, folder: Path) -> dict:
    """The result of a short run by the command line, in `out/`."""
    config = folder / "small.toml"
    config.write_text(dump(content | {"training": TRAINING}))
    assert main(["train", str(config), "--output", str(folder / "out")]) == 0
    return json.loads((folder / "out" / "result.json").read_text())
