"""Logical inference: labels are those of truth tables, and a wrong line is named."""

from __future__ import annotations

import gzip
import itertools
import re
from pathlib import Path

import numpy as np
import pytest

from implicit_rnn.cli import main
from implicit_rnn.experiments import data
from implicit_rnn.experiments.data.lines import CorpusError
from implicit_rnn.experiments.logic.task import RELATIONS, WORDS, logical_inference_task, read

VARIABLES = "abcdef"


def formula(rng, operators):
    """Tokens of a random formula with so many operators."""
    if not operators:
        return [str(rng.choice(list(VARIABLES[:3])))]
    kind = rng.choice(["and", "or", "not"])
    if kind == "not":
        return ["(", "not", *formula(rng, operators - 1), ")"]
    left = int(rng.integers(operators))
    rest = ["(", kind, *formula(rng, operators - 1 - left), ")"]
    return ["(", *formula(rng, left), *rest, ")"]


def truth(tokens):
    """The truth of a formula under all 64 valuations, by rewriting it as Python."""
    text = " ".join(tokens)
    while "(" in text:
        text = re.sub(r"\( (and|or) ([^()]+) \)", r"\1 \2", text)
        text = re.sub(r"\( ([^()]+) \)", r"[\1]", text)
    code = compile(text.replace("[", "(").replace("]", ")"), "formula", "eval")
    rows = itertools.product([False, True], repeat=len(VARIABLES))
    return np.array([eval(code, dict(zip(VARIABLES, row, strict=True))) for row in rows])


def relation(first, second):
    a, b = truth(first), truth(second)
    disjoint, exhaustive = not np.any(a & b), np.all(a | b)
    if np.all(a == b):
        return "="
    if np.all(a <= b):
        return "<"
    if np.all(a >= b):
        return ">"
    if disjoint:
        return "^" if exhaustive else "|"
    return "v" if exhaustive else "#"


def write(folder: Path, count=12):
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    for split in ("train", "test"):
        for k in range(13):
            lines = []
            for _ in range(count):
                sides = [formula(rng, k + (k == 12)), formula(rng, int(rng.integers(k + 1)))]
                rng.shuffle(sides)
                lines.append("\t".join([relation(*sides), *map(" ".join, sides)]))
            text = "\n".join(lines) + "\n"
            (folder / f"{split}{k}.tsv.gz").write_bytes(gzip.compress(text.encode()))
    return folder


def words(sequence):
    return [WORDS[number] for number in sequence]


def assert_labels_are_those_of_truth_tables(part, count):
    for row in range(count):
        sides = [
            words(part.first[row, : part.first_length[row]]),
            words(part.second[row, : part.second_length[row]]),
        ]
        assert RELATIONS[part.labels[row]] == relation(*sides)


def test_formulas_are_read_and_parted_by_their_operators(tmp_path: Path):
    task = logical_inference_task(path=str(write(tmp_path / "logic")))
    assert task.sizes == {"vocabulary": 11, "labels": 7}
    assert list(task.splits) == ["train", "valid", "test", *map(str, range(7, 13))]
    counts = {name: len(part.labels) for name, part in task.details["examples"].items()}
    assert counts == {"train": 76, "valid": 8, "test": 72} | {str(k): 12 for k in range(7, 13)}
    for name, part in task.details["examples"].items():
        assert_labels_are_those_of_truth_tables(part, len(part.labels))
        if name.isdigit():
            most = [
                max(sum(w in ("and", "or", "not") for w in words(side)) for side in pair)
                for pair in zip(part.first, part.second, strict=True)
            ]
            assert {min(count, 12) for count in most} == {int(name)}


def test_batches_of_formulas_mark_empty_places(tmp_path: Path):
    source = logical_inference_task(path=str(write(tmp_path)), train=20).splits["train"]
    seen = []
    for entry in source.plan(8, 2, None):
        batch = source.batch(entry)
        assert batch.first.shape == batch.second.shape == (8, entry[1])
        np.testing.assert_array_equal(batch.labels >= 0, entry[0] >= 0)
        np.testing.assert_array_equal(batch.length[entry[0] < 0], 0)
        seen += [number for number in entry[0] if number >= 0]
    assert sorted(seen) == list(range(20))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("#\ta", "line 2: relation and two formulas wanted, got 2 parts"),
        ("!\ta\tb", "line 2: '!' is none of = <"),
        ("#\ta\t( not g )", "line 2: 'g' is no word of a formula"),
        ("#\ta\t", "line 2: '' is no word of a formula"),
        ("#\ta\t( not ( b )", "line 2: brackets do not match"),
        ("#\ta\tb", "line 2: 1 operators wanted, got 0"),
    ],
)
def test_a_wrong_line_is_named(line, message, tmp_path: Path):
    path = tmp_path / "train1.tsv"
    path.write_text(f"^\ta\t( not a )\n{line}\n")
    with pytest.raises(CorpusError, match=re.escape(str(path))) as error:
        read(path, 1)
    assert message in str(error.value)


def test_a_wrong_folder_is_named(tmp_path: Path):
    with pytest.raises(CorpusError, match=r"holds neither train0.tsv nor train0.tsv.gz"):
        logical_inference_task(path=str(tmp_path))
    (tmp_path / "train0.tsv").write_text("\n")
    with pytest.raises(CorpusError, match=r"train0.tsv: there are no pairs"):
        logical_inference_task(path=str(tmp_path))
    (tmp_path / "train0.tsv.gz").write_bytes(gzip.compress(b"x" * 99)[:-9])
    (tmp_path / "train0.tsv").unlink()
    with pytest.raises(CorpusError, match=r"train0.tsv.gz is damaged .no whole gzip file"):
        logical_inference_task(path=str(tmp_path))
    with pytest.raises(ValueError, match="operators must be from 0 to 11, got 12"):
        logical_inference_task(path=str(tmp_path), operators=12)


def test_the_formulas_are_as_published():
    try:
        data.find("proplog", "train0.tsv")
    except data.DataError as error:
        pytest.skip(str(error))
    assert main(["data", "verify", "proplog"]) == 0
    task = logical_inference_task()
    counts = {name: len(part.labels) for name, part in task.details["examples"].items()}
    assert counts["train"] + counts["valid"] == 135_529
    assert [counts[str(k)] for k in range(7, 13)] == [4707, 3347, 2230, 1444, 864, 853]
    for name in ("valid", "12"):
        assert_labels_are_those_of_truth_tables(task.details["examples"][name], 40)
    sets = [
        {
            (a[:n].tobytes(), b[:m].tobytes())
            for a, n, b, m in zip(*task.details["examples"][name][:4], strict=True)
        }
        for name in ("train", "valid", "test")
    ]
    for a, b in itertools.combinations(sets, 2):
        assert not a & b
