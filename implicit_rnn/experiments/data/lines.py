"""Text files line by line, or an error that names the file, the line and what is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from implicit_rnn.experiments import data

# Corpora have few curly quotes.
STRAIGHT = str.maketrans("\u2018\u2019\u201c\u201d", "''\"\"")


class CorpusError(ValueError):
    """A corpus that cannot be used: which file, which line, and what is wrong."""


def located(name: str, file: str, folder: Path | None, *, verified: bool = False) -> Path:
    """A file of a data set, or of the folder that was named in its place.

    Args:
      name: the data set.
      file: its file; it may lie there gzipped.
      folder: None for the data set's own.
      verified: whether the data set's own file must have its checksum, and not only one of the
        published size.
    """
    if folder is None:
        return data.checked(name, file) if verified else data.sound(name, file)
    for path in (folder / file, folder / f"{file}.gz"):
        if path.exists():
            return path
    raise CorpusError(f"{folder} holds neither {file} nor {file}.gz")


def lines(path: Path) -> Iterator[tuple[str, str]]:
    """The lines of a text file in UTF-8, each with its place, for messages: `file, line 3`."""
    try:
        content = data.contents(path)
    except data.DataError as error:
        raise CorpusError(str(error)) from None
    content = content.removeprefix(b"\xef\xbb\xbf")
    for number, line in enumerate(content.split(b"\n"), 1):
        place = f"{path}, line {number}"
        try:
            yield line.decode("utf-8").rstrip("\r"), place
        except UnicodeDecodeError as error:
            raise CorpusError(f"{place}: not UTF-8: {error.reason}; convert the file") from None
