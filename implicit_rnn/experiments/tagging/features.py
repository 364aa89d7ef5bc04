"""What a tagger sees of a word: its number, case, affixes and spelling; and the vocabulary.

The four sets of the 2017 paper (section 3.2), each with all of the one before:

* `"words"`: the word as it is written;
* `"lower"`: the word in lower case, and whether it has a capital;
* `"affixes"`: the 2,000 commonest prefixes and suffixes of lengths 2 to 4 of each of the six kinds;
* `"spelling"`: seven more flags after Huang et al. (2015), see `FLAGS`.

With vectors of 200 for words and 12 for affixes that makes 200, 201, 273 and 280 features.
"""

from __future__ import annotations

import collections
import itertools
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from implicit_rnn.experiments.data.lines import CorpusError
from implicit_rnn.experiments.tagging.corpora import Sentence
from implicit_rnn.training.files import read_sealed

FEATURES = ("words", "lower", "affixes", "spelling")
FLAGS = (
    "has a capital", "begins with a capital", "has capitals only", "has a capital inside",
    "has a digit", "has letters and digits", "has punctuation", "has a symbol",
)  # fmt: skip
LENGTHS = (2, 3, 4)
UNKNOWN = 0  # the number of every word that is not in the vocabulary, and of every rare affix


def flags(word: str) -> tuple[bool, ...]:
    """The spelling of a word, in the order of `FLAGS`.

    >>> [name for name, set_ in zip(FLAGS, flags("F-16s")) if set_]
    ['has a capital', 'begins with a capital', 'has a digit', 'has letters and digits', \
'has punctuation']
    """
    letters = [character for character in word if character.isalpha()]
    capital = [character.isupper() for character in word]
    digit = any(character.isdigit() for character in word)
    kinds = {unicodedata.category(character)[0] for character in word}
    return (
        any(capital),
        capital[0],
        bool(letters) and all(map(str.isupper, letters)),
        any(capital[1:]),
        digit,
        digit and bool(letters),
        "P" in kinds,
        "S" in kinds,
    )


def affixes(word: str) -> list[str]:
    """Three prefixes, then three suffixes, in lower case; "" where a word is too short for one.

    >>> affixes("Sold")
    ['so', 'sol', 'sold', 'ld', 'old', 'sold']
    """
    word = word.lower()
    long = [word if len(word) >= size else "" for size in LENGTHS]
    prefixes = [text[:size] for text, size in zip(long, LENGTHS, strict=True)]
    return prefixes + [text[-size:] for text, size in zip(long, LENGTHS, strict=True)]


class Vocabulary(NamedTuple):
    """What training has seen, and so all that is needed to make text numbers.

    Attributes:
      features: one of `FEATURES`.
      words: in order of frequency; number 0 is the unknown word.
      rare: the number from which on words are seen once only.
      affixes: of the six kinds, commonest first; numbers run on from kind to kind, from 1.
      tags: sorted.
      shape: sentences of the training set, and words of the longest.
    """

    features: str
    words: list[str]
    rare: int
    affixes: list[list[str]]
    tags: list[str]
    shape: tuple[int, int]

    def sizes(self) -> dict[str, int]:
        """What a model must know."""
        return {
            "words": len(self.words),
            "rare": self.rare,
            "labels": len(self.tags),
            "affixes": 1 + sum(map(len, self.affixes)),
            "affix_kinds": len(self.affixes),
            "flags": {"words": 0, "lower": 1, "affixes": 1, "spelling": len(FLAGS)}[self.features],
        }

    def number(self, sentences: Sequence[Sequence[str]]) -> tuple[np.ndarray, ...]:
        """Words as numbers, sentence after sentence.

        Returns:
          `words` int32 `[count]`; `affixes` int32 `[count, kinds]`, numbers into one table; `flags`
          bool `[count, flags]`.
        """
        sizes = self.sizes()
        words = {word: number for number, word in enumerate(self.words)}
        tables, first = [], 1
        for kind in self.affixes:
            tables.append({affix: first + number for number, affix in enumerate(kind)})
            first += len(kind)
        known: dict[str, tuple[int, list[int], tuple[bool, ...]]] = {}
        for word in {word for sentence in sentences for word in sentence}:
            parts = zip(tables, affixes(word) if tables else [], strict=True)
            known[word] = (
                words.get(self.written(word), UNKNOWN),
                [table.get(part, UNKNOWN) for table, part in parts],
                flags(word)[: sizes["flags"]],
            )
        rows = [known[word] for sentence in sentences for word in sentence]
        return (
            np.array([row[0] for row in rows], np.int32),
            np.array([row[1] for row in rows], np.int32).reshape(len(rows), len(tables)),
            np.array([row[2] for row in rows], bool).reshape(len(rows), sizes["flags"]),
        )

    def written(self, word: str) -> str:
        """The word as the vocabulary has it: with case, or without."""
        return word if self.features == "words" else word.lower()

    def content(self) -> dict[str, Any]:
        """As JSON: what a run folder keeps in `vocabulary.json`."""
        return self._asdict()

    @staticmethod
    def load(path: Path) -> Vocabulary:
        """Reads what `content` gave."""
        try:
            content = read_sealed(path)
            found = Vocabulary(**{**content, "shape": tuple(content["shape"])})
            texts = [*found.words, *found.tags, *itertools.chain.from_iterable(found.affixes)]
            numbers = [found.rare, *found.shape]
        except (TypeError, KeyError) as error:
            raise CorpusError(f"{path} is no vocabulary: {error}") from None
        whole = all(isinstance(text, str) for text in texts) and found.words and found.tags
        if not whole or len(numbers) != 3 or not all(isinstance(n, int) for n in numbers):
            raise CorpusError(f"{path} is no vocabulary: texts and numbers wanted")
        if found.features not in FEATURES:
            raise CorpusError(f"{path}: unknown features {found.features!r}")
        return found


def vocabulary(
    sentences: Sequence[Sentence],
    features: str = "spelling",
    *,
    most: int = 0,
    affixes_kept: int = 2000,
) -> Vocabulary:
    """The vocabulary of a training set.

    Args:
      sentences: those that are trained on, and no others.
      features: one of `FEATURES`.
      most: keep so many words, the commonest; 0: all.
      affixes_kept: of each kind.
    """
    if features not in FEATURES:
        raise ValueError(f"features must be one of {', '.join(FEATURES)}, got {features!r}")
    case = features == "words"
    tokens = [word for sentence in sentences for word in sentence.words]
    counts = collections.Counter(tokens if case else map(str.lower, tokens))
    kept = _commonest(counts, most)
    kinds: list[collections.Counter[str]] = []
    if features in ("affixes", "spelling"):
        kinds = [collections.Counter() for _ in range(2 * len(LENGTHS))]
        for word, count in collections.Counter(tokens).items():
            for kind, affix in zip(kinds, affixes(word), strict=True):
                if affix:
                    kind[affix] += count
    return Vocabulary(
        features,
        ["", *kept],  # no word is empty: this one is the unknown
        1 + sum(counts[word] > 1 for word in kept),
        [_commonest(kind, affixes_kept) for kind in kinds],
        sorted({tag for sentence in sentences for tag in sentence.tags}),
        (len(sentences), max((len(sentence.words) for sentence in sentences), default=0)),
    )


def _commonest(counts: collections.Counter[str], most: int) -> list[str]:
    """By frequency, then by the alphabet: the same whatever order they were counted in."""
    ranked: Iterable[str] = sorted(counts, key=lambda text: (-counts[text], text))
    return list(ranked)[: most or None]
