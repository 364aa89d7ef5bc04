"""Pairs of texts out of files: two columns divided by a tab, or two files line by line.

What is wrong with a file is a `CorpusError` that names the file and the line.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from implicit_rnn.experiments.data.lines import CorpusError, lines

Tokens = tuple[str, ...]
TextPair = tuple[Tokens, Tokens]  # to read, to write


def columns(path: Path) -> list[TextPair]:
    """The pairs of a file with a source and a target in every line, tokens divided by spaces.

    Args:
      path: gzipped if its name ends in `.gz`.
    """
    found = []
    for line, place in _text(path):
        fields = line.split("\t")
        if len(fields) != 2:
            raise CorpusError(
                f"{place}: a source and a target divided by one tab wanted, got {len(fields)} parts"
            )
        source, target = (tuple(field.split()) for field in fields)
        if not source or not target:
            side = "target" if source else "source"
            raise CorpusError(f"{place}: the {side} is empty; either side needs a token at least")
        found.append((source, target))
    return found


def aligned(source: Path, target: Path) -> list[tuple[str, str]]:
    """The lines of two files, each with that of the same number of the other.

    Args:
      source, target: gzipped if their names end in `.gz`.
    """
    sides = _text(source), _text(target)
    (path, shorter), (other, longer) = sorted(
        zip((source, target), sides, strict=True), key=lambda side: len(side[1])
    )
    if len(shorter) != len(longer):
        raise CorpusError(
            f"{longer[len(shorter)][1]}: there is no such line in {path}, which has "
            f"{len(shorter):,} where {other.name} has {len(longer):,}; both must have as many"
        )
    for side in sides:
        for line, place in side:
            if not line.strip():
                raise CorpusError(f"{place}: the line is empty; either side needs a token at least")
    return [(a, b) for (a, _), (b, _) in zip(*sides, strict=True)]


def _text(path: Path) -> Sequence[tuple[str, str]]:
    """Lines with their places, but for what follows the last line break."""
    found = list(lines(path))
    if not found[-1][0]:
        found.pop()
    if not found:
        raise CorpusError(f"{path}: there are no pairs in it")
    return found
