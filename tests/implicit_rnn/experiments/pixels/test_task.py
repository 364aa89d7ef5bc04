"""Images pixel by pixel: files as they should be and damaged ones, orders, pooling, splits."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from implicit_rnn.cli import main
from implicit_rnn.experiments import data
from implicit_rnn.experiments.data import digits, mnist
from implicit_rnn.experiments.pixels import cifar10
from implicit_rnn.experiments.pixels.task import pixels_task
from tests.implicit_rnn.experiments.hopfield.test_task import idx, write


def encoded(images: np.ndarray) -> np.ndarray:
    """The inverse of `cifar10.decode`, one number after the other."""
    planes = images.transpose(3, 0, 1, 2).astype(int)
    planes = np.stack([planes[0] - planes[1], planes[1], planes[2] - planes[1]])
    across = planes.copy()
    across[..., 1:] -= planes[..., :-1]
    down = across.copy()
    down[:, :, 1:] -= across[:, :, :-1]
    return (down % 256).astype(np.uint8)


IMAGES = np.random.default_rng(0).integers(0, 256, (20, 32, 32, 3)).astype(np.uint8)
ARRAYS = {
    "x_train_enc": encoded(IMAGES),
    "y_train": np.arange(20, dtype=np.uint8) % 10,
    "x_test_enc": encoded(IMAGES[:5]),
    "y_test": np.arange(5, dtype=np.uint8),
}


def file_of(folder: Path, **changed: np.ndarray) -> Path:
    (folder / "cifar10").mkdir(exist_ok=True)
    path = folder / "cifar10" / cifar10.FILE
    np.savez_compressed(path, **(ARRAYS | changed))
    return path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Both sets in small, in the formats of the real ones."""
    monkeypatch.setenv("IMPLICIT_RNN_DATA", str(tmp_path))
    file_of(tmp_path)
    (tmp_path / "mnist").mkdir()
    for split, count in {"train": 20, "t10k": 8}.items():
        images = np.random.default_rng(count).integers(0, 256, (count, 28, 28))
        write(tmp_path / "mnist" / f"{split}-images-idx3-ubyte.gz", idx(images))
        write(tmp_path / "mnist" / f"{split}-labels-idx1-ubyte.gz", idx(np.arange(count) % 10))
    return tmp_path


def test_the_subset_of_cifar_is_decoded(folder: Path):
    for split, count in {"train": 20, "test": 5}.items():
        images, labels = cifar10.load(split)
        np.testing.assert_array_equal(images, IMAGES[:count])
        np.testing.assert_array_equal(labels, ARRAYS[f"y_{split}"])
        assert images.dtype == labels.dtype == np.uint8
    with pytest.raises(ValueError, match='split must be "train" or "test"'):
        cifar10.load("valid")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"y_train": np.zeros(19, np.uint8)}, "y_train has 19 labels for the 20 images"),
        ({"y_train": np.full(20, 10, np.uint8)}, "entry 0 of y_train is 10, .* from 0 to 9"),
        ({"y_train": np.zeros(20)}, r"y_train must hold bytes \(uint8\).* got float64"),
        ({"x_train_enc": ARRAYS["x_train_enc"][:2]}, "3 x any x 32 x 32, .* 2 x 20 x 32 x 32"),
        ({"x_train_enc": ARRAYS["y_train"]}, "of shape 3 x any x 32 x 32, got uint8 of shape 20"),
    ],
)
def test_what_is_wrong_with_a_file_is_named(folder: Path, changed: dict, message: str):
    path = file_of(folder, **changed)
    with pytest.raises(data.DataError, match=message) as raised:
        pixels_task(images="cifar10_subset")
    assert str(path) in str(raised.value)


def test_a_damaged_file_is_named(folder: Path, capsys):
    path = file_of(folder)
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 3] ^= 0xFF
    for content in (whole[: len(whole) // 2], b"no archive", b"", bytes(flipped)):
        path.write_bytes(content)
        with pytest.raises(data.DataError, match=r"cifar10_subset.npz is damaged"):
            cifar10.load("train")
    assert main(["data", "verify", "cifar10"]) == 1
    assert "cifar10_subset.npz has" in capsys.readouterr().out
    np.savez(path, x_train_enc=ARRAYS["x_train_enc"])
    with pytest.raises(data.DataError, match=r"cifar10_subset.npz lacks an array: .*y_train"):
        cifar10.load("train")
    path.unlink()
    with pytest.raises(data.DataError, match=r"cifar10_subset.npz is not in"):
        cifar10.load("train")


def test_a_file_of_the_right_size_and_the_wrong_content_is_refused(folder: Path, capsys):
    wanted = data.DATASETS["cifar10"].files[0]
    path = file_of(folder)
    with open(path, "wb") as file:
        file.truncate(wanted.size)
    assert main(["data", "verify", "cifar10"]) == 1
    assert "cifar10_subset.npz is damaged (its checksum differs)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("images", "steps", "channels", "counts"),
    [
        ("digits", 64, 1, (216, 24, 60)),
        ("mnist", 784, 1, (18, 2, 8)),
        ("cifar10_subset", 1024, 3, (18, 2, 5)),
    ],
)
def test_images_become_standardised_sequences(folder: Path, images, steps, channels, counts):
    task = pixels_task(images=images)
    assert task.sizes == {"input_size": channels, "labels": 10}
    assert tuple(source.shape[0] for source in task.splits.values()) == counts
    source = task.splits["train"]
    batch = source.batch((np.arange(counts[0]), steps))
    assert batch.inputs.shape == (counts[0], steps, channels)
    assert batch.inputs.dtype == np.float32
    np.testing.assert_allclose(batch.inputs.mean(axis=(0, 1)), 0, atol=1e-4)
    np.testing.assert_allclose(batch.inputs.std(axis=(0, 1)), 1, atol=1e-4)
    np.testing.assert_array_equal(batch.length, steps)
    # Pixels row by row: a straight line through the values of the image.
    shown = task.details["images"]["train"][0][3].reshape(steps, channels)
    for channel in range(channels):
        line = np.polyfit(shown[:, channel], batch.inputs[3, :, channel], 1)
        fitted = np.polyval(line, shown[:, channel])
        np.testing.assert_allclose(batch.inputs[3, :, channel], fitted, atol=1e-4)


def test_validation_images_are_the_last_to_train_on(folder: Path):
    task = pixels_task(images="mnist", valid=5)
    learnt = mnist.load("train")[0]
    np.testing.assert_array_equal(task.details["images"]["train"][0][..., 0], learnt[:15])
    np.testing.assert_array_equal(task.details["images"]["valid"][0][..., 0], learnt[15:])
    # The test images say nothing of how inputs are scaled.
    rows = [pixels_task(images="mnist", test=count).splits["train"].batch for count in (1, 8)]
    entry = np.arange(3), 784
    np.testing.assert_array_equal(rows[0](entry).inputs, rows[1](entry).inputs)


def test_fewer_images_are_spread_over_all():
    task = pixels_task(train=3, test=4)
    images, labels = digits.load()
    np.testing.assert_array_equal(task.details["images"]["train"][1], labels[[0, 107, 215]])
    np.testing.assert_array_equal(task.details["images"]["test"][0][0, ..., 0], images[240])
    np.testing.assert_array_equal(task.details["images"]["test"][0][-1, ..., 0], images[299])


def test_pooled_steps_are_means_of_squares():
    whole, pooled = pixels_task(), pixels_task(pool=2)
    entry = np.arange(7)
    fine = whole.splits["test"].batch((entry, 64)).inputs.reshape(7, 8, 8)
    coarse = pooled.splits["test"].batch((entry, 16)).inputs.reshape(7, 4, 4)
    for row in range(4):
        for column in range(4):
            square = fine[:, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2]
            np.testing.assert_allclose(coarse[:, row, column], square.mean(axis=(1, 2)), atol=1e-5)


def test_permuted_pixels_have_one_order_for_all_images():
    plain = pixels_task().splits["train"].batch((np.arange(9), 64)).inputs
    tasks = [pixels_task(permuted=True, seed=seed) for seed in (1, 1, 2)]
    found = [task.splits["train"].batch((np.arange(9), 64)).inputs for task in tasks]
    order = tasks[0].details["order"]
    assert sorted(order) == list(range(64))
    np.testing.assert_array_equal(found[0], plain[:, order])
    np.testing.assert_array_equal(found[0], found[1])
    assert np.any(found[0] != found[2])


def test_an_evaluation_counts_every_image_once():
    source = pixels_task().splits["test"]
    batches = [source.batch(entry) for entry in source.plan(25, 2, None)]
    labels = np.concatenate([batch.labels for batch in batches])
    lengths = np.concatenate([batch.length for batch in batches])
    assert len(labels) == 75
    np.testing.assert_array_equal(labels[:60], digits.load()[1][-60:])
    assert np.all(labels[60:] == -1)
    assert np.all(lengths[60:] == 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"images": "cifar10"}, "digits, mnist or cifar10_subset, got 'cifar10'"),
        ({"valid": 0}, "valid must be from 1 to 239"),
        ({"valid": 240}, "valid must be from 1 to 239"),
        ({"train": 217}, "train must be from 1 to 216, .*: 217"),
        ({"test": 0}, "test must be from 1 to 60"),
        ({"pool": 3}, "pool must divide the 8 pixels of a side, got 3"),
        ({"pool": 0}, "pool must divide"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        pixels_task(**options)


def test_the_real_subset_of_cifar():
    try:
        data.find("cifar10", cifar10.FILE)
    except data.DataError as error:
        pytest.skip(str(error))
    expected = {
        "train": (10_000, 6, [59, 62, 63], "fc115a3de050d667"),
        "test": (4_000, 3, [158, 112, 49], "4845b5dc334d69d7"),
    }
    for split, (count, label, pixel, checksum) in expected.items():
        images, labels = cifar10.load(split)
        assert images.shape == (count, 32, 32, 3)
        assert (labels[0], images[0, 0, 0].tolist()) == (label, pixel)
        assert hashlib.sha256(images.tobytes()).hexdigest().startswith(checksum)
    assert np.bincount(labels).tolist() == [389, 392, 426, 389, 400, 388, 396, 397, 408, 415]
    assert main(["data", "verify", "cifar10"]) == 0


def test_real_mnist_pixel_by_pixel():
    try:
        data.find("mnist", "train-images-idx3-ubyte")
    except data.DataError as error:
        pytest.skip(str(error))
    task = pixels_task(images="mnist", valid=5_000, test=1_000)
    assert [source.shape for source in task.splits.values()] == [
        (55_000, 784), (5_000, 784), (1_000, 784),
    ]  # fmt: skip
