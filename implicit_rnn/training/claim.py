"""A folder as that of one run: who writes to it, and what the run is told by."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from implicit_rnn.training import files, processes
from implicit_rnn.training import folder as folders

# Seconds until a file that one host has written is seen by the others.
DELAY = 10


class Claim(NamedTuple):
    """What makes a folder that of a run.

    Attributes:
      configuration: as the folder keeps it.
      digest: of that.
      hold: of the process that writes; None for the others.
    """

    configuration: Mapping[str, Any]
    digest: str
    hold: folders.Hold | None

    def check(self) -> None:
        """Refuses to go on in a folder that another run has taken; before every write."""
        if self.hold is not None:
            self.hold.check()


@contextlib.contextmanager
def claimed(
    folder: Path, configuration: Mapping[str, Any], keep: Mapping[str, Any], resume: bool
) -> Iterator[Claim]:
    """Holds a folder for a run, alone or of several processes, of which the first one writes.

    Args:
      folder: of the run.
      configuration: nested tables; another one than the folder was trained with is refused.
      keep: JSON by file name, written there.
      resume: whether the folder may hold a run already.
    """
    if not processes.first():
        own = folders.configuration_digest(configuration)
        _compare(folder, own)
        yield Claim(configuration, own, None)
        return
    with folders.locked(folder) as hold:
        if not resume and (folder / "metrics.jsonl").exists():
            raise folders.FolderError(
                f"{folder} holds a run already: resume it (add --resume), "
                "or choose another folder (--output)"
            )
        digest = folders.keep_configuration(folder, configuration)
        for file, content in keep.items():
            files.write_json(folder / file, content)
        _compare(folder, digest)
        yield Claim(configuration, digest, hold)


def _compare(folder: Path, configuration: str) -> None:
    """Refuses processes that were told to train something else, or do not see the folder."""
    theirs, holder = processes.from_first(f"{configuration} {folders.holder_of(folder)}").split()
    others = processes.where_not(configuration == theirs)
    if others:
        raise folders.FolderError(
            f"the configuration of {_named(others)} is not that of process 0: give all the same "
            "command, but for --process"
        )
    until = time.monotonic() + DELAY
    while folders.holder_of(folder) != holder and time.monotonic() < until:
        time.sleep(0.1)
    others = processes.where_not(folders.holder_of(folder) == holder)
    if others:
        raise folders.FolderError(
            f"{folder} of {_named(others)} is not the folder that process 0 writes to: --output "
            "must name one that all processes see"
        )


def _named(numbers: list[int]) -> str:
    if len(numbers) == 1:
        return f"process {numbers[0]}"
    return f"processes {', '.join(map(str, numbers))}"
