"""Music that needs no file: chords of a key in a common order, a bass below and a tune above."""

from __future__ import annotations

import numpy as np

_LOWEST = 21  # MIDI note of the first of the 88 keys
_SCALE = np.array([0, 2, 4, 5, 7, 9, 11])  # major, in semitones above the tonic
_ORDERS = ((0, 4, 5, 3), (0, 5, 3, 4), (0, 3, 4, 0))  # degrees of the scale, a chord each
_BEATS = 4  # frames a chord


def chords(seed: int, count: int) -> list[np.ndarray]:
    """Pieces of 33 to 65 frames: a key, an order of chords that is repeated, a tune over it.

    A piece keeps its key and its order; every chord lasts four frames. What cannot be foreseen is
    the tune, of notes of the chord, and one note of the chord in twenty, which is left out.

    Args:
      seed: the same seed gives the same pieces.
      count: how many.

    Returns:
      uint8 `[frames, 88]` of 0 and 1 each.
    """
    rng = np.random.default_rng((88, seed))
    return [_piece(rng) for _ in range(count)]


def _piece(rng: np.random.Generator) -> np.ndarray:
    tonic = 60 - _LOWEST + int(rng.integers(-5, 7))
    order = _ORDERS[rng.integers(len(_ORDERS))]
    frames = 16 * int(rng.integers(2, 5)) + 1
    roll = np.zeros((frames, 88), np.uint8)
    for time in range(frames):
        degree = order[time // _BEATS % len(order)]
        chord = tonic + _SCALE[(degree + np.array([0, 2, 4])) % len(_SCALE)]
        roll[time, chord[rng.random(3) >= 0.05]] = 1
        roll[time, chord[0] - 24] = 1
        roll[time, chord[rng.integers(3)] + 12] = 1
    return roll
