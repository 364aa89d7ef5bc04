"""Memory that the process keeps, in place of asking the system for it at every update."""

from __future__ import annotations

import ctypes
import os
import platform

# Of glibc's <malloc.h>.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_LARGEST = 2**28  # bytes of a block that is kept: data sets and states of large models are not
_MOST = 2**30  # bytes that are kept free


def keep() -> bool:
    """Lets the allocator of the process keep blocks of up to 256 MB once they are freed.

    On CPUs a compiled program asks for the memory of its intermediate results anew in every call.
    Blocks above 32 MB glibc takes from the system and gives back, and every page of them costs a
    fault: a quarter of a training step over long sequences.

    Returns:
      Whether it does: not with another C library, nor where `MALLOC_...` or `GLIBC_TUNABLES` in the
      environment say what is wanted.
    """
    told = any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ)
    if told or platform.libc_ver()[0] != "glibc":
        return False
    library = ctypes.CDLL(None)
    # One arena for all threads: those of other threads are never larger than 64 MB.
    settings = ((_ARENA_MAX, 1), (_MMAP_THRESHOLD, _LARGEST), (_TRIM_THRESHOLD, _MOST))
    return all([library.mallopt(which, value) for which, value in settings])
