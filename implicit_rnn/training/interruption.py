"""Ctrl-C and SIGTERM between two updates."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from implicit_rnn.training import processes

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """Whether a run has been asked to end, and by which signal."""

    how: type[KeyboardInterrupt] = KeyboardInterrupt

    def __init__(self) -> None:
        self.asked: signal.Signals | None = None

    def reached(self) -> bool:
        """Whether to end here; to be called once an update."""
        return self.asked is not None

    def at_once(self) -> bool:
        """Whether to end even within an evaluation; it is made again by the run that goes on."""
        return self.asked is not None

    def end(self, update: int, say: Callable[[str], None]) -> NoReturn:
        """Ends the run after an update: a `KeyboardInterrupt` that names the signal."""
        signal_ = self.asked or signal.SIGTERM
        say(f"ended by {signal_.name} at update {update}; --resume goes on")
        raise self.how(signal_)


class SharedInterruption(Interruption):
    """That of several processes: when one is asked to end, all do, after the same update.

    JAX's runtime listens for SIGTERM, tells the other processes and finds an update that none of
    them has begun.
    """

    how = processes.EndedTogether

    def reached(self) -> bool:
        return processes.ends_here()

    def at_once(self) -> bool:
        return False  # they evaluate together


@contextlib.contextmanager
def interruption() -> Iterator[Interruption]:
    """Notes a signal, so that a run ends between two updates; a second one ends it at once."""
    shared = processes.listening()
    found = SharedInterruption() if shared else Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield found
        return

    def note(number: int, frame: Any) -> None:
        again, found.asked = found.asked is not None, signal.Signals(number)
        if again:
            raise KeyboardInterrupt(found.asked)
        if shared:
            os.kill(os.getpid(), signal.SIGTERM)

    # What the runtime listens for is its own.
    before = [(number, signal.signal(number, note)) for number in SIGNALS[: 1 if shared else 2]]
    try:
        yield found
    finally:
        for number, handler in before:
            signal.signal(number, handler)
