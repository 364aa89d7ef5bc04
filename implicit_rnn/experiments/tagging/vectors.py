"""Word vectors that were trained elsewhere, from a text file."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from implicit_rnn.experiments.data.lines import CorpusError, lines


def read_vectors(path: Path, words: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Vectors for those words of a vocabulary that a file has.

    The format is that of GloVe and of word2vec's text files: a word and its numbers a line, divided
    by spaces, after a first line `count size` or none. A line with another number of columns than
    the first, or with something that is no finite number, is refused.

    Args:
      path: the file, gzipped if its name ends in `.gz`.
      words: the vocabulary.

    Returns:
      Which words were found, int `[found]`, and their vectors, float32 `[found, size]`. Of a word
      that comes twice the first counts.
    """
    number = {word: position for position, word in enumerate(words)}
    found: dict[int, np.ndarray] = {}
    size = 0
    for line, place in lines(path):
        word, *values = line.rstrip().split(" ")
        if not word:
            if line.strip():
                raise CorpusError(f"{place}: a word and its vector wanted, got {line[:40]!r}")
            continue
        if not size and len(values) == 1 and word.isdecimal() and values[0].isdecimal():
            size = int(values[0])
            continue
        size = size or len(values)
        if len(values) != size or not size:
            raise CorpusError(f"{place}: {size or 'some'} numbers wanted, got {len(values)}")
        try:
            with np.errstate(over="ignore"):  # too large is not finite
                vector = np.array(values, np.float32)
        except ValueError:
            raise CorpusError(f"{place}: one of {values[:3]}... is no number") from None
        if not np.all(np.isfinite(vector)):
            raise CorpusError(f"{place}: one of its numbers is not finite")
        if word in number:
            found.setdefault(number[word], vector)
    if not size:
        raise CorpusError(f"{path}: there are no vectors in it")
    index = np.array(sorted(found), np.int32)
    return index, np.array([found[i] for i in index], np.float32).reshape(len(index), size)
