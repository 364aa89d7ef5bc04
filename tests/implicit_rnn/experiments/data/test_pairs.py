"""Pairs of sequences: different ones, in batches of about equal length."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from implicit_rnn.experiments.data.pairs import drawn, padded, pairs_task, target_room
from implicit_rnn.experiments.registry import TASKS
from implicit_rnn.experiments.sorting.task import sorting_task

SMALL = {"train": 200, "valid": 40, "test": 60}


def rows(pairs):
    """Sources and targets without padding."""
    return [
        (list(source[:n]), list(target[:m]))
        for source, n, target, m in zip(*map(np.asarray, pairs), strict=True)
    ]


@pytest.mark.parametrize("name", ["sorting", "tree_traversal"])
def test_seeds_decide_and_splits_share_nothing(name):
    options = SMALL | ({"length": 3, "values": 9} if name == "sorting" else {"depth": 3})
    one, same, other = (TASKS[name](seed=seed, **options) for seed in (3, 3, 4))
    sets = {}
    for split in SMALL:
        found, again, different = (t.details["pairs"][split] for t in (one, same, other))
        for a, b in zip(found, again, strict=True):
            np.testing.assert_array_equal(a, b)
        assert rows(found) != rows(different)
        sets[split] = {tuple(source) for source, _ in rows(found)}
        assert len(sets[split]) == SMALL[split]
    for a, b in itertools.combinations(sets.values(), 2):
        assert not a & b


def test_more_examples_than_there_are_is_an_error():
    with pytest.raises(ValueError, match="9 different examples are wanted, and after 8"):
        sorting_task(train=6, valid=2, test=1, length=3, values=2)
    assert (
        len(
            rows(
                sorting_task(train=6, valid=1, test=1, length=3, values=2).details["pairs"]["train"]
            )
        )
        == 6
    )


def test_batches_of_pairs_hold_every_pair_once_and_mark_empty_places():
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 9, size=(50, 2))
    pairs = padded([(rng.integers(1, 5, a), rng.integers(1, 5, b)) for a, b in lengths])
    short = padded([(np.ones(2, int), np.ones(12, int))])
    splits = {"train": pairs, "valid": short, "test": pairs}
    np.testing.assert_array_equal(target_room(splits.values())[:3], [0, 8, 12])
    room = target_room([pairs])
    assert np.all(np.diff(room) >= 0)
    assert room[-1] == lengths[:, 1].max()
    source = pairs_task(splits, "vwxyz", 5).splits["test"]
    seen, times = [], set()
    for entry in source.plan(8, 3, None):
        batch = source.batch(entry)
        times.add((batch.source.shape, batch.target.shape))
        filled = source.numbers(entry) >= 0
        np.testing.assert_array_equal(batch.target_length >= 0, filled)
        np.testing.assert_array_equal(batch.length[~filled], 0)
        assert np.all(batch.target_length <= batch.target.shape[1])
        found = [row for row, keep in zip(rows(batch), filled, strict=True) if keep]
        assert found == [rows(pairs)[number] for number in entry[0][filled]]
        seen += list(entry[0][filled])
    assert sorted(seen) == list(range(50))
    assert len(times) <= 3  # programs to compile


def test_a_few_long_targets_do_not_set_the_cost_of_all():
    """They go with longer sources, where there is room for them."""
    usual = [(np.ones(n, int), np.ones(n, int)) for n in (2, 3, 8) for _ in range(40)]
    odd = (np.ones(2, int), np.ones(30, int))
    splits = {"train": padded([*usual, odd]), "valid": padded(usual), "test": padded(usual)}
    tasks = pairs_task(splits, "v", 1)
    source = tasks.splits["train"]
    shapes = {entry[1]: source.batch(entry) for entry in source.plan(20, 3, None)}
    assert {time: batch.target.shape[1] for time, batch in shapes.items()} == {2: 2, 3: 3, 8: 30}
    assert 30 in shapes[8].target_length
    # What is not trained on has a room of its own.
    test = tasks.splits["test"]
    assert {test.batch(entry).target.shape[1] for entry in test.plan(20, 3, None)} == {2, 3, 8}


def test_what_is_common_is_in_every_split():
    """Sources that are drawn often are drawn first: the order of drawing must not decide."""

    def draw(rng, count):
        values = np.minimum(rng.geometric(0.02, count), 400).astype(np.int32)
        return [(value[None], value[None]) for value in values]

    splits = drawn(draw, {"train": 120, "valid": 40, "test": 40}, 0)
    means = [np.mean(part.source) for part in splits.values()]
    assert max(means) < 1.5 * min(means)


# Formulas, by truth tables.
