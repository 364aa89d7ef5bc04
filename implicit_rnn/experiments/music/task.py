"""Polyphonic music: which of the piano's 88 keys sound next?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from implicit_rnn.experiments import data
from implicit_rnn.experiments.data.arrays import check_array, read_arrays
from implicit_rnn.experiments.music.chords import chords
from implicit_rnn.experiments.task import Task
from implicit_rnn.training.sources import Source, bucketed, evaluated_alike

KEYS = 88
SPLITS = ("train", "valid", "test")
FILES = {
    "jsb": "JSB_Chorales.npz",
    "nottingham": "Nottingham.npz",
    "piano": "Piano_midi.npz",
    "musedata": "MuseData.npz",
}
_GENERATED = {"train": 120, "valid": 30, "test": 30}

Pieces = Sequence[np.ndarray]  # uint8 [frames, 88] each


class Frames(NamedTuple):
    """Pieces, or windows of them; what is past a length is zero.

    Frame `t` is an input of prediction `t`, and what prediction `t - 1` should have been.
    """

    frames: np.ndarray  # float32 [count, time + 1, 88]
    length: np.ndarray  # int32 [count]: how many frames are predicted, one fewer than there are


def music_task(
    *,
    music: Literal["generated", "jsb", "nottingham", "piano", "musedata"] = "generated",
    path: str | None = None,
    window: int = 0,
) -> Task:
    """The next frame of a piece from those before it (section 4.5 of the 2021 paper).

    The metric is that of the papers' tables and of the TCN's public code: the negative
    log-likelihood of a frame, summed over its keys, in nats, in the mean over all predicted frames
    of all pieces. A piece of T frames has T - 1 of them, the first being given, so that a long
    piece counts for more than a short one.

    Args:
      music: chorales of Bach, folk tunes of Nottingham, Piano-midi.de, MuseData, or generated
        `chords`, always the same.
      path: the `.npz` file of the music, in place of the data set's own (`read_music`).
      window: pieces to train on are cut into windows of so many predictions, each read from a state
        of zero; 0: they are not. Pieces to validate and test on are read whole.
    """
    if window < 0:
        raise ValueError(f"window must not be negative, got {window}")
    if music == "generated":
        splits: Mapping[str, Pieces] = {
            name: chords(number, count) for number, (name, count) in enumerate(_GENERATED.items())
        }
    elif music in FILES:
        splits = read_music(Path(path) if path else data.sound("poly_music", FILES[music]))
    else:
        raise ValueError(f"music must be generated, {', '.join(FILES)}, got {music!r}")
    sources = {
        name: frames(pieces, window if name == "train" else 0) for name, pieces in splits.items()
    }
    return Task("frames", {"keys": KEYS}, evaluated_alike(sources), "nll", {})


def read_music(path: Path) -> dict[str, list[np.ndarray]]:
    """Pieces by split out of an `.npz` file.

    Args:
      path: the file, with two arrays for each of `train`, `valid` and `test`: under this name all
        frames of all pieces one after the other, uint8 `[frames, 88]` of 0 and 1, the lowest key
        first (MIDI note 21), and under `NAME_lengths` how many frames each piece has.
    """
    found = read_arrays(path, [name for split in SPLITS for name in (split, f"{split}_lengths")])
    pieces = {}
    for split in SPLITS:
        roll, lengths = found[split], found[f"{split}_lengths"]
        check_array(path, split, roll, (None, KEYS))
        if lengths.ndim != 1 or not np.issubdtype(lengths.dtype, np.integer):
            raise data.DataError(
                f"{path}: {split}_lengths must hold one integer a piece, got {lengths.dtype} of "
                f"shape {lengths.shape}"
            )
        short = np.flatnonzero(lengths < 1)
        if short.size:
            raise data.DataError(
                f"{path}: entry {short[0]} of {split}_lengths is {lengths[short[0]]}, but a piece "
                "has at least one frame"
            )
        if (together := sum(map(int, lengths))) != len(roll):
            raise data.DataError(
                f"{path}: the pieces of {split}_lengths have {together:,} frames together, "
                f"{split} has {len(roll):,}"
            )
        bad = np.argwhere(roll > 1)
        if bad.size:
            row, key = bad[0]
            raise data.DataError(
                f"{path}: frame {row} of {split} has {roll[row, key]} for key {key}, but a key is "
                "0 or 1"
            )
        pieces[split] = np.split(roll, np.cumsum(lengths)[:-1])
    return pieces


def frames(pieces: Pieces, window: int = 0) -> Source:
    """A source of pieces, or of their windows, in batches of about equal length.

    Every frame of a piece but its first is predicted once: a window begins with the frame that the
    one before it predicted last.

    Args:
      pieces: those of a single frame have nothing to predict and are left out.
      window: predictions a window; 0: pieces are read whole.
    """
    cut = [
        piece[first : first + (window or len(piece)) + 1]
        for piece in pieces
        for first in range(0, len(piece) - 1, window or len(piece))
    ]
    if not cut:
        raise ValueError("there is no piece of two frames or more")
    length = np.array([len(part) - 1 for part in cut], np.int32)

    def take(index: np.ndarray, time: int) -> Frames:
        found = np.zeros((len(index), time + 1, KEYS), np.float32)
        for row, number in zip(found, index, strict=True):
            if number >= 0:
                row[: length[number] + 1] = cut[number]
        return Frames(found, np.where(index < 0, 0, length[index]).astype(np.int32))

    return bucketed(length, take, int(length.max()))
