"""Batches prepared one ahead: while the device works on one, the host makes the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Protocol


class Batches(Protocol):
    """What makes the batch of an entry."""

    @property
    def batch(self) -> Callable[[Any], Any]: ...


class Ahead:
    """The batches of a plan, in its order, each begun when the one before is taken.

    A batch is what it would be without: `Split.batch` depends on its entry alone.

    >>> from implicit_rnn import training
    >>> import numpy as np
    >>> split = training.arrays(np.arange(6))
    >>> with batches_ahead(split) as ahead:
    ...     plan = split.plan(2, 1, None)
    ...     [ahead.take(plan, number).tolist() for number in range(3)]
    [[0, 1], [2, 3], [4, 5]]
    """

    def __init__(self, split: Batches, worker: ThreadPoolExecutor) -> None:
        self._split, self._worker = split, worker
        self._next: tuple[Sequence[Any], int, Future] | None = None

    def take(self, plan: Sequence[Any], number: int) -> Any:
        """The batch of an entry of a plan, by its number."""
        begun, self._next = self._next, None
        if begun is not None and begun[0] is plan and begun[1] == number:
            found = begun[2].result()
        else:
            found = self._split.batch(plan[number])
        if number + 1 < len(plan):
            entry = plan[number + 1]
            self._next = plan, number + 1, self._worker.submit(self._split.batch, entry)
        return found


@contextmanager
def batches_ahead(split: Batches) -> Iterator[Ahead]:
    """The batches of a split with a thread that makes them; it ends with the context."""
    with ThreadPoolExecutor(1, "batches") as worker:
        yield Ahead(split, worker)
