"""Batches of about equal length hold every example once."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from implicit_rnn.training.sources import (
    Examples,
    arrays,
    bucket_epoch,
    bucket_sizes,
    buckets,
    labelled,
)


def test_buckets_pad_little_and_visit_everything_once():
    length = np.random.default_rng(0).integers(1, 41, 400)
    stream = buckets(length, 8, np.random.default_rng(1), (10, 20, 40))
    seen: list[int] = []
    while len(seen) < 400 - 3 * 7:
        index, time = next(stream)
        low = {10: 0, 20: 10, 40: 20}[time]
        assert len(index) == 8
        assert np.all((length[index] > low) & (length[index] <= time))
        if set(index) & set(seen):
            break
        seen += list(index)
    assert len(seen) >= 400 - 3 * 7
    with pytest.raises(ValueError, match="longest sequence"):
        buckets(length, 8, np.random.default_rng(1), (10, 20))
    with pytest.raises(ValueError, match="no bucket"):
        buckets(length, 500, np.random.default_rng(1), (40,))


def test_no_example_is_left_out_for_want_of_neighbours():
    length = np.array([3] * 50 + [9] * 4 + [20] * 3)
    assert bucket_sizes(length, 3) == (3, 9, 20)
    assert bucket_sizes(length, 3, least=8) == (20,)
    many = np.array([2] * 400 + [7] * 90 + [30] * 2)
    assert bucket_sizes(many, 3, least=8) == (2, 30)
    epoch = bucket_epoch(length, 8, np.random.default_rng(0), (20,))
    assert len({number for index, _ in epoch for number in index}) == 56


@pytest.mark.parametrize("least", [1, 5, 40])
def test_no_other_buckets_pad_less(least):
    length = np.random.default_rng(least).geometric(0.2, 60)

    def steps(sizes):
        ends = np.array(sizes)[np.searchsorted(sizes, length)]
        held = np.unique(ends, return_counts=True)[1]
        return ends.sum() if len(held) == len(sizes) and min(held) >= least else np.inf

    choices = [
        (*part, length.max())
        for count in range(3)
        for part in itertools.combinations(np.unique(length)[:-1], count)
    ]
    found = bucket_sizes(length, 3, least)
    assert len(found) <= 3
    assert steps(found) == min(map(steps, choices)) < np.inf


def test_an_example_that_is_not_finite_is_named():
    inputs = np.zeros((4, 3, 2), np.float32)
    inputs[2, 1, 0] = np.nan
    with pytest.raises(ValueError, match="example 2 of inputs is not finite"):
        labelled(Examples(inputs, np.zeros((4, 3), np.int32), np.full(4, 3, np.int32)))
    with pytest.raises(ValueError, match=r"example 2 of \[0\] is not finite"):
        arrays((inputs, np.zeros(4)))


def test_more_buckets_than_lengths_take_no_time():
    assert bucket_sizes(np.array([3, 1, 3, 2]), 2**31 - 1) == (1, 2, 3)
