"""The puzzles: their labels by another road, and what a network can tell from either end."""

import numpy as np
import pytest

from implicit_rnn.experiments.passes.task import LABELS, passes, passes_task
from implicit_rnn.experiments.walk.task import biased_walk


def sequences(puzzle, count=60, **options):
    found = passes(3, count, puzzle, max_length=20, **options)
    for x, y, n in zip(found.inputs, found.labels, found.length, strict=True):
        assert not x[n:].any()
        assert not y[n:].any()
        yield x[:n], list(y[:n])


def latest(places, values, t):
    """The value at the last of the places up to t, or 2."""
    upto = [i for i in places if i <= t]
    return values[upto[-1]] if upto else 2


@pytest.mark.parametrize("puzzle", ["key_last", "key_first"])
def test_a_label_is_the_bit_of_the_latest_symbol_that_equals_the_key(puzzle):
    for x, labels in sequences(puzzle, symbols=5):
        place = int(x[:, -1].argmax())
        assert x[:, -1].sum() == 1
        assert place == (len(x) - 1 if puzzle == "key_last" else 0)
        same = [t for t in range(len(x)) if t != place and (x[t, :5] == x[place, :5]).all()]
        bits = {t: int(x[t, 5] > 0) for t in same}
        assert labels == [latest(same, bits, t) for t in range(len(x))]


def test_a_label_is_the_bit_of_the_latest_number_above_the_bound():
    for x, labels in sequences("bound"):
        numbers, limit = x[:-1, 0], x[-1, 0]
        assert list(x[:, 2]) == [0] * (len(x) - 1) + [1]
        assert (np.abs(numbers - limit) > 0.099).all()
        assert np.abs(x[:, 0]).max() <= 1
        above = [t for t in range(len(numbers)) if numbers[t] > limit]
        assert labels == [latest(above, x[:, 1] > 0, t) for t in range(len(x))]


def test_brackets_match_and_tell_the_kind_of_the_latest_pair():
    for x, labels in sequences("brackets"):
        text = "".join("()ab"[i] for i in x.argmax(1))
        kinds = {}
        for t, letter in enumerate(text):
            if letter == "(":
                # The shortest balanced stretch from here.
                ends = (e for e in range(t, len(text)) if text[t : e + 1].count("(") == text[t : e + 1].count(")"))  # fmt: skip  # noqa: E501
                kinds[t] = int(text[next(ends) + 1 :].startswith("b"))
        assert text.count("(") == text.count(")")
        assert labels == [latest([*kinds], kinds, t) for t in range(len(text))]


def test_marks_tell_what_was_and_what_will_be():
    for x, labels in sequences("marks"):
        for t, label in enumerate(labels):
            assert label == x[: t + 1, 1].any() + 2 * x[t:, 2].any()


def test_the_walk_is_that_of_its_own_experiment():
    found, walk = (
        passes(3, 20, "walk", max_length=9),
        biased_walk(3, 20, dimension=10, min_length=2, max_length=9),
    )
    assert all(np.array_equal(*pair) for pair in zip(found, walk, strict=True))


@pytest.mark.parametrize("puzzle", sorted(LABELS))
def test_every_label_occurs_and_seeds_count(puzzle):
    first, again, other = (passes(seed, 50, puzzle) for seed in (1, 1, 2))
    assert set(np.unique(first.labels)) == set(range(LABELS[puzzle]))
    np.testing.assert_array_equal(first.inputs, again.inputs)
    assert not np.array_equal(first.length, other.length)


def test_lengths_are_test_sets_of_their_own():
    found = passes_task(train=40, valid=5, test=8, puzzle="marks", max_length=9, lengths=(4, 12))
    sets = found.details["examples"]
    assert set(sets["length 12"].length) == {12}
    assert {name: len(part.length) for name, part in sets.items()} == {
        "train": 40, "valid": 5, "test": 8, "length 4": 2, "length 12": 2,
    }  # fmt: skip
    plans = {name: found.splits[name].plan(5, 1, None) for name in ("test", "length 12")}
    assert plans["test"][0][1] <= 9
    assert plans["length 12"][0][1] == 12


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"puzzle": "key"}, "unknown puzzle 'key'"),
        ({"min_length": 1}, "min_length"),
        ({"symbols": 1}, "symbols must be at least 2"),
    ],
)
def test_what_makes_no_sense_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        passes_task(train=5, valid=5, test=5, **options)
