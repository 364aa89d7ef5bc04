"""Logical inference: how two formulas of propositional logic are related (Bowman et al., 2014)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from implicit_rnn.experiments.data.lines import CorpusError, lines, located
from implicit_rnn.experiments.data.pairs import evenly, wide
from implicit_rnn.experiments.task import Task
from implicit_rnn.training.sources import Source, bucketed, evaluated_alike

OPERATORS = ("and", "or", "not")
WORDS = ("(", ")", *"abcdef", *OPERATORS)
# Equivalence, entailment forwards and backwards, negation, alternation, cover, independence.
RELATIONS = ("=", "<", ">", "^", "|", "v", "#")
MOST = 12  # the file of this number holds all formulas with so many operators or more


class Inference(NamedTuple):
    """Pairs of formulas with the relation of the first to the second.

    What is past a length is zero. A label of -1 marks a place of a batch that no pair fills.
    """

    first: np.ndarray  # int32 [count, time]
    first_length: np.ndarray  # int32 [count]
    second: np.ndarray  # int32 [count, time]
    second_length: np.ndarray  # int32 [count]
    labels: np.ndarray  # int32 [count]

    @property
    def length(self) -> np.ndarray:
        """Steps that an encoder reads of the first formulas, `[count]`."""
        return self.first_length


Row = tuple[int, np.ndarray, np.ndarray]  # label, first and second formula


def logical_inference_task(
    *,
    path: str | None = None,
    operators: int = 6,
    train: int | None = None,
    valid: int | None = None,
    test: int | None = None,
) -> Task:
    """Which of seven relations holds between two formulas over six variables.

    Trained on formulas with few operators and tested on longer ones, all together and, under the
    number of operators, by themselves. Every tenth training pair validates, as is usual.

    Args:
      path: the folder with `train0.tsv` to `train12.tsv` and `test0.tsv` to `test12.tsv`, in place
        of the data set `proplog`.
      operators: the most that the longer formula of a training pair has; the test has more.
      train, valid: how many pairs, evenly out of all; by default all.
      test: how many pairs of each number of operators; by default all.
    """
    if not 0 <= operators < MOST:
        raise ValueError(f"operators must be from 0 to {MOST - 1}, got {operators}")
    folder = None if path is None else Path(path)
    rows = [row for k in range(operators + 1) for row in _file(folder, "train", k)]
    held = np.arange(len(rows)) % 10 == 9
    splits = {
        "train": evenly([row for row, out in zip(rows, held, strict=True) if not out], train),
        "valid": evenly([row for row, out in zip(rows, held, strict=True) if out], valid),
    }
    parts = {str(k): evenly(_file(folder, "test", k), test) for k in range(operators + 1, MOST + 1)}
    splits["test"] = [row for part in parts.values() for row in part]
    examples = {name: _arrays(part) for name, part in (splits | parts).items()}
    longest = max(side.shape[1] for part in examples.values() for side in (part.first, part.second))
    return Task(
        "sentence_pairs",
        {"vocabulary": len(WORDS), "labels": len(RELATIONS)},
        evaluated_alike({name: _source(part, longest) for name, part in examples.items()}),
        "error",
        {"examples": examples, "words": WORDS},
    )


def read(path: Path, operators: int) -> list[Row]:
    """The pairs of a file: relation, formula and formula, divided by tabs, tokens by spaces.

    Args:
      path: gzipped if its name ends in `.gz`.
      operators: how many the longer formula of each pair must have; `MOST` means that or more.
    """
    number = {word: index for index, word in enumerate(WORDS)}
    rows: list[Row] = []
    for line, place in lines(path):
        if not line:
            continue
        fields = line.split("\t")
        if len(fields) != 3:
            raise CorpusError(f"{place}: relation and two formulas wanted, got {len(fields)} parts")
        if fields[0] not in RELATIONS:
            raise CorpusError(f"{place}: {fields[0]!r} is none of {' '.join(RELATIONS)}")
        formulas = [field.split() for field in fields[1:]]
        for formula in formulas:
            unknown = [word for word in formula if word not in number]
            if unknown or not formula:
                raise CorpusError(f"{place}: {(unknown or [''])[0]!r} is no word of a formula")
            if formula.count("(") != formula.count(")"):
                raise CorpusError(f"{place}: brackets do not match in {' '.join(formula)!r}")
        count = max(sum(word in OPERATORS for word in formula) for formula in formulas)
        if min(count, MOST) != operators:
            raise CorpusError(f"{place}: {operators} operators wanted, got {count}")
        first, second = (np.array([number[w] for w in formula], np.int32) for formula in formulas)
        rows.append((RELATIONS.index(fields[0]), first, second))
    if not rows:
        raise CorpusError(f"{path}: there are no pairs in it")
    return rows


def _file(folder: Path | None, split: str, operators: int) -> list[Row]:
    return read(located("proplog", f"{split}{operators}.tsv", folder), operators)


def _arrays(rows: Sequence[Row]) -> Inference:
    labels, first, second = zip(*rows, strict=True)
    return Inference(*wide(first), *wide(second), np.array(labels, np.int32))


def _source(examples: Inference, longest: int) -> Source:
    """Batches of pairs of which the longer formulas have about one length."""
    first, second = (
        np.pad(side, ((0, 0), (0, longest - side.shape[1])))
        for side in (examples.first, examples.second)
    )

    def take(index: np.ndarray, time: int) -> Inference:
        blank = index < 0
        lengths = [
            np.where(blank, 0, length[index]).astype(np.int32)
            for length in (examples.first_length, examples.second_length)
        ]
        labels = np.where(blank, -1, examples.labels[index]).astype(np.int32)
        return Inference(first[index, :time], lengths[0], second[index, :time], lengths[1], labels)

    return bucketed(np.maximum(examples.first_length, examples.second_length), take, longest)
