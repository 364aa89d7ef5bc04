"""Trainings to learn hyperparameters from: orders, sets that share nothing, what is refused."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from implicit_rnn.experiments.data import digits
from implicit_rnn.experiments.hyper.task import hyper_task, orders


def test_every_epoch_of_an_order_visits_whole_mini_batches_of_different_examples():
    order = orders(np.random.default_rng(0), 11, 7, 3)
    assert order.shape == (7, 3)
    assert order.dtype == np.int32
    for epoch in (order[:3], order[3:6]):
        assert len(np.unique(epoch)) == 9
    assert not np.array_equal(order[:3], order[3:6])


def test_one_mini_batch_of_all_examples_is_an_epoch():
    order = orders(np.random.default_rng(0), 5, 3, 5)
    np.testing.assert_array_equal(np.sort(order, axis=1), np.tile(np.arange(5), (3, 1)))


def test_no_example_is_in_two_sets_and_pixels_have_the_mean_of_the_training_set():
    parts = hyper_task(train=200, held_out=50).details["examples"]
    assert [len(parts[name][0]) for name in ("training", "validation", "test")] == [200, 50, 50]
    np.testing.assert_allclose(parts["training"][0].mean(axis=0), 0, atol=1e-6)
    everything = np.concatenate([inputs for inputs, _ in parts.values()])
    images, labels = digits.load()
    plain = images.reshape(len(images), -1) / 16
    # All 300 are used: the same images in another order, less one and the same mean.
    np.testing.assert_allclose(
        np.sort((everything - everything.mean(axis=0)).sum(axis=1)),
        np.sort((plain - plain.mean(axis=0)).sum(axis=1)),
        atol=1e-4,
    )
    told = np.concatenate([labels for _, labels in parts.values()])
    np.testing.assert_array_equal(np.bincount(told), np.bincount(labels))


def test_meta_examples_are_those_of_the_training_or_held_out():
    for meta in ("training", "validation"):
        task = hyper_task(train=60, held_out=20, minibatch=10, steps=4, meta=meta)
        parts = task.details["examples"]
        for split, wanted in (("train", meta), ("valid", meta), ("test", "test")):
            source = task.splits[split]
            batch = source.batch(source.plan(2, 1, None)[0])
            assert batch.order.shape == (1, 4, 10)
            np.testing.assert_array_equal(batch.inputs, parts["training"][0])
            np.testing.assert_array_equal(batch.meta_inputs, parts[wanted][0])
            np.testing.assert_array_equal(batch.meta_labels, parts[wanted][1])


def test_orders_are_drawn_anew_or_stay_as_asked():
    def order(redraw, seed):
        source = hyper_task(train=60, minibatch=10, redraw=redraw).splits["train"]
        return source.batch(source.plan(2, 1, np.random.default_rng(seed))[0]).order

    assert order(True, 0).shape == (2, 100, 10)
    np.testing.assert_array_equal(order(True, 0), order(True, 0))
    assert not np.array_equal(order(True, 0), order(True, 1))
    np.testing.assert_array_equal(order(False, 0), order(False, 1))
    assert not np.array_equal(order(False, 0)[0], order(False, 0)[1])


def test_an_evaluation_makes_every_repetition_once():
    source = hyper_task(train=60, minibatch=10, repeats=5).splits["valid"]
    assert [len(entry) for entry in source.plan(2, 1, None)] == [2, 2, 1]
    everything = np.concatenate([source.batch(e).order for e in source.plan(2, 1, None)])
    assert len({own.tobytes() for own in everything}) == 5


def test_mnist_gives_its_own_test_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    folder = tmp_path / "mnist"
    folder.mkdir()
    for split, count in (("train", 30), ("t10k", 10)):
        images = rng.integers(0, 256, (count, 28, 28), np.uint8)
        labels = rng.integers(0, 10, count, np.uint8)
        for name, array in (("images-idx3", images), ("labels-idx1", labels)):
            header = b"".join(int(n).to_bytes(4, "big") for n in (0x800 + array.ndim, *array.shape))
            path = folder / f"{split}-{name}-ubyte.gz"
            path.write_bytes(gzip.compress(header + array.tobytes()))
    monkeypatch.setenv("IMPLICIT_RNN_DATA", str(tmp_path))
    task = hyper_task(data="mnist", train=20, held_out=10, minibatch=5)
    assert task.sizes == {"input_size": 784, "labels": 10}
    found, told = task.details["examples"]["test"]
    assert found.shape == (10, 784)
    assert sorted(told) == sorted(labels)
    with pytest.raises(ValueError, match=r"25 \+ 10 examples wanted, there are 30"):
        hyper_task(data="mnist", train=25, held_out=10, minibatch=5)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"minibatch": 0}, "minibatch"), ({"minibatch": 201}, "at most 200"),
        ({"steps": 0}, "steps"), ({"train": 290}, "there are 300"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_are_refused(settings: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        hyper_task(**settings)
