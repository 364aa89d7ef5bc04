"""Batches prepared one ahead: while the device works on one, the host makes the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

Load = Callable[[Any], Any]  # an entry of a plan -> its batch


class Ahead:
    """The batches of a plan, in its order, each begun when the one before is taken.

    A batch is what it would be without: it depends on its entry alone.

    >>> with batches_ahead(lambda entry: [entry, entry]) as ahead:
    ...     [ahead.take((3, 1, 2), number) for number in range(3)]
    [[3, 3], [1, 1], [2, 2]]
    """

    def __init__(self, load: Load, worker: ThreadPoolExecutor) -> None:
        self._load, self._worker = load, worker
        self._next: tuple[Sequence[Any], int, Future] | None = None

    def take(self, plan: Sequence[Any], number: int) -> Any:
        """The batch of an entry of a plan, by its number."""
        begun, self._next = self._next, None
        if begun is not None and begun[0] is plan and begun[1] == number:
            found = begun[2].result()
        else:
            found = self._load(plan[number])
        if number + 1 < len(plan):
            entry = plan[number + 1]
            self._next = plan, number + 1, self._worker.submit(self._load, entry)
        return found


@contextmanager
def batches_ahead(load: Load) -> Iterator[Ahead]:
    """The batches that `load` makes, with a thread that makes them; it ends with the context."""
    with ThreadPoolExecutor(1, "batches") as worker:
        yield Ahead(load, worker)
