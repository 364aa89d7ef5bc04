"""How a command that is asked to end does so: with its files closed and a code of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any


class _Ended(KeyboardInterrupt):
    """Asked to end. Of a plain interrupt that was caught, Python may still end as if it was not."""


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """SIGTERM ends a command as Ctrl-C does: what is open is closed, and one sentence says so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    again: list[threading.Timer] = []

    def end(number: int, frame: Any) -> None:
        # A callback, as of the garbage collector, drops what is raised in it: it comes again.
        again.append(threading.Timer(1.0, os.kill, (os.getpid(), number)))
        again[-1].daemon = True
        again[-1].start()
        raise _Ended(number)

    def unraisable(found: Any) -> None:
        if not issubclass(found.exc_type, _Ended):
            hook(found)

    hook, sys.unraisablehook = sys.unraisablehook, unraisable
    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for timer in again:
            timer.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)
        sys.unraisablehook = hook
