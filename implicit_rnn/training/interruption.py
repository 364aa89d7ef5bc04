"""Ctrl-C and SIGTERM between two updates."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """Whether a run has been asked to end, and by which signal."""

    def __init__(self) -> None:
        self.asked: signal.Signals | None = None

    def end(self) -> None:
        """Ends the run: a `KeyboardInterrupt` that names the signal."""
        raise KeyboardInterrupt(self.asked)


@contextlib.contextmanager
def interruption() -> Iterator[Interruption]:
    """Notes a signal, so that a run ends between two updates; a second one ends it at once."""
    found = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield found
        return

    def note(number: int, frame: Any) -> None:
        again, found.asked = found.asked is not None, signal.Signals(number)
        if again:
            found.end()

    before = [signal.signal(number, note) for number in SIGNALS]
    try:
        yield found
    finally:
        for number, handler in zip(SIGNALS, before, strict=True):
            signal.signal(number, handler)
