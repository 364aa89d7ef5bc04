"""Hooks that write what a run logs where other programs look for it."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from implicit_rnn.training.files import plain


class WriterError(RuntimeError):
    """A writer that cannot write: what it needs."""


class TensorBoard:
    """Event files for TensorBoard, as `on_log` and as `on_evaluate`; needs tensorboardX.

    Args:
      folder: where they go.
    """

    def __init__(self, folder: Path) -> None:
        try:
            from tensorboardX import SummaryWriter
        except ImportError:
            raise WriterError(
                "event files (training.tensorboard) need the package tensorboardX: "
                "pip install tensorboardX"
            ) from None
        self._make, self._folder = SummaryWriter, folder
        self._writer: Any = None

    def __call__(self, row: Mapping[str, Any]) -> None:
        """Writes the numbers of a line of `metrics.jsonl`."""
        update = row["update"]
        if self._writer is None:
            # What a run that is gone on with had written from here on is not valid any more.
            self._writer = self._make(str(self._folder), purge_step=update)
        for key, value in row.items():
            if key != "update" and isinstance(value, int | float):
                self._writer.add_scalar(key, value, update)

    def close(self) -> None:
        """Ends the files."""
        if self._writer is not None:
            self._writer.close()


class JSONHistory:
    """Lines of JSON as W&B keeps the history of a run, as `on_log` and as `on_evaluate`.

    A row has W&B's own names for update and time, `_step`, `_timestamp` (seconds since 1970) and
    `_runtime` (of the run), beside the metrics: `wandb.log(row, step=row["_step"])` for every row
    imports a run that had no network.

    Args:
      path: the file; rows are added to it.
    """

    def __init__(self, path: Path) -> None:
        self._path = Path(path)

    def __call__(self, row: Mapping[str, Any]) -> None:
        """Adds a line of `metrics.jsonl`."""
        own = {"_step": row["update"], "_timestamp": time.time(), "_runtime": row.get("seconds")}
        metrics = {key: value for key, value in row.items() if key not in ("update", "seconds")}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with open(self._path, "a") as file:
            file.write(json.dumps(own | plain(metrics), allow_nan=False) + "\n")
