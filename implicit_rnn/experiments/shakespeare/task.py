"""Text, character by character: parallel streams of it, a window at a time."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from implicit_rnn.experiments import data
from implicit_rnn.experiments.data.lines import lines
from implicit_rnn.experiments.task import Task
from implicit_rnn.training.sources import Source


class Window(NamedTuple):
    tokens: np.ndarray  # int32 [batch, window + 1]: inputs, and the same one later as targets


def streams(tokens: np.ndarray, window: int) -> Source:
    """Windows of parallel streams: batch after batch, every stream goes on where it was.

    The text is cut into as many streams of equal length as a batch has places; up to that many
    characters at its end are left out. The last window of all is shorter in an evaluation, and left
    out in training.
    """

    def plan(batch: int, buckets: int, rng: np.random.Generator | None) -> list:
        steps = (len(tokens) - 1) // batch
        if steps < (1 if rng is None else window):
            raise ValueError(
                f"{len(tokens)} characters are too few for {batch} streams of a window of {window}"
            )
        starts = np.arange(batch) * steps
        whole = [(starts + first, window) for first in range(0, steps - window + 1, window)]
        rest = steps % window
        return whole + ([(starts + steps - rest, rest)] if rest and rng is None else [])

    def take(entry: tuple[np.ndarray, int]) -> Window:
        starts, size = entry
        return Window(tokens[starts[:, None] + np.arange(size + 1)])

    return Source(plan, take)


def tiny_shakespeare_task(*, window: int = 100, held_out: float = 0.1) -> Task:
    """Tiny Shakespeare, the next character from those before it.

    Args:
      window: characters an update; the state is carried from window to window.
      held_out: share at the end of the text that is tested on; half as much before it validates.
    """
    text = "\n".join(line for line, _ in lines(data.sound("tiny_shakespeare", "input.txt")))
    alphabet = sorted(set(text))
    number = {character: index for index, character in enumerate(alphabet)}
    tokens = np.array([number[character] for character in text], np.int32)
    return text_task(tokens, alphabet, window, held_out)


def text_task(tokens: np.ndarray, alphabet: list[str], window: int, held_out: float) -> Task:
    """A task of any text that has been made numbers."""
    if not 0 < held_out <= 0.5:
        raise ValueError(f"held_out must be above 0 and at most 0.5, got {held_out}")
    first, second = (int(len(tokens) * (1 - share * held_out)) for share in (1.5, 1))
    splits = {"train": tokens[:first], "valid": tokens[first:second], "test": tokens[second:]}
    return Task(
        "language",
        {"vocabulary": len(alphabet)},
        {name: streams(part, window) for name, part in splits.items()},
        "loss",
        {"alphabet": alphabet, "text": splits},
    )
