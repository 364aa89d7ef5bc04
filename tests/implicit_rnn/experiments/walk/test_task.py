"""Generated tasks are what the papers say, and batches of them are what a loop expects."""

from __future__ import annotations

import numpy as np
import pytest

from implicit_rnn.experiments.walk.task import biased_walk, biased_walk_task


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


def test_validation_and_test_share_their_shapes_and_leave_nothing_out():
    splits = biased_walk_task(train=40, valid=7, test=90).splits
    plans = {name: splits[name].plan(4, 3, None) for name in ("valid", "test")}
    shapes = {name: {time for _, time in plan} for name, plan in plans.items()}
    assert shapes["valid"] <= shapes["test"]
    for name, plan in plans.items():
        seen = np.concatenate([numbers for numbers, _ in plan])
        assert sorted(seen[seen >= 0]) == list(range(splits[name].shape[0]))
        assert all(np.all(splits[name].batch(entry).length <= entry[1]) for entry in plan)


def test_rotated_walks_are_the_same_walks_seen_from_elsewhere():
    settings = {"train": 40, "valid": 7, "test": 9, "dimension": 3}
    plain, turned = (
        biased_walk_task(rotate=rotate, **settings).splits["train"] for rotate in (False, True)
    )
    rng = np.random.default_rng
    plans = [turned.plan(8, 2, rng(seed)) for seed in (0, 0, 1)]
    entry, again, other = plans[0][0], plans[1][0], plans[2][0]
    seen = turned.batch(entry)
    np.testing.assert_array_equal(seen.inputs, turned.batch(again).inputs)
    numbers = turned.numbers(entry)
    original = plain.batch((numbers, seen.inputs.shape[1]))
    np.testing.assert_array_equal(seen.labels, original.labels)
    np.testing.assert_array_equal(seen.length, original.length)

    def angles(walks):
        # Inner products of all positions and increments of a walk: all that a rotation leaves.
        vectors = walks.inputs.reshape(len(numbers), -1, 3).astype(np.float64)
        return vectors @ vectors.swapaxes(1, 2)

    np.testing.assert_allclose(angles(seen), angles(original), atol=1e-4)
    assert np.all(np.abs(seen.inputs - original.inputs).max(axis=(1, 2))[seen.length > 1] > 0.01)
    # Another epoch turns a walk otherwise; a part of a batch is what it is in the whole.
    shared = sorted(set(numbers) & set(turned.numbers(other)))
    where = [np.flatnonzero(turned.numbers(e) == shared[-1])[0] for e in (entry, other)]
    steps = min(seen.inputs.shape[1], turned.batch(other).inputs.shape[1])
    first, second = seen.inputs[where[0], :steps], turned.batch(other).inputs[where[1], :steps]
    assert np.abs(first - second).max() > 0.01
    rows = np.array([5, 2])
    np.testing.assert_allclose(
        turned.batch(turned.select(entry, rows)).inputs, seen.inputs[rows], atol=1e-6
    )
    # As evaluated they are as they are.
    whole = turned.plan(8, 2, None)[0]
    np.testing.assert_array_equal(turned.batch(whole).inputs, plain.batch(whole[0]).inputs)
