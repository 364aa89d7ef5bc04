"""Tagged corpora: what readers take and what they refuse, and what becomes of a word."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from implicit_rnn.cli import main
from implicit_rnn.experiments import data
from implicit_rnn.experiments.data.lines import CorpusError
from implicit_rnn.experiments.tagging import (
    UNSEEN,
    Sentence,
    columns,
    conllu,
    read_splits,
    sample,
    sentence_source,
    sentences,
    tagging_task,
    treebank,
    treebank_brackets,
    vocabulary,
    without_hyphens,
    words_task,
)
from tests.implicit_rnn.experiments.tagging import miniature

COLUMNS = "He PRP B-NP\nreckons VBZ B-VP\n\n\n\nIt PRP B-NP\nis VBZ B-VP\n. . O\n\n\n"
CONLLU = """# newdoc id = weblog-1
# text = I don't.
1\tI\tI\tPRON\tPRP\t_\t2\tnsubj\t_\t_
2-3\tdon't\t_\t_\t_\t_\t_\t_\t_\t_
2\tdo\tdo\tAUX\tVBP\t_\t0\troot\t_\t_
3\tn't\tnot\tPART\tRB\t_\t2\tadvmod\t_\t_
3.1\tgo\tgo\tVERB\tVB\t_\t_\t_\t_\t_
4\t.\t.\tPUNCT\t.\t_\t2\tpunct\t_\t_

# only a comment

1\tYes\tyes\tINTJ\tUH\t_\t0\troot\t_\t_
"""
SAMPLE = (
    "wsj_0001\t*T*-1\t-NONE-\nwsj_0001\t1\\/2\tCD\n\nwsj_0002\t0\t-NONE-\n\nwsj_0002\tUp\tRB|IN\n"
)
MRG = """
( (S
    (NP-SBJ (NNP Rolls) (-NONE- *-1))
    (VP (VBD rose) (NP (CD 1\\/2) (NN point)))
    (. .) ('' '') ))
( (FRAG (-LRB- -LRB-) (NN sic) (-RRB- -RRB-)) )
( (S (-NONE- *)) )
"""
POS = """
[ Rolls/NNP ]
rose/VBD
[ 1\\/2/CD point/NN ] ./. ''/''
======================================

(/( [ sic/NN ] )/)
"""


def file(folder: Path, text: str | bytes, name: str = "corpus.txt") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_columns(tmp_path: Path):
    found = columns(file(tmp_path, COLUMNS), count=3, tag=2)
    assert found.sentences == [
        Sentence(("He", "reckons"), ("B-NP", "B-VP")),
        Sentence(("It", "is", "."), ("B-NP", "B-VP", "O")),
    ]
    assert found.skipped == {"empty sentences": 2}
    packed = file(tmp_path, gzip.compress(COLUMNS.encode()), "corpus.txt.gz")
    assert columns(packed, count=3, tag=2) == found
    windows = file(tmp_path, b"\xef\xbb\xbf" + COLUMNS.replace("\n", "\r\n").encode(), "w.txt")
    assert columns(windows, count=3, tag=2) == found


def test_conllu_leaves_multiword_tokens_and_empty_nodes_out_and_counts_them(tmp_path: Path):
    path = file(tmp_path, CONLLU)
    found = conllu(path, tag="xpos")
    assert found.sentences == [
        Sentence(("I", "do", "n't", "."), ("PRP", "VBP", "RB", "."), "weblog-1", (1, 0, 1, 2)),
        Sentence(("Yes",), ("UH",), "weblog-1", (0,)),
    ]
    assert found.skipped == {"multiword tokens": 1, "empty nodes": 1, "empty sentences": 1}
    assert conllu(path, tag="upos").sentences[0].tags == ("PRON", "AUX", "PART", "PUNCT")


def test_the_sample_without_traces_and_escapes(tmp_path: Path):
    found = sample(file(tmp_path, SAMPLE))
    assert found.sentences == [
        Sentence(("1/2",), ("CD",), "wsj_0001"), Sentence(("Up",), ("RB",), "wsj_0002"),
    ]  # fmt: skip
    assert found.skipped == {"traces": 2, "empty sentences": 1, "alternative tags": 1}


@pytest.mark.parametrize(
    ("read", "text", "message"),
    [
        (lambda p: columns(p, count=3), COLUMNS + "It PRP\n", "line 11: 3 columns wanted, got 2"),
        (lambda p: columns(p, count=3), b"a b c\n\xff\xfe d e\n", "line 2: not UTF-8"),
        (lambda p: columns(p, count=3), "\n\n", "there are no sentences"),
        (conllu, CONLLU.replace("AUX\t", ""), "line 5: 10 columns wanted, got 9"),
        (conllu, CONLLU.replace("AUX", "_"), "line 5: 'do' has no upos"),
        (conllu, CONLLU.replace("4\t.", "5\t."), "line 8: word 4 wanted, got '5'"),
        (conllu, CONLLU.replace("3\tn't", "3\t"), "line 6: the word is empty"),
        (sample, "wsj_0001\tUp\n", "line 1: 3 columns wanted, got 2"),
        (sample, "wsj_0001\tUp\t \n", "line 1: the tag is empty"),
        (sample, "wsj_1\tUp\tRB\n", "line 1: a document like wsj_0001 wanted, got 'wsj_1'"),
        (sample, "wsj_0001\tUp\tRB\nwsj_0002\tto\tTO", "line 2: a sentence of wsj_0001 goes on"),
        (lambda p: list(treebank.bracketed(p)), "( (NN dog)\n\n", "line 1: the tree that begins"),
        (lambda p: list(treebank.bracketed(p)), "(NN dog)\n )", "line 2: a bracket closes"),
        (lambda p: list(treebank.bracketed(p)), "(NN hot dog)", "line 1: 'dog' stands outside"),
        (lambda p: list(treebank.bracketed(p)), "( (NN))", "line 1: 'NN' is a tag without a word"),
        (lambda p: list(treebank.tagged(p)), "a/DT\ndog ./.", "line 2: word/tag wanted, got 'dog'"),
    ],
)
def test_what_is_wrong_is_named_with_file_and_line(read, text, message, tmp_path: Path):
    with pytest.raises(CorpusError, match=message) as error:
        read(file(tmp_path, text))
    assert "corpus.txt" in str(error.value)


def test_columns_that_are_not_there_are_refused(tmp_path: Path):
    with pytest.raises(ValueError, match="there are columns 0 to 2, got word = 0 and tag = 3"):
        columns(file(tmp_path, COLUMNS), count=3, tag=3)


def test_a_truncated_archive_is_named(tmp_path: Path):
    path = file(tmp_path, gzip.compress(COLUMNS.encode())[:-9], "corpus.gz")
    with pytest.raises(CorpusError, match=r"corpus.gz is damaged .no whole gzip file"):
        columns(path, count=3)


@pytest.mark.parametrize(
    "layout",
    [
        "wsj/{0:02d}/wsj_{0:02d}01.mrg", "parsed/mrg/wsj/{0:02d}/wsj_{0:02d}01.mrg",
        "WSJ/{0:02d}/WSJ_{0:02d}01.MRG", "tagged/pos/wsj/{0:02d}/wsj_{0:02d}01.pos",
        "combined/wsj_{0:02d}01.mrg.gz",
    ],
)  # fmt: skip
def test_the_whole_treebank_in_its_layouts(layout: str, tmp_path: Path):
    text = POS if layout.endswith("pos") else MRG
    for section in range(25):
        path = layout.format(section)
        file(tmp_path, gzip.compress(text.encode()) if path.endswith("gz") else text, path)
    splits, skipped = read_splits("wsj", "xpos", str(tmp_path))
    assert {name: len(part) for name, part in splits.items()} == {
        "train": 2 * 19, "valid": 2 * 3, "test": 2 * 3,
    }  # fmt: skip
    assert splits["test"][:2] == [
        Sentence(
            ("Rolls", "rose", "1/2", "point", ".", "''"),
            ("NNP", "VBD", "CD", "NN", ".", "''"),
            "wsj_2201",
        ),
        Sentence(("-LRB-", "sic", "-RRB-"), ("-LRB-", "NN", "-RRB-"), "wsj_2201"),
    ]
    assert skipped == ({} if text == POS else {"traces": 2 * 25, "empty sentences": 25})


def test_sentences_of_tagged_files_end_at_full_stops(tmp_path: Path):
    path = file(tmp_path, "``/`` Go/VB !/. ''/'' [ He/PRP ] went/VBD ./. Then/RB", "x.pos")
    words = [[word for word, _ in tokens] for tokens in treebank.tagged(path)]
    assert words == [["``", "Go", "!", "''"], ["He", "went", "."], ["Then"]]


def test_a_treebank_that_is_not_whole_is_named(tmp_path: Path):
    with pytest.raises(CorpusError, match="no file below it is called like"):
        read_splits("wsj", "xpos", str(tmp_path))
    file(tmp_path, MRG, "wsj/03/wsj_0301.mrg")
    with pytest.raises(CorpusError, match=r"sections 0, 1, 2, 4, .* of 0 to 24 are missing"):
        read_splits("wsj", "xpos", str(tmp_path))
    file(tmp_path, MRG, "copy/wsj_0301.mrg")
    with pytest.raises(CorpusError, match="is there twice"):
        read_splits("wsj", "xpos", str(tmp_path))
    with pytest.raises(CorpusError, match=r"task\.path is missing"):
        read_splits("wsj", "xpos")
    with pytest.raises(CorpusError, match="wsj has no upos tags; choose from xpos"):
        read_splits("wsj", "upos", str(tmp_path))


def test_the_sample_is_split_by_document(tmp_path: Path):
    for number in (1, 149, 150, 174, 175, 199):
        file(tmp_path, MRG, f"wsj_{number:04d}.mrg")
    splits, _ = read_splits("ptb_sample", "xpos", str(tmp_path))
    found = {name: sorted({s.document for s in part}) for name, part in splits.items()}
    assert found == {
        "train": ["wsj_0001", "wsj_0149"], "valid": ["wsj_0150", "wsj_0174"],
        "test": ["wsj_0175", "wsj_0199"],
    }  # fmt: skip


def some() -> list[Sentence]:
    return [
        Sentence(("The", "dog", "saw", "the", "Dog"), ("DT", "NN", "VBD", "DT", "NNP")),
        Sentence(("Dog", "bites"), ("NNP", "VBZ")),
    ]


def test_batches_hold_what_the_sentences_hold():
    words = vocabulary(some(), "spelling")
    test = [*some(), Sentence(("Odd", "dog"), ("XX", "NN"))]
    task = words_task(words, {"train": some(), "test": test}, {"traces": 3})
    assert task.details["unseen"] == {"test": {"XX": 1}}
    assert task.details["skipped"] == {"traces": 3}
    assert task.details["notes"] == [
        "left out: 3 traces", "tags of test that training has not seen, all errors: 1 x XX",
    ]  # fmt: skip
    batch = sentence_source(test, words).batch((np.array([2, -1, 0]), 6))
    np.testing.assert_array_equal(batch.length, [2, 0, 5])
    np.testing.assert_array_equal(batch.labels[0], [UNSEEN, 1, 0, 0, 0, 0])
    np.testing.assert_array_equal(batch.words[0], [0, words.words.index("dog"), 0, 0, 0, 0])
    np.testing.assert_array_equal(batch.labels[2], [0, 1, 3, 0, 2, 0])
    assert not any(np.any(part[1]) for part in batch)
    whole = words.number([test[0].words])
    for got, want in zip(batch[:3], whole, strict=True):
        np.testing.assert_array_equal(got[2, :5], want)
        assert not np.any(got[2, 5:])


def test_every_sentence_of_a_set_is_visited(tmp_path: Path):
    task = tagging_task(corpus="ud_ewt", path=str(miniature.write(tmp_path)))
    source = task.splits["test"]
    plan = source.plan(5, 2, None)
    numbers = np.concatenate([source.numbers(entry) for entry in plan])
    np.testing.assert_array_equal(np.sort(numbers[numbers >= 0]), np.arange(13))
    assert task.details["unseen"] == {"test": {"NNS": 1}}
    universal = tagging_task(corpus="ud_ewt", tags="upos", path=str(tmp_path))
    assert universal.sizes["labels"] == 5
    with pytest.raises(CorpusError, match=r"holds neither train.txt nor train.txt.gz"):
        tagging_task(corpus="conll2000", path=str(tmp_path))


def test_tags_of_a_program_are_said_to_be_no_gold(tmp_path: Path):
    for part in ("train", "test"):
        file(tmp_path, 6 * COLUMNS, f"{part}.txt")
    automatic = tagging_task(corpus="conll2000", path=str(tmp_path))
    assert "do not report them as gold" in automatic.details["notes"][-1]
    gold = tagging_task(corpus="conll2000", tags="chunk", path=str(tmp_path))
    assert not any("gold" in note for note in gold.details["notes"])


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("Mr. Li doesn't know.", [["Mr.", "Li", "does", "n't", "know", "."]]),
        ("It\u2019s 10% off, $5.50!", [["It", "'s", "10", "%", "off", ",", "$", "5.50", "!"]]),
        ("The U.S. grew. We cannot.", [["The", "U.S.", "grew", "."], ["We", "can", "not", "."]]),
        ("(http://a.b/c?d, e.g. 1,000)", [["(", "http://a.b/c?d", ",", "e.g.", "1,000", ")"]]),
        ("Wait... what? -- no", [["Wait", "...", "what", "?", "--", "no"]]),
        ("one line\nanother", [["one", "line"], ["another"]]),
        (" \n\n", []),
        ('"', [['"']]),
    ],
)  # fmt: skip
def test_tokens_are_those_of_the_treebank(text: str, tokens: list[list[str]]):
    assert sentences(text) == tokens


def test_quotes_and_brackets_of_the_treebank():
    assert treebank_brackets(['"', "(", "No", ")", '"']) == ["``", "-LRB-", "No", "-RRB-", "''"]


def test_compounds_of_newer_treebanks():
    tokens = ["self-driving", "and/or", "1990-91", "-", "http://a-b.c", "mid-1990s", "24-hour"]
    assert without_hyphens(tokens) == [
        "self", "-", "driving", "and", "/", "or", "1990-91", "-", "http://a-b.c", "mid-1990s",
        "24", "-", "hour",
    ]  # fmt: skip


def test_a_set_without_an_address_says_where_to_get_it(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.delenv("IMPLICIT_RNN_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert main(["data", "fetch", "ptb_sample"]) == 1
    assert "nltk_data" in capsys.readouterr().err


def test_a_gzipped_file_is_found_and_verified_by_what_is_in_it(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setenv("IMPLICIT_RNN_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "none"))
    checksum = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"  # of hello
    one = data.File("a.txt", None, checksum, 5)
    monkeypatch.setitem(data.DATASETS, "small", data.DataSet("a test", "none", (one,)))
    path = file(tmp_path, gzip.compress(b"hello"), "small/a.txt.gz")
    assert data.find("small", "a.txt") == path
    assert main(["data", "verify", "small"]) == 0
    for bad, message in ((gzip.compress(b"jello"), "checksum"), (b"hello", "gzip")):
        path.write_bytes(bad)
        assert main(["data", "verify", "small"]) == 1
        assert message in capsys.readouterr().out


@pytest.mark.parametrize(
    ("corpus", "tags", "counts", "labels"),
    [
        ("ud_ewt", "xpos", [(12_544, 204_577), (2_001, 25_147), (2_077, 25_094)], 49),
        ("ptb_sample", "xpos", [(3_253, 78_375), (316, 7_652), (345, 8_057)], 45),
        ("conll2000", "chunk", [(8_043, 190_731), (893, 20_996), (2_012, 47_377)], 22),
    ],
)  # fmt: skip
def test_the_real_sets_are_as_published(corpus: str, tags: str, counts: list, labels: int):
    try:
        splits, skipped = read_splits(corpus, tags)
    except data.DataError as error:
        pytest.skip(str(error))
    found = [splits[name] for name in ("train", "valid", "test")]
    assert [(len(part), sum(len(s.words) for s in part)) for part in found] == counts
    assert len(vocabulary(splits["train"], "words").tags) == labels
    expected = {
        "ud_ewt": {"multiword tokens": 3_327, "empty nodes": 43}, "ptb_sample": {"traces": 6_592},
    }  # fmt: skip
    assert skipped == expected.get(corpus, {})
