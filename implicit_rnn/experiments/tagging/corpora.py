"""Tagged sentences out of files: columns, CoNLL-U, and the treebank sample.

What is wrong with a file is a `CorpusError` that names the file and the line: a line with too few
or too many columns, an empty word or tag, bytes that are not UTF-8, a corpus without sentences.
What is legal and yet no word of a sentence is left out and counted in `Corpus.skipped`: sentences
without words, multiword tokens, empty nodes, traces.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from implicit_rnn.experiments.data.lines import CorpusError, lines

BRACKETS = {"(": "-LRB-", ")": "-RRB-", "{": "-LCB-", "}": "-RCB-", "[": "-LSB-", "]": "-RSB-"}
TRACE = "-NONE-"  # the treebank's tag of what is not there
_DOCUMENT = re.compile(r"wsj_\d{4}")


class Sentence(NamedTuple):
    words: tuple[str, ...]
    tags: tuple[str, ...]
    document: str = ""  # where it comes from, if the corpus says so
    # To the word that each depends on, in words, 0 for the root; empty if the corpus does not say.
    distances: tuple[int, ...] = ()


class Corpus(NamedTuple):
    """Sentences, and what was left out of them: how many of each kind."""

    sentences: list[Sentence]
    skipped: collections.Counter[str]


def columns(path: Path, *, count: int, word: int = 0, tag: int = 1) -> Corpus:
    """Sentences in columns divided by spaces or tabs, as of CoNLL-2000; a blank line ends one.

    Args:
      path: the file, gzipped if its name ends in `.gz`.
      count: columns that every line must have.
      word, tag: which of them, from 0 on.
    """
    if not 0 <= min(word, tag) <= max(word, tag) < count:
        raise ValueError(f"there are columns 0 to {count - 1}, got word = {word} and tag = {tag}")

    def token(line: str, place: str) -> tuple[str, str]:
        fields = line.split()
        if len(fields) != count:
            raise CorpusError(f"{place}: {count} columns wanted, got {len(fields)}")
        return fields[word], fields[tag]

    found = Corpus([], collections.Counter())
    for block in _blocks(path, found):
        words, tags = zip(*(token(line, place) for line, place in block), strict=True)
        found.sentences.append(Sentence(words, tags))
    return _checked(found, path)


def conllu(path: Path, *, tag: str = "upos") -> Corpus:
    """Sentences in CoNLL-U: ten columns divided by tabs, and comments.

    The words are the numbered ones. Multiword tokens (`3-4`, whose words follow) and empty nodes
    (`5.1`) are left out and counted.

    Args:
      path: the file, gzipped if its name ends in `.gz`.
      tag: `"upos"`, the universal tags, or `"xpos"`, those of the language.
    """
    if tag not in ("upos", "xpos"):
        raise ValueError(f'tag must be "upos" or "xpos", got {tag!r}')
    column = 3 if tag == "upos" else 4
    found, document = Corpus([], collections.Counter()), ""
    for block in _blocks(path, found):
        words: list[str] = []
        tags: list[str] = []
        heads: list[str] = []
        for line, place in block:
            if line.startswith("#"):
                name, _, value = line[1:].partition("=")
                document = value.strip() if name.strip() == "newdoc id" else document
                continue
            fields = line.split("\t")
            if len(fields) != 10:
                raise CorpusError(f"{place}: 10 columns wanted, got {len(fields)}")
            if "-" in fields[0] or "." in fields[0]:
                found.skipped["multiword tokens" if "-" in fields[0] else "empty nodes"] += 1
                continue
            if fields[0] != str(len(words) + 1):
                raise CorpusError(f"{place}: word {len(words) + 1} wanted, got {fields[0]!r}")
            if fields[column] == "_":
                raise CorpusError(f"{place}: {fields[1]!r} has no {tag}")
            words.append(fields[1])
            tags.append(_filled(fields[1], fields[column], place))
            heads.append(fields[6])
        if words:
            far = _distances(heads)
            found.sentences.append(Sentence(tuple(words), tuple(tags), document, far))
        else:
            found.skipped["empty sentences"] += 1
    return _checked(found, path)


def sample(path: Path) -> Corpus:
    """The treebank sample as a table: `document`, word and tag by tabs, blank lines between.

    Traces (`-NONE-`) are left out and counted; `\\/` and `\\*` become `/` and `*`.
    """
    found = Corpus([], collections.Counter())
    for block in _blocks(path, found):
        kept, document = [], ""
        for line, place in block:
            fields = line.split("\t")
            if len(fields) != 3:
                raise CorpusError(f"{place}: 3 columns wanted, got {len(fields)}")
            name, word, tag = fields
            if not _DOCUMENT.fullmatch(name):
                raise CorpusError(f"{place}: a document like wsj_0001 wanted, got {name!r}")
            if document and name != document:
                raise CorpusError(f"{place}: a sentence of {document} goes on in {name}")
            document = name
            kept.append((word, _filled(word, tag, place)))
        add_treebank(found, kept, document)
    return _checked(found, path)


def add_treebank(found: Corpus, tokens: list[tuple[str, str]], document: str) -> None:
    """Adds a sentence of the treebank: without traces, without escapes, one tag a word."""
    kept = []
    for word, tag in tokens:
        if tag == TRACE:
            found.skipped["traces"] += 1
            continue
        if "|" in tag:  # annotators could not decide: theirs is a choice, the first is ours
            found.skipped["alternative tags"] += 1
            tag = tag.partition("|")[0]
        kept.append((word.replace("\\/", "/").replace("\\*", "*"), tag))
    if not kept:
        found.skipped["empty sentences"] += 1
        return
    words, tags = zip(*kept, strict=True)
    found.sentences.append(Sentence(words, tags, document))


def _blocks(path: Path, found: Corpus) -> Iterator[list[tuple[str, str]]]:
    """Runs of lines that are not blank; a blank line too many is a sentence without words."""
    block: list[tuple[str, str]] = []
    blank = 0  # in a row; those at the end of a file mean nothing
    for line, place in lines(path):
        if line.strip():
            found.skipped["empty sentences"] += max(blank - 1, 0)
            blank = 0
            block.append((line, place))
            continue
        blank += 1
        if block:
            yield block
        block = []
    if block:
        yield block


def _filled(word: str, tag: str, place: str) -> str:
    if not word.strip() or not tag.strip():
        raise CorpusError(f"{place}: the {'tag' if word.strip() else 'word'} is empty")
    return tag


def _distances(heads: list[str]) -> tuple[int, ...]:
    """From every word to its head, 0 for the root; empty where a head is none."""
    known = {str(number) for number in range(len(heads) + 1)}
    if not known.issuperset(heads):
        return ()
    return tuple(abs(int(head) - n) if int(head) else 0 for n, head in enumerate(heads, 1))


def _checked(found: Corpus, path: Path) -> Corpus:
    if not found.sentences:
        raise CorpusError(f"{path}: there are no sentences in it")
    return Corpus(found.sentences, +found.skipped)
