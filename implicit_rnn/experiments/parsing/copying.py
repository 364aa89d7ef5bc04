"""Words as numbers, where a rare word of the source can be copied into the target.

A word of the source that is not in the vocabulary becomes a *place*: the first such word of a pair
is place 0, the next other one place 1, and so on (after Luong et al., 2015). The same word in the
target becomes the same place, so that a network copies by writing a place, and `restored` puts the
word back. A pair is written right in places if and only if it is written right in words: a word of
the target is in the vocabulary or a place, never both.
"""

from __future__ import annotations

import collections
from collections.abc import Container, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from implicit_rnn.experiments.data.pairs import UNSEEN, Pair
from implicit_rnn.experiments.data.parallel_text import TextPair


class Lexicon(NamedTuple):
    """What training has seen of both sides.

    Attributes:
      places: how many there are; they are the first numbers of either side. Further unknown words
        of a source share the last one and cannot be copied.
      source, target: words by number, from `places` on.
    """

    places: int
    source: list[str]
    target: list[str]

    def sizes(self) -> dict[str, int]:
        """What a model must know."""
        return {
            "source_vocabulary": self.places + len(self.source),
            "target_vocabulary": self.places + len(self.target),
        }

    def words(self) -> tuple[str, ...]:
        """Names of the tokens that are read, places as `<0>`, `<1>`, ..."""
        return (*(f"<{place}>" for place in range(self.places)), *self.source)

    def numbers(self, pairs: Sequence[TextPair]) -> list[Pair]:
        """Pairs as numbers; a word that can be neither written nor copied is `UNSEEN`."""
        read, written = (
            {word: self.places + number for number, word in enumerate(words)}
            for words in (self.source, self.target)
        )
        found = []
        for source, target in pairs:
            places = self._places(source, read)
            write = self._copied(places) | written
            found.append(
                (
                    np.array([read.get(word, places.get(word)) for word in source], np.int32),
                    np.array([write.get(word, UNSEEN) for word in target], np.int32),
                )
            )
        return found

    def restored(self, source: Sequence[str], numbers: Iterable[int]) -> list[str]:
        """The words of a target; a place that no word has for itself is `<0>` and the like."""
        words = [f"<{place}>" for place in range(self.places)] + self.target
        for word, place in self._copied(self._places(source, set(self.source))).items():
            words[place] = word
        return [words[number] for number in numbers]

    def content(self) -> dict[str, Any]:
        """As JSON: what a run folder keeps in `vocabulary.json`."""
        return self._asdict()

    def _places(self, source: Sequence[str], known: Container[str]) -> dict[str, int]:
        """The place of every unknown word of a source."""
        unknown = dict.fromkeys(word for word in source if word not in known)
        return {word: min(number, self.places - 1) for number, word in enumerate(unknown)}

    def _copied(self, places: dict[str, int]) -> dict[str, int]:
        """Those words whose places are theirs alone."""
        shared = self.places - 1 if len(places) > self.places else self.places
        return {word: place for word, place in places.items() if place < shared}


def lexicon(pairs: Sequence[TextPair], *, least: int = 1, places: int = 1) -> Lexicon:
    """The words of a training set, the commonest first.

    A word of the source is known if it is there often enough, and if it is written as a known word
    or never: one that is rarely written would be in the way of its copy.

    Args:
      pairs: those that are trained on, and no others.
      least: how often a word must be there, on its side, to be known.
      places: how many unknown words of a source are told apart.
    """
    if min(least, places) < 1:
        raise ValueError(f"least and places must be at least 1, got {least} and {places}")
    read, written = (
        collections.Counter(word for pair in pairs for word in pair[side]) for side in (0, 1)
    )
    target = _ranked(written, {word for word in written if written[word] >= least})
    source = {word for word in read if read[word] >= least}
    return Lexicon(places, _ranked(read, source - (set(written) - set(target))), target)


def _ranked(counts: collections.Counter[str], kept: set[str]) -> list[str]:
    """By frequency, then by the alphabet: the same whatever order they were counted in."""
    return sorted(kept, key=lambda word: (-counts[word], word))
