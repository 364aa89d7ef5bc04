"""Translation: byte pairs against a plain loop, texts that come back, corpora as published."""

from __future__ import annotations

import collections
import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from implicit_rnn.cli import main
from implicit_rnn.experiments import data
from implicit_rnn.experiments.data.lines import CorpusError
from implicit_rnn.experiments.registry import TASKS
from implicit_rnn.experiments.translation import bpe
from implicit_rnn.experiments.translation.subwords import UNKNOWN, Subwords, subwords
from implicit_rnn.experiments.translation.task import FILES, translated_task, translation_task

ADVERBS = ("today", "slowly", "often", "again")
WORD = st.text(st.sampled_from("abcä&;"), min_size=1, max_size=7)
COUNTS = st.dictionaries(WORD, st.integers(1, 9), min_size=1, max_size=12)


def replaced(pieces, pair):
    """The pieces with a pair made one, from the left: by marks between them, in one string."""
    marked = "|" + "||".join(pieces) + "|"
    return marked.replace(f"|{pair[0]}||{pair[1]}|", f"|{pair[0]}{pair[1]}|").strip("|").split("||")


def texts_of(counts):
    return [" ".join([word] * count) for word, count in counts.items()]


@given(COUNTS, st.integers(0, 30))
def test_every_merge_is_a_commonest_pair_of_all_counted_anew(counts, merges):
    words = {word: [*word[:-1], word[-1] + " "] for word in counts}
    found = bpe.learn(texts_of(counts), merges)
    for merge in [*found, None]:
        totals = collections.Counter()
        for word, pieces in words.items():
            for place in range(len(pieces) - 1):
                totals[pieces[place], pieces[place + 1]] += counts[word]
        most = max(totals.values(), default=0)
        if merge is None:
            assert len(found) == merges or most < 2
        else:
            assert totals[merge] == most >= 2
            words = {word: replaced(pieces, merge) for word, pieces in words.items()}
    split = bpe.splitter(found, bpe.alphabet(counts))
    assert {word: split(word) for word in counts} == words
    assert found == bpe.learn(texts_of(counts), merges), "the same of two that are equally common"


@given(COUNTS, st.lists(WORD, min_size=1, max_size=5))
def test_words_come_back(counts, words):
    texts = texts_of(counts)
    split = bpe.splitter(bpe.learn(texts, 20), bpe.alphabet([*texts, *words]))
    assert bpe.joined(piece for word in words for piece in split(word)) == " ".join(words)


PAIRS = [("der hund sieht", "the dog sees"), ("der hund ruft", "the dog calls")]


def test_texts_come_back_from_their_numbers():
    pieces = subwords(PAIRS, 20)
    for side, texts in zip(("source", "target"), zip(*PAIRS, strict=True), strict=True):
        numbers = pieces.numbers(texts, side)
        assert not any(UNKNOWN in row for row in numbers)
        if side == "target":
            assert [pieces.text(row) for row in numbers] == list(texts)
    assert UNKNOWN in pieces.numbers(["hund x"], "source")[0]
    assert pieces.text([UNKNOWN, *pieces.numbers(["dog"], "target")[0]]) == "? dog"
    with pytest.raises(ValueError, match="merges must be at least 0"):
        subwords(PAIRS, -1)


def test_subwords_come_back_from_a_file(tmp_path: Path):
    pieces = subwords(PAIRS, 20)
    path = tmp_path / "subwords.json"
    path.write_text(json.dumps(pieces.content()))
    assert Subwords.load(path) == pieces
    path.write_text('{"merges": []}')
    with pytest.raises(CorpusError, match=r"subwords.json holds no subwords"):
        Subwords.load(path)


def test_the_tiny_language_is_regular():
    task = translation_task(train=100, valid=10, test=30, merges=50)
    assert TASKS["translation"] is translation_task
    for source, target in task.details["texts"]["test"]:
        said, meant = source.split(), target.split()
        assert meant[-1].endswith("a")
        # What is seen: from the second article to the noun, each word but the article with an m.
        second = max(place for place, word in enumerate(said) if word in ("the", "a", "every"))
        seen = [word for word in said[second + 1 :] if word not in ADVERBS]
        assert sum(word.endswith("m") for word in meant) == len(seen)
    pairs = task.details["pairs"]["test"]
    pieces = task.details["subwords"]
    for row, (_, target) in enumerate(task.details["texts"]["test"]):
        assert pieces.text(pairs.target[row, : pairs.target_length[row]]) == target


def test_long_sentences_are_left_out_of_training_alone():
    long = ("a b c d e f g h i", "x y z w x y z w x")
    task = translated_task({"train": [*PAIRS, long], "test": [long]}, subwords(PAIRS, 40), 8)
    (note,) = task.details["notes"]
    assert "left out: 1 training pair" in note
    assert task.details["texts"] == {"train": PAIRS, "test": [long]}
    assert task.details["pairs"]["test"].source_length[0] == 9
    with pytest.raises(ValueError, match=r"no pair of train is short enough"):
        translated_task({"train": [long]}, subwords(PAIRS, 40), 8)


def write(corpus: str, folder: Path) -> Path:
    """All files of a corpus, in small."""
    languages, files = FILES[corpus]
    folder.mkdir(parents=True, exist_ok=True)
    for number, part in enumerate(files.values()):
        for language in languages:
            lines = [f"{language} wort {row}{number}\n" for row in range(6)]
            path = folder / f"{part}.{language}.gz"
            path.write_bytes(gzip.compress("".join(lines).encode()))
    return folder


@pytest.mark.parametrize("corpus", FILES)
def test_corpora_are_read_in_their_direction(corpus: str, tmp_path: Path):
    task = translation_task(corpus=corpus, path=str(write(corpus, tmp_path)), merges=5, test=4)
    languages, files = FILES[corpus]
    assert list(task.splits) == list(files)
    for name, part in task.details["texts"].items():
        assert len(part) == (4 if name.startswith("test") else 6)
        assert all(pair[0].split()[0] == languages[0] for pair in part)
        assert all(pair[1].split()[0] == languages[1] for pair in part)
    path = tmp_path / f"{files['valid']}.{languages[1]}.gz"
    path.write_bytes(gzip.compress(b"one line\n"))
    with pytest.raises(CorpusError, match=rf"{languages[0]}.gz, line 2: there is no such line in"):
        translation_task(corpus=corpus, path=str(tmp_path))
    path.unlink()
    with pytest.raises(CorpusError, match=f"holds neither {path.stem} nor {path.name}"):
        translation_task(corpus=corpus, path=str(tmp_path))


@pytest.mark.parametrize(
    ("corpus", "counts", "words"),
    [
        ("multi30k", (29_000, 1014, 1000, 1000), (377_534, 360_706)),
        ("iwslt14_subset", (8639, 7283, 6750), (168_341, 178_162)),
    ],
)
def test_corpora_are_as_published(corpus, counts, words):
    name = {"multi30k": "multi30k", "iwslt14_subset": "iwslt14_de_en"}[corpus]
    try:
        data.find(name, data.DATASETS[name].files[0].path)
    except data.DataError as error:
        pytest.skip(str(error))
    assert main(["data", "verify", name]) == 0
    task = translation_task(corpus=corpus, merges=0)
    texts = task.details["texts"]
    assert tuple(map(len, texts.values())) == counts
    for side in (0, 1):
        assert sum(len(pair[side].split()) for pair in texts["train"]) == words[side]
    # No word of a test is lost but by a character that training has not seen.
    pairs, pieces = task.details["pairs"]["test"], task.details["subwords"]
    for row, (_, target) in enumerate(texts["test"][:50]):
        written = pairs.target[row, : pairs.target_length[row]]
        assert UNKNOWN in written or pieces.text(written) == target
    inside = np.arange(pairs.target.shape[1]) < pairs.target_length[:, None]
    assert np.mean(pairs.target[inside] == UNKNOWN) < 1e-3
