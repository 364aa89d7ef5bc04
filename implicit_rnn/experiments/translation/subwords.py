"""Texts of two languages as numbers of pieces, and back."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from implicit_rnn.experiments.data.lines import CorpusError
from implicit_rnn.experiments.translation import bpe
from implicit_rnn.training.files import read_sealed

UNKNOWN = 0  # the number of every piece that training has not seen on its side


class Subwords(NamedTuple):
    """What training has seen of both languages, and so all that is needed to translate.

    Attributes:
      merges: of the byte-pair encoding that both share.
      source, target: pieces by number, the commonest first; number 0 is the unknown piece.
    """

    merges: list[bpe.Merge]
    source: list[str]
    target: list[str]

    def sizes(self) -> dict[str, int]:
        """What a model must know."""
        return {"source_vocabulary": len(self.source), "target_vocabulary": len(self.target)}

    def numbers(self, texts: Sequence[str], side: str) -> list[np.ndarray]:
        """Texts, their words divided by blanks, as numbers of pieces.

        Args:
          texts: which.
          side: `"source"` or `"target"`.
        """
        number = {piece: place for place, piece in enumerate(getattr(self, side))}
        return [
            np.array([number.get(piece, UNKNOWN) for piece in pieces], np.int32)
            for pieces in split_all(texts, self.merges, {*self.source, *self.target})
        ]

    def text(self, numbers: Iterable[int]) -> str:
        """The text of a target; an unknown piece is `?` and ends a word."""
        return bpe.joined(self.target[number] or "? " for number in numbers)

    def content(self) -> dict[str, Any]:
        """As JSON: what a run folder keeps in `subwords.json`."""
        return self._asdict()

    @staticmethod
    def load(path: Path) -> Subwords:
        """Reads what `content` gave."""
        try:
            content = read_sealed(path)
            merges = [(first, second) for first, second in content.pop("merges")]
            found = Subwords(merges, **content)
        except (ValueError, TypeError, KeyError) as error:
            raise CorpusError(f"{path} holds no subwords: {error}") from None
        pieces = [*itertools.chain.from_iterable(merges), *found.source, *found.target]
        if not all(isinstance(piece, str) for piece in pieces):
            raise CorpusError(f"{path} holds no subwords: a piece is no text")
        return found


def subwords(pairs: Sequence[tuple[str, str]], merges: int) -> Subwords:
    """The pieces of a training set; one encoding is learnt from both languages together.

    Args:
      pairs: source and target, those that are trained on and no others.
      merges: how many pairs of pieces become one.
    """
    if merges < 0:
        raise ValueError(f"merges must be at least 0, got {merges}")
    texts = [text for pair in pairs for text in pair]
    found, known = bpe.learn(texts, merges), bpe.alphabet(texts)
    sides = []
    for side in (0, 1):
        counts: collections.Counter[str] = collections.Counter()
        for pieces in split_all([pair[side] for pair in pairs], found, known):
            counts.update(pieces)
        sides.append(["", *sorted(counts, key=lambda piece: (-counts[piece], piece))])
    return Subwords(found, *sides)


def split_all(
    texts: Iterable[str], merges: Sequence[bpe.Merge], known: Iterable[str]
) -> Iterable[list[str]]:
    """The pieces of every text; each word is split once."""
    split = bpe.splitter(merges, known)
    words: dict[str, list[str]] = {}
    for text in texts:
        pieces: list[str] = []
        for word in text.split():
            if word not in words:
                words[word] = split(word)
            pieces += words[word]
        yield pieces
