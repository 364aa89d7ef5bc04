"""Handwritten digits: files as they should be and damaged ones, what is removed, what succeeds."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from implicit_rnn.experiments.data import DataError, digits, find, mnist
from implicit_rnn.experiments.hopfield.task import associative_memory_task, corrupt, success


def idx(array: np.ndarray) -> bytes:
    """An array of bytes as an IDX file holds it."""
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.astype(np.uint8).tobytes()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """MNIST in small: twenty images of which the first pixel tells the number."""
    monkeypatch.setenv("IMPLICIT_RNN_DATA", str(tmp_path))
    (tmp_path / "mnist").mkdir()
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (20, 28, 28))
    images[:, 0, 0] = np.arange(20)
    for split in mnist.SPLITS.values():
        write(tmp_path / "mnist" / f"{split}-images-idx3-ubyte.gz", idx(images))
        write(tmp_path / "mnist" / f"{split}-labels-idx1-ubyte.gz", idx(np.arange(20)[::-1] % 10))
    return tmp_path / "mnist"


def write(path: Path, content: bytes) -> None:
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


@pytest.mark.parametrize("split", ["train", "test"])
def test_mnist_is_read_packed_or_not(folder: Path, split: str) -> None:
    images, labels = mnist.load(split)
    assert images.shape == (20, 28, 28)
    assert images.dtype == labels.dtype == np.uint8
    assert images[:, 0, 0].tolist() == list(range(20))
    assert labels[:3].tolist() == [9, 8, 7]
    packed = folder / f"{mnist.SPLITS[split]}-labels-idx1-ubyte.gz"
    write(packed.with_suffix(""), gzip.decompress(packed.read_bytes()))
    packed.unlink()
    np.testing.assert_array_equal(mnist.load(split)[1], labels)


LABELS, IMAGES = "train-labels-idx1-ubyte.gz", "train-images-idx3-ubyte.gz"


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (LABELS, idx(np.zeros((20, 1))), "it begins with 2050, not 2049"),
        (IMAGES, b"", "it begins with 0, not 2051"),
        (IMAGES, idx(np.zeros((20, 28, 28)))[:-1], "15,695 bytes unpacked, 15,696 expected"),
        (IMAGES, idx(np.zeros((20, 28, 28))) + b"x", "an array of 20 x 28 x 28"),
        (IMAGES, idx(np.zeros((20, 28, 27))), "28 x 27 pixels, 28 x 28 expected"),
        (LABELS, idx(np.zeros(19)), "holds 19 labels for the 20 images"),
        (LABELS, idx(np.full(20, 10)), "the label 10, which is no digit"),
        (LABELS, idx(np.zeros(20))[:6], "unpacked"),
    ],
)
def test_a_damaged_file_is_named(folder: Path, file: str, content: bytes, message: str) -> None:
    write(folder / file, content)
    with pytest.raises(DataError, match=message) as raised:
        mnist.load("train")
    assert str(folder / file) in str(raised.value)
    assert mnist.load("test")[0].shape == (20, 28, 28)


@pytest.mark.parametrize("damage", [lambda b: b[:-20], lambda b: b"\x00" + b, lambda b: b""])
def test_a_truncated_archive_is_named(folder: Path, damage) -> None:
    path = folder / IMAGES
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz (is damaged|is no such)"):
        mnist.load("train")


def test_a_missing_file_and_an_unknown_split_are_named(folder: Path) -> None:
    (folder / LABELS).unlink()
    with pytest.raises(DataError, match="train-labels-idx1-ubyte is not in"):
        mnist.load("train")
    with pytest.raises(ValueError, match='split must be "train" or "test"'):
        mnist.load("valid")


def test_real_mnist() -> None:
    try:
        find("mnist", "t10k-labels-idx1-ubyte")
    except DataError as error:
        pytest.skip(str(error))
    images, labels = mnist.load("test")
    counts = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert np.bincount(labels).tolist() == counts
    assert images.mean() / 255 == pytest.approx(0.1325, abs=1e-4)


def test_own_digits_are_those_of_scikit_learn() -> None:
    images, labels = digits.load()
    assert images.shape == (300, 8, 8)
    assert labels[:12].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    assert np.all(np.bincount(labels) >= 29)
    assert images.min() == 0
    assert images.max() == 16
    assert images[0, 0].tolist() == [0, 0, 5, 13, 9, 1, 0, 0]
    assert images[0, 7].tolist() == [0, 0, 6, 13, 10, 0, 0, 0]


@pytest.mark.parametrize("images", ["digits", "mnist"])
def test_one_image_of_each_digit_with_and_without_half_its_ink(folder: Path, images: str) -> None:
    task = associative_memory_task(images=images)
    pixels = {"digits": 64, "mnist": 784}[images]
    assert task.sizes == {"pixels": pixels}
    parts = task.details["patterns"]
    for name, part in parts.items():
        assert part.observed.shape == part.target.shape == (10, pixels)
        assert part.observed.dtype == np.float32
        np.testing.assert_array_equal(part.target, parts["train"].observed)
        assert set(np.unique(part.observed)) <= {0, 1}
        ink, left = part.target.sum(axis=1), part.observed.sum(axis=1)
        np.testing.assert_array_equal(left, ink if name == "train" else ink - ink // 2)
        assert np.all(part.observed <= part.target)
    assert np.any(parts["valid"].observed != parts["test"].observed)
    if images == "mnist":  # the first image of digit 0 is the last but ten
        first = mnist.load("train")[0][9].reshape(-1)
        np.testing.assert_array_equal(parts["train"].target[0], first > 127.5)


def test_options_of_the_task() -> None:
    def shown(**options):
        return associative_memory_task(**options).details["patterns"]["test"]

    np.testing.assert_array_equal(shown(seed=1).observed, shown(seed=1).observed)
    assert np.any(shown(seed=1).observed != shown(seed=2).observed)
    assert np.all(shown(corruption=1.0).observed == 0)
    assert np.all(shown(corruption=0.0).observed == shown().target)
    assert shown(threshold=0.0).target.sum() > shown().target.sum()
    assert len(shown(count=25).target) == 25
    np.testing.assert_array_equal(shown(count=25).target[:10], shown().target)
    for options, message in (
        ({"count": 0}, "count must be at least 1"),
        ({"count": 301}, "there are only 300 images"),
        ({"corruption": 1.5}, "corruption must lie between 0 and 1"),
        ({"threshold": -0.1}, "threshold must lie between 0 and 1"),
    ):
        with pytest.raises(ValueError, match=message):
            shown(**options)


def test_grey_pixels_are_removed_whole() -> None:
    image = np.array([[0, 0.2, 0.7], [1, 0, 0.5]], np.float32)
    left = corrupt(image, 0.75, np.random.default_rng(0))
    assert (left != 0).sum() == 1
    assert np.all((left == 0) | (left == image))
    assert (image != 0).sum() == 4  # itself unchanged


def test_batches_cover_the_images() -> None:
    source = associative_memory_task().splits["train"]
    plan = source.plan(4, 1, np.random.default_rng(0))
    assert [len(entry) for entry in plan] == [4, 4]
    assert len({*np.concatenate(plan)}) == 8
    assert np.concatenate(source.plan(4, 1, None)).tolist() == list(range(10))
    assert source.batch(plan[0]).observed.shape == (4, 64)
    with pytest.raises(ValueError, match="a batch of 11 is more than the 10 images"):
        source.plan(11, 1, np.random.default_rng(0))


def test_success_is_half_the_first_loss() -> None:
    def lines(*losses, skipped=0):
        return [{"loss": loss, "skipped": skipped} for loss in losses]

    assert success(lines(1.0, 3.0, 0.49)) == {"success": 1.0}
    assert success(lines(1.0, 0.1, 0.5)) == {"success": 0.0}
    assert success(lines(1.0, 0.0, skipped=1)) == {"success": 0.0}
