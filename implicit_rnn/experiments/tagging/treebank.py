"""The Wall Street Journal of the Penn Treebank as it is distributed: `.mrg` and `.pos` files.

Any folder will do that has such files below it, whatever lies between: `wsj/00/wsj_0001.mrg`,
`parsed/mrg/wsj/00/...`, `combined/...`, `tagged/pos/wsj/00/wsj_0001.pos`, `WSJ/00/WSJ_0001.MRG`,
each also gzipped. Where there are both kinds the bracketings are read, which say where sentences
end.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Iterator
from pathlib import Path

from implicit_rnn.experiments.data.lines import CorpusError, lines
from implicit_rnn.experiments.tagging.corpora import BRACKETS, Corpus, add_treebank

_NAME = re.compile(r"wsj_(\d{4})\.(mrg|pos)(\.gz)?", re.IGNORECASE)
_CLOSING = ("''", '"', "-RRB-", ")", "-RCB-")  # may follow the full stop of their sentence


def documents(folder: Path) -> dict[int, Path]:
    """The files of a distribution by number: section 18's are 1800 to 1899."""
    if not folder.is_dir():
        raise CorpusError(f"{folder} is no folder: give one that holds wsj_0001.mrg and the like")
    found: dict[str, dict[int, Path]] = {"mrg": {}, "pos": {}}
    for path in sorted(folder.rglob("*")):
        named = _NAME.fullmatch(path.name)
        if not named or not path.is_file():
            continue
        kind, number = found[named[2].lower()], int(named[1])
        if number in kind:
            raise CorpusError(f"{path} is there twice, also as {kind[number]}: give one's folder")
        kind[number] = path
    if not found["mrg"] and not found["pos"]:
        raise CorpusError(f"{folder}: no file below it is called like wsj_0001.mrg or wsj_0001.pos")
    return found["mrg"] or found["pos"]


def read(paths: dict[int, Path]) -> Corpus:
    """The sentences of documents, in order; a document is called `wsj_0001`."""
    found = Corpus([], collections.Counter())
    for number, path in sorted(paths.items()):
        kind = path.name.lower().removesuffix(".gz")
        sentences = bracketed(path) if kind.endswith("mrg") else tagged(path)
        for tokens in sentences:
            add_treebank(found, tokens, f"wsj_{number:04d}")
    return found


def bracketed(path: Path) -> Iterator[list[tuple[str, str]]]:
    """`(word, tag)` of every tree of a `.mrg` file: `( (S (NP (NNP Rolls)) ...) )`."""
    tokens: list[tuple[str, str]] = []
    held: list[str] = []  # what an innermost bracket holds: a tag, then a word
    depth, open_at = 0, ""
    for line, place in lines(path):
        for part in re.findall(r"[()]|[^\s()]+", line):
            if part == "(":
                depth, held = depth + 1, []
                open_at = place if depth == 1 else open_at
            elif part == ")":
                if depth == 0:
                    raise CorpusError(f"{place}: a bracket closes that was not opened")
                depth -= 1
                if len(held) == 2:
                    tokens.append((held[1], held[0]))
                elif len(held) == 1:
                    raise CorpusError(f"{place}: {held[0]!r} is a tag without a word")
                held = []
                if depth == 0:
                    yield tokens
                    tokens = []
            elif depth == 0 or len(held) == 2:
                raise CorpusError(f"{place}: {part!r} stands outside of (tag word)")
            else:
                held.append(part)
    if depth:
        raise CorpusError(f"{open_at}: the tree that begins here does not end")


def tagged(path: Path) -> Iterator[list[tuple[str, str]]]:
    """`(word, tag)` of every sentence of a `.pos` file: `[ Rolls/NNP ] rose/VBD ./.`.

    A sentence ends at a line of `=====`, and after a word tagged `.` with the closing quotes and
    brackets that follow it: the files mark no other end.
    """
    tokens: list[tuple[str, str]] = []
    for line, place in lines(path):
        if line.startswith("====="):
            if tokens:
                yield tokens
            tokens = []
            continue
        for part in line.split():
            if part in ("[", "]"):
                continue
            word, slash, tag = part.rpartition("/")
            if not slash or not word or not tag:
                raise CorpusError(f"{place}: word/tag wanted, got {part!r}")
            if any(other == "." for _, other in tokens) and tag not in _CLOSING:
                yield tokens
                tokens = []
            tokens.append((BRACKETS.get(word, word), BRACKETS.get(tag, tag)))
    if tokens:
        yield tokens
