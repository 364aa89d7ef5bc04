"""A folder as that of one run: who writes to it, and what the run is told by."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from implicit_rnn.training import files, processes
from implicit_rnn.training import folder as folders


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
        processes.wait("the folder")
        yield Claim(configuration, folders.configuration_digest(configuration), None)
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
        processes.wait("the folder")
        yield Claim(configuration, digest, hold)
