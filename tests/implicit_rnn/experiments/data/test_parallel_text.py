"""Pairs of texts: what files hold, what is copied, and what is refused."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from implicit_rnn.experiments import data
from implicit_rnn.experiments.data.lines import CorpusError, located
from implicit_rnn.experiments.data.pairs import UNSEEN
from implicit_rnn.experiments.data.parallel_text import aligned, columns
from implicit_rnn.experiments.parsing.code_tokens import code_tokens
from implicit_rnn.experiments.parsing.copying import Lexicon, lexicon


def test_two_columns_are_read(tmp_path: Path):
    path = tmp_path / "pairs.tsv.gz"
    path.write_bytes(gzip.compress(b"wo ist c0\tloc ( c0 )\nalles\tjob\n"))
    assert columns(path) == [(("wo", "ist", "c0"), ("loc", "(", "c0", ")")), (("alles",), ("job",))]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"a b", "line 2: a source and a target divided by one tab wanted, got 1 parts"),
        (b"a\tb\tc", "line 2: a source and a target divided by one tab wanted, got 3 parts"),
        (b"", "line 2: a source and a target"),
        (b"\tb", "line 2: the source is empty"),
        (b"a\t ", "line 2: the target is empty"),
        (b"a\t\xe4", "line 2: not UTF-8"),
    ],
)
def test_a_wrong_line_is_named(line: bytes, message: str, tmp_path: Path):
    path = tmp_path / "pairs.tsv"
    path.write_bytes(b"a\tb\n" + line + b"\nc\td\n")
    with pytest.raises(CorpusError, match=re.escape(f"{path}, {message}")):
        columns(path)


def test_two_files_are_read_line_by_line(tmp_path: Path):
    (tmp_path / "x.de").write_text("eins zwei\ndrei\n")
    (tmp_path / "x.en").write_text("one two\nthree")
    found = aligned(tmp_path / "x.de", tmp_path / "x.en")
    assert found == [("eins zwei", "one two"), ("drei", "three")]


@pytest.mark.parametrize("longer", ["x.de", "x.en"])
def test_files_of_different_lengths_are_refused_at_the_first_lonely_line(longer, tmp_path: Path):
    for name in ("x.de", "x.en"):
        (tmp_path / name).write_text("a\nb\n" + "c\nd\n" * (name == longer))
    shorter = ({"x.de", "x.en"} - {longer}).pop()
    with pytest.raises(CorpusError) as error:
        aligned(tmp_path / "x.de", tmp_path / "x.en")
    assert f"{tmp_path / longer}, line 3: there is no such line in {tmp_path / shorter}" in str(
        error.value
    )


def test_an_empty_line_or_file_is_refused(tmp_path: Path):
    (tmp_path / "x.de").write_text("a\nb\n")
    (tmp_path / "x.en").write_text("a\n \n")
    with pytest.raises(CorpusError, match=r"x.en, line 2: the line is empty"):
        aligned(tmp_path / "x.de", tmp_path / "x.en")
    (tmp_path / "x.en").write_text("")
    with pytest.raises(CorpusError, match=r"x.en: there are no pairs in it"):
        aligned(tmp_path / "x.de", tmp_path / "x.en")


def test_what_is_not_the_registered_file_is_refused_by_name(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("IMPLICIT_RNN_DATA", str(tmp_path))
    path = tmp_path / "semantic_parsing" / "geo_test.tsv.gz"
    path.parent.mkdir()
    size = next(f.size for f in data.DATASETS["semantic_parsing"].files if f.path == "geo_test.tsv")
    whole = gzip.compress(b"a\tb\n" * size)
    for content, message in (
        (whole[:-9], "is damaged (no whole gzip file)"),
        (b"no gzip at all", "is damaged (no whole gzip file)"),
        (gzip.compress(b"a\tb\n"), f"has 4 bytes, {size:,} expected"),
        (gzip.compress(b"x" * size), "is damaged (its checksum differs)"),
    ):
        path.write_bytes(content)
        with pytest.raises(data.DataError, match=re.escape(f"{path} {message}")):
            located("semantic_parsing", "geo_test.tsv", None, verified=True)
    with pytest.raises(CorpusError, match=r"holds neither geo_test.tsv nor geo_test.tsv.gz"):
        located("semantic_parsing", "geo_test.tsv", tmp_path)


# What is copied.

PAIRS = [(("set", "x", "to", "y"), ("x", "=", "y")), (("set", "x", "to", "one"), ("x", "=", "1"))]


def test_rare_words_become_places_on_both_sides():
    words = lexicon(PAIRS, least=2, places=3)
    assert words == Lexicon(3, ["set", "to", "x"], ["=", "x"])
    ((source, target),) = words.numbers([(("set", "cat", "to", "dog", "cat"), ("cat", "=", "dog"))])
    np.testing.assert_array_equal(source, [3, 0, 4, 1, 0])
    np.testing.assert_array_equal(target, [0, 3, 1])
    assert words.restored(("set", "cat", "to", "dog", "cat"), target) == ["cat", "=", "dog"]
    assert words.sizes() == {"source_vocabulary": 6, "target_vocabulary": 5}
    assert words.words() == ("<0>", "<1>", "<2>", "set", "to", "x")


def test_a_word_that_is_read_often_but_written_rarely_can_be_copied():
    words = lexicon([*PAIRS, (("to",), ("to",))], least=2, places=1)
    assert "to" not in words.source
    np.testing.assert_array_equal(words.numbers([(("set", "to"), ("to",))])[0][1], [0])


def test_what_can_be_neither_written_nor_copied_is_never_right():
    words = lexicon(PAIRS, least=2, places=2)
    ((_, target),) = words.numbers([(("set", "a", "b", "c"), ("a", "b", "c", "other", "x"))])
    # Three unknown words share two places: the last place is nobody's.
    np.testing.assert_array_equal(target, [0, UNSEEN, UNSEEN, UNSEEN, 3])
    assert words.restored(("set", "a", "b", "c"), [0, 1, 2]) == ["a", "<1>", "="]


WORDS = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=6).map(tuple)


@given(st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=6), st.tuples(WORDS, WORDS))
def test_a_target_comes_back_unless_it_cannot_be_written(train, pair):
    words = lexicon(train, least=2, places=3)
    for source, target in [*train, pair]:
        ((read, written),) = words.numbers([(source, target)])
        assert np.all((read >= 0) & (read < words.sizes()["source_vocabulary"]))
        back = words.restored(source, written[written != UNSEEN])
        assert back == [w for w, n in zip(target, written, strict=True) if n != UNSEEN]
        known = set(words.target)
        lost = {w for w, n in zip(target, written, strict=True) if n == UNSEEN}
        assert not lost & known
        assert len({*source} - {*words.source}) > 3 or not lost & ({*source} - {*words.source})


def test_bad_numbers_of_places_are_named():
    with pytest.raises(ValueError, match="at least 1, got 0 and 2"):
        lexicon(PAIRS, least=0, places=2)


@given(st.lists(st.sampled_from(["x", "'a b'", '"it\'s"', "==", "(", "12", "u'\\''", ".", "'"])))
def test_tokens_of_code_are_the_line_up_to_blanks(parts):
    line = "  ".join(parts)
    found = code_tokens(line)
    assert "".join("".join(found).split()) == "".join(line.split())
    assert code_tokens(" ".join(found)) == found
    if "'" not in parts:
        assert list(found) == parts
