"""Generated tasks are what the papers say, and batches of them are what a loop expects."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from implicit_rnn.experiments.walk.task import biased_walk, biased_walk_task
from implicit_rnn.training.sources import bucket_epoch, bucket_sizes, buckets


def test_walks_follow_the_paper():
    walks = biased_walk(0, 20_000, bias=2.0, dimension=3)
    positions, increments = walks.inputs[..., :3], walks.inputs[..., 3:]
    inside = np.arange(40) < walks.length[:, None]
    assert walks.inputs.shape == (20_000, 40, 6)
    assert walks.inputs.dtype == np.float32
    assert set(walks.length) == set(range(1, 41))
    assert np.all(positions[:, 0] == 0)
    np.testing.assert_allclose((np.cumsum(increments, axis=1) - positions)[inside], 0, atol=1e-4)
    assert np.all(walks.inputs[~inside] == 0)
    assert np.all(walks.labels[~inside] == 0)
    # Once it has turned, a walk stays turned; and the turn is uniform over it.
    assert np.all(np.diff(walks.labels, axis=1)[inside[:, 1:]] >= 0)
    long = walks.length == 40
    assert abs(walks.labels[long].sum(axis=1).mean() - 19.5) < 1
    # Unit variance before the turn; drift b v with v ~ N(0, I) adds b^2 after it.
    before = increments[:, 1:][inside[:, 1:] & (walks.labels[:, 1:] == 0)]
    settled = (walks.labels[:, 1:] == 1) & (walks.labels[:, :-1] == 1)
    assert abs(before.var() - 1) < 0.02
    assert abs(increments[:, 1:][settled].var() - 5) < 0.2


def test_seed_decides_everything():
    a, b, c = (biased_walk(seed, 50) for seed in (3, 3, 4))
    np.testing.assert_array_equal(a.inputs, b.inputs)
    np.testing.assert_array_equal(a.labels, b.labels)
    assert np.any(a.inputs != c.inputs)


def test_inputs_and_directions_can_be_chosen():
    both = biased_walk(0, 30, dimension=4)
    for name, part in (("positions", slice(0, 4)), ("increments", slice(4, 8))):
        np.testing.assert_array_equal(
            biased_walk(0, 30, dimension=4, inputs=name).inputs, both.inputs[..., part]
        )
    far = biased_walk(0, 500, bias=1e3, direction="unit", inputs="increments", dimension=4)
    settled = (far.labels[:, 1:] == 1) & (far.labels[:, :-1] == 1)
    sizes = np.linalg.norm(far.inputs[:, 1:], axis=-1)[settled]
    np.testing.assert_allclose(sizes, 1e3, rtol=0.01)
    assert set(biased_walk(0, 99, min_length=7, max_length=9).length) == {7, 8, 9}
    with pytest.raises(ValueError, match="direction"):
        biased_walk(0, 1, direction="up")
    with pytest.raises(ValueError, match="inputs"):
        biased_walk(0, 1, inputs="steps")


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


def test_validation_and_test_share_their_shapes_and_leave_nothing_out():
    splits = biased_walk_task(train=40, valid=7, test=90).splits
    plans = {name: splits[name].plan(4, 3, None) for name in ("valid", "test")}
    shapes = {name: {time for _, time in plan} for name, plan in plans.items()}
    assert shapes["valid"] <= shapes["test"]
    for name, plan in plans.items():
        seen = np.concatenate([numbers for numbers, _ in plan])
        assert sorted(seen[seen >= 0]) == list(range(splits[name].shape[0]))
        assert all(np.all(splits[name].batch(entry).length <= entry[1]) for entry in plan)
