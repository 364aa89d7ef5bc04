"""Memory that stays with the process from update to update."""

from __future__ import annotations

import ctypes

# Of malloc.h.
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
_MOST = 2**31 - 1


def keep_freed_memory() -> bool:
    """Asks the C library to keep what is freed; whether it does (glibc knows how).

    Every update takes and frees tens of megabytes. By default they go back to the system, which
    hands them out again page by page, each filled with zeros: with a table of 17,000 words that is
    nearly half of a small update.
    """
    try:
        set_ = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(set_(_MMAP_MAX, 0)) and bool(set_(_TRIM_THRESHOLD, _MOST))
