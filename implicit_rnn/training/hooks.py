"""What is called while a run goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple


class Hooks(NamedTuple):
    """What is called while a run goes on; nothing that they do changes it.

    Attributes:
      on_log: with every line about training, a dict as in `metrics.jsonl`.
      on_evaluate: with every line about the validation set.
      on_checkpoint: with the folder of a checkpoint, once it is whole.
    """

    on_log: Callable[[dict[str, Any]], None] | None = None
    on_evaluate: Callable[[dict[str, Any]], None] | None = None
    on_checkpoint: Callable[[Path], None] | None = None


NO_HOOKS = Hooks()
