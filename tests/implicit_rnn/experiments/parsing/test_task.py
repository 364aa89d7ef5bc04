"""Semantic parsing: splits, recurring pairs, and expressions that mean what they say."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from implicit_rnn.cli import main
from implicit_rnn.experiments import data
from implicit_rnn.experiments.data.lines import CorpusError
from implicit_rnn.experiments.data.pairs import UNSEEN
from implicit_rnn.experiments.parsing.task import parsing_task, read_splits, text_task
from implicit_rnn.experiments.registry import TASKS

SMALL = {"train": 200, "valid": 20, "test": 40}
WORDS = {
    word: number
    for number, word in enumerate(
        ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    )
}


def said(words):
    """The value of a phrase, read from the left; returns what is left of it."""
    first, rest = words[0], words[1:]
    if first in WORDS:
        return WORDS[first], rest
    kind = " ".join(words[:3])
    if kind in ("the square of", "the opposite of"):
        value, rest = said(words[3:])
        return (value**2 if "square" in kind else -value), rest
    left, rest = said(words[4:] if first == "what" else words[3:])
    right, rest = said(rest[1:])  # what stands between
    return {
        "the sum of": left + right, "the product of": left * right,
        "the larger of": max(left, right), "what is left": left - right,
    }[kind], rest  # fmt: skip


def meant(tokens):
    """The value of an expression by Python itself."""
    names = {
        "add": lambda a, b: a + b, "multiply": lambda a, b: a * b, "max": max,
        "subtract": lambda a, b: a - b, "square": lambda a: a * a, "negate": lambda a: -a,
    }  # fmt: skip

    def read(at):
        if tokens[at] != "(":
            return int(tokens[at]), at + 1
        values, place = [], at + 2
        while tokens[place] != ")":
            value, place = read(place)
            values.append(value)
        return names[tokens[at + 1]](*values), place + 1

    value, end = read(0)
    assert end == len(tokens)
    return value


def test_expressions_mean_what_is_said():
    task = parsing_task(**SMALL, depth=3)
    texts = task.details["texts"]
    assert {name: len(part) for name, part in texts.items()} == SMALL
    sources = [source for part in texts.values() for source, _ in part]
    assert len(set(sources)) == len(sources)
    for source, target in texts["test"]:
        value, rest = said(list(source))
        assert not rest
        assert value == meant(target)
    assert TASKS["parsing"] is parsing_task


def write(folder: Path) -> Path:
    """All files of the data set, in small and in its formats."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [f"what is c{n}\tlambda $0 e ( loc c{n} $0 )" for n in range(30)]
    for name in ("geo", "jobs", "atis"):
        for part, lines in (("train", rows[:20]), ("dev", rows[20:24]), ("test", rows[16:28])):
            path = folder / f"{name}_{part}.tsv.gz"
            path.write_bytes(gzip.compress(("\n".join(lines) + "\n").encode()))
    return folder


@pytest.mark.parametrize(("corpus", "sizes"), [("geo", (18, 2, 12, 8)), ("atis", (20, 4, 12, 8))])
def test_test_pairs_that_recur_in_training_are_told_apart(corpus, sizes, tmp_path: Path):
    task = parsing_task(corpus=corpus, path=str(write(tmp_path)))
    texts = task.details["texts"]
    assert tuple(len(texts[name]) for name in ("train", "valid", "test", "unseen")) == sizes
    # GEO's validation pairs come out of the training file: a test pair among them recurs.
    file = {*texts["train"]} | ({*texts["valid"]} if corpus == "geo" else set())
    assert [pair in file for pair in texts["test"]] == [True] * 4 + [False] * 8
    assert texts["unseen"] == texts["test"][4:]
    # A name that training has not seen is copied: it is place 0 on both sides.
    pairs = task.details["pairs"]["test"]
    assert (pairs.source[-1, 2], pairs.target[-1, 5]) == (0, 0)


def test_pairs_that_are_too_long_are_left_out_or_wrong():
    short, long = (("a", "b"), ("x",)), (("a", "b"), ("x",) * 5)
    task = text_task({"train": [short, long], "valid": [short], "test": [short, long]}, longest=3)
    (note,) = task.details["notes"]
    assert "left out: 1 training pair" in note
    assert task.details["texts"]["train"] == [short]
    test = task.details["pairs"]["test"]
    np.testing.assert_array_equal(test.target_length, [1, 3])
    np.testing.assert_array_equal(test.target[1] == UNSEEN, [False, False, True])
    with pytest.raises(ValueError, match="no training pair is short enough"):
        text_task({"train": [long], "valid": [short], "test": [short]}, longest=3)


def test_pairs_that_cannot_be_written_are_not_trained_on():
    pairs = [(("a", "b"), ("x", "y")), (("a", "b"), ("x", "y")), (("a", "b"), ("x", "z"))]
    task = text_task({"train": pairs, "valid": pairs, "test": pairs}, least=2)
    (note,) = task.details["notes"]
    assert "left out: 1 training pair" in note
    assert not np.any(task.details["pairs"]["train"].target == UNSEEN)
    assert np.sum(task.details["pairs"]["test"].target == UNSEEN) == 1


def test_django_with_other_lines_is_refused(tmp_path: Path):
    for end in ("anno", "code"):
        (tmp_path / f"django_all.{end}").write_text("x\n" * 7)
    with pytest.raises(CorpusError, match=r"django_all.anno has 7 lines, 18,805 wanted"):
        parsing_task(corpus="django", path=str(tmp_path))
    with pytest.raises(ValueError, match="depth must be at least 1"):
        parsing_task(depth=0)


@pytest.fixture
def staged():
    try:
        data.find("semantic_parsing", "geo_train.tsv")
    except data.DataError as error:
        pytest.skip(str(error))


def test_the_questions_are_as_published(staged):
    assert main(["data", "verify", "semantic_parsing"]) == 0
    for corpus, counts, recurring in (
        ("geo", (540, 60, 280), 115),
        ("jobs", (450, 50, 140), 80),
        ("atis", (4434, 491, 448), 94),
    ):
        task = parsing_task(corpus=corpus)
        sizes = {name: len(part) for name, part in task.details["texts"].items()}
        assert tuple(sizes[name] for name in ("train", "valid", "test")) == counts
        assert sizes["test"] - sizes["unseen"] == recurring
        for _, target in task.details["texts"]["test"]:
            assert target.count("(") == target.count(")")


def test_django_is_as_published(staged):
    splits = read_splits("django")
    counts = {name: len(part) for name, part in splits.items()}
    assert counts == {"train": 16_000, "valid": 1000, "test": 1805}
    source, target = splits["train"][0]
    assert " ".join(target) == "from threading import local"
    assert source[:4] == ("from", "threading", "import", "local")
    task = text_task(splits, least=5, places=10, longest=50)
    test, words = task.details["pairs"]["test"], task.details["lexicon"]
    for row in range(0, 1805, 30):
        written = test.target[row, : test.target_length[row]]
        if UNSEEN not in written:
            source, target = task.details["texts"]["test"][row]
            assert words.restored(source, written) == list(target)
    lost = np.mean(np.any(test.target == UNSEEN, axis=1))
    assert 0.05 < lost < 0.12
