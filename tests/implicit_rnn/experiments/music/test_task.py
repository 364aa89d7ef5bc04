"""Polyphonic music: files as they should be and damaged ones, windows, and generated chords."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from implicit_rnn.experiments import data
from implicit_rnn.experiments.music.chords import chords
from implicit_rnn.experiments.music.task import FILES, KEYS, frames, music_task, read_music

LENGTHS = {"train": [5, 9, 1, 3], "valid": [4], "test": [2, 6]}
ARRAYS = {}
for split, lengths in LENGTHS.items():
    rolls = np.random.default_rng(len(lengths)).random((sum(lengths), KEYS)) < 0.3
    ARRAYS |= {split: rolls.astype(np.uint8), f"{split}_lengths": np.array(lengths, np.int32)}


def file_of(folder: Path, **changed: np.ndarray) -> Path:
    path = folder / "small.npz"
    np.savez_compressed(path, **(ARRAYS | changed))
    return path


def test_a_file_becomes_pieces(tmp_path: Path):
    found = read_music(file_of(tmp_path))
    assert {split: [len(piece) for piece in pieces] for split, pieces in found.items()} == LENGTHS
    np.testing.assert_array_equal(found["train"][1], ARRAYS["train"][5:14])
    task = music_task(music="jsb", path=str(file_of(tmp_path)))
    assert task.sizes == {"keys": 88}
    assert task.metric == "nll"
    # A piece of one frame has nothing to predict.
    assert [source.shape for source in task.splits.values()] == [(3, 8), (1, 3), (2, 5)]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"valid": np.zeros((4, 87), np.uint8)},
            "valid must hold bytes .* any x 88, got .* 4 x 87",
        ),
        ({"test": np.zeros((8, 88))}, "test must hold bytes .* got float64"),
        ({"valid": np.full((4, 88), 3, np.uint8)}, "frame 0 of valid has 3 for key 0"),
        ({"valid_lengths": np.array([5])}, "have 5 frames together, valid has 4"),
        ({"valid_lengths": np.array([4, 0])}, "entry 1 of valid_lengths is 0"),
        ({"valid_lengths": np.array([4.0])}, "one integer a piece, got float64"),
    ],
)
def test_what_is_wrong_with_a_file_is_named(tmp_path: Path, changed: dict, message: str):
    with pytest.raises(data.DataError, match=f"small.npz: .*{message}"):
        read_music(file_of(tmp_path, **changed))


def test_a_damaged_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = file_of(tmp_path)
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b"no archive", b""):
        path.write_bytes(content)
        with pytest.raises(data.DataError, match=r"small.npz is damaged"):
            read_music(path)
    np.savez(path, train=ARRAYS["train"])
    with pytest.raises(data.DataError, match=r"small.npz lacks an array: .*train_lengths"):
        read_music(path)
    monkeypatch.setenv("IMPLICIT_RNN_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(data.DataError, match=r"Nottingham.npz is not in .*data fetch poly_music"):
        music_task(music="nottingham")
    # Other bytes of the set's own size, where its file belongs, are noticed.
    wanted = {file.path: file for file in data.DATASETS["poly_music"].files}["Nottingham.npz"]
    (tmp_path / "poly_music").mkdir()
    (tmp_path / "poly_music" / "Nottingham.npz").write_bytes(whole.ljust(wanted.size, b"\0"))
    with pytest.raises(data.DataError, match=r"Nottingham.npz is damaged \(its checksum differs"):
        music_task(music="nottingham")


@pytest.mark.parametrize("window", [0, 1, 3, 8, 100])
def test_every_frame_but_the_first_is_predicted_once(tmp_path: Path, window: int):
    pieces = read_music(file_of(tmp_path))["train"]
    source = frames(pieces, window)
    predicted, given = [], []
    for entry in source.plan(2, 1, None):
        batch = source.batch(entry)
        assert batch.frames.shape[1] == entry[1] + 1
        for rows, n in zip(batch.frames, batch.length, strict=True):
            assert n <= (window or 8)
            assert np.all(rows[n + 1 :] == 0)
            predicted.append(rows[1 : n + 1])
            given.append(rows[:n])
    sorted_rows = [
        sorted(map(bytes, np.concatenate(rows).astype(np.uint8))) for rows in (predicted, given)
    ]
    for rows, part in zip(sorted_rows, (slice(1, None), slice(None, -1)), strict=True):
        assert rows == sorted(map(bytes, np.concatenate([piece[part] for piece in pieces])))


def test_only_training_is_cut_into_windows(tmp_path: Path):
    task = music_task(music="piano", path=str(file_of(tmp_path)), window=2)
    assert task.splits["train"].shape == (2 + 4 + 1, 2)
    assert [task.splits[name].shape for name in ("valid", "test")] == [(1, 3), (2, 5)]


def test_generated_pieces_follow_their_seed_and_stay_in_their_key():
    pieces = chords(3, 20)
    for one, other in zip(pieces, chords(3, 20), strict=True):
        np.testing.assert_array_equal(one, other)
    assert any(np.any(a[:30] != b[:30]) for a, b in zip(pieces, chords(4, 20), strict=True))
    for piece in pieces:
        assert piece.dtype == np.uint8
        assert piece.shape[1] == KEYS
        assert piece.shape[0] in (33, 49, 65)
        assert set(np.unique(piece)) == {0, 1}
        # A major scale has seven of the twelve notes.
        notes = {int(key) % 12 for key in np.flatnonzero(piece.any(axis=0))}
        assert len(notes) <= 7
        # The bass goes on as the order of chords says: the same again after four chords.
        bass = piece.argmax(axis=1)
        np.testing.assert_array_equal(bass[16:32], bass[:16])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"music": "bach"}, "music must be generated, jsb, .* got 'bach'"),
        ({"window": -1}, "window must not be negative"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        music_task(**options)
    with pytest.raises(ValueError, match="no piece of two frames"):
        frames([np.zeros((1, KEYS), np.uint8)])


PUBLISHED = {
    "jsb": ((229, 76, 77), (13_807, 4_602, 4_725), 3.898),
    "nottingham": ((694, 173, 170), (176_561, 45_513, 44_463), 3.961),
    "piano": ((87, 12, 25), (75_911, 8_540, 19_036), 3.044),
    "musedata": ((524, 135, 124), (245_202, 82_755, 64_339), 3.493),
}


@pytest.mark.parametrize("name", list(PUBLISHED))
def test_real_sets_are_as_published(name: str):
    try:
        path = data.find("poly_music", FILES[name])
    except data.DataError as error:
        pytest.skip(str(error))
    pieces, total, notes = PUBLISHED[name]
    found = read_music(path)
    assert tuple(map(len, found.values())) == pieces
    assert tuple(sum(map(len, part)) for part in found.values()) == total
    assert np.concatenate(found["train"]).sum() / total[0] == pytest.approx(notes, abs=1e-3)
    sizes = {file.path: file for file in data.DATASETS["poly_music"].files}
    data.verify(path, sizes[FILES[name]])
