"""Features of words, vocabularies and word vectors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from implicit_rnn.experiments.data.lines import CorpusError
from implicit_rnn.experiments.tagging import (
    FLAGS,
    Vocabulary,
    affixes,
    flags,
    read_vectors,
    vocabulary,
)
from implicit_rnn.training.files import write_json
from tests.implicit_rnn.experiments.tagging.test_task import file, some


@pytest.mark.parametrize(
    ("word", "set_"),
    [
        ("dog", []),
        ("Dog", ["has a capital", "begins with a capital"]),
        ("I", ["has a capital", "begins with a capital", "has capitals only"]),
        ("eBay", ["has a capital", "has a capital inside"]),
        (
            "USA-2",
            [
                "has a capital", "begins with a capital", "has capitals only",
                "has a capital inside", "has a digit", "has letters and digits", "has punctuation",
            ],
        ),
        ("1,000", ["has a digit", "has punctuation"]),
        ("$", ["has a symbol"]),
        ("\u00c9t\u00e9", ["has a capital", "begins with a capital"]),
    ],
)  # fmt: skip
def test_flags_by_hand(word: str, set_: list[str]):
    assert [name for name, is_set in zip(FLAGS, flags(word), strict=True) if is_set] == set_


def test_affixes_by_hand():
    assert affixes("Walking") == ["wa", "wal", "walk", "ng", "ing", "king"]
    assert affixes("the") == ["th", "the", "", "he", "the", ""]
    assert affixes("a") == [""] * 6


def test_the_vocabulary_by_hand():
    found = vocabulary(some(), "words")
    assert found.words == ["", "Dog", "The", "bites", "dog", "saw", "the"]  # by count, then letters
    assert found.rare == 2  # Dog is seen twice
    assert found.tags == ["DT", "NN", "NNP", "VBD", "VBZ"]
    assert found.shape == (2, 5)
    found = vocabulary(some(), "spelling", most=2, affixes_kept=1)
    assert found.words == ["", "dog", "the"]
    assert found.rare == 3
    assert found.affixes == [["do"], ["dog"], ["bite"], ["og"], ["dog"], ["ites"]]
    words, parts, seen = found.number([["Dogma", "the"]])
    np.testing.assert_array_equal(words, [0, 2])
    np.testing.assert_array_equal(parts, [[1, 2, 0, 0, 0, 0], [0] * 6])
    np.testing.assert_array_equal(seen, [[1, 1, 0, 0, 0, 0, 0, 0], [0] * 8])


@pytest.mark.parametrize(
    ("features", "width"), [("words", 200), ("lower", 201), ("affixes", 273), ("spelling", 280)]
)
def test_the_four_feature_sets_are_as_wide_as_the_papers(features: str, width: int):
    sizes = vocabulary(some(), features).sizes()
    assert 200 + 12 * sizes["affix_kinds"] + sizes["flags"] == width


def test_a_vocabulary_survives_its_file(tmp_path: Path):
    found = vocabulary(some(), "affixes")
    path = write_json(tmp_path / "vocabulary.json", found.content())
    assert Vocabulary.load(path) == found
    path.write_text('{"words": 3}')
    with pytest.raises(CorpusError, match=r"vocabulary\.json is no vocabulary"):
        Vocabulary.load(path)


def test_word_vectors(tmp_path: Path):
    words = ["", "dog", "the", "cat"]
    for head in ("", "3 2\n"):
        path = file(tmp_path, head + "the 1 2\nbird 0 0\ndog -1 5e-1\ndog 7 7\n")
        rows, vectors = read_vectors(path, words)
        np.testing.assert_array_equal(rows, [1, 2])
        np.testing.assert_array_equal(vectors, [[-1, 0.5], [1, 2]])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("the 1 2\ndog 1\n", "line 2: 2 numbers wanted, got 1"),
        ("2 3\nthe 1 2\n", "line 2: 3 numbers wanted, got 2"),
        ("the 1 two\n", "line 1: one of .* is no number"),
        ("the 1 nan\n", "line 1: one of its numbers is not finite"),
        (b"the 1 2\n\xff 1 2\n", "line 2: not UTF-8"),
        ("", "there are no vectors"),
    ],
)
def test_bad_word_vectors_are_refused_with_their_line(text, message, tmp_path: Path):
    with pytest.raises(CorpusError, match=message):
        read_vectors(file(tmp_path, text), ["the"])
