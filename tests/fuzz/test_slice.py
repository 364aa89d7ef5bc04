"""A slice of the campaign (`make fuzz`)."""

from __future__ import annotations

import time

import jax

from tests.fuzz.__main__ import forget, run_one
from tests.fuzz.cases import BLOCK

SECONDS, SEED = 20, 1


def test_some_random_solves_find_nothing_untrue():
    failed, begin, number = [], time.monotonic(), 0
    with jax.enable_x64(True):
        # At least a block of programs, however busy the machine is.
        while number <= BLOCK or time.monotonic() - begin < SECONDS:
            line, verdict = run_one(SEED, number)
            failed += [line] * verdict.failed
            number += 1
            if number % BLOCK == 0:
                forget()
    assert not failed, failed
