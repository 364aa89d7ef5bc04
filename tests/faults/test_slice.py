"""Slices of the campaigns (`make faults`): few cases with all tests, more with the slow ones."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.faults import loaders, settings
from tests.faults.__main__ import FAILED, one, prepared

SECONDS, SEED = 60, 1


def test_damaged_files_are_read_or_refused() -> None:
    counts, failed = loaders.campaign(15, SEED)
    assert not failed, failed
    assert all(own.total() == 15 for own in counts.values())
    assert sum(own[loaders.REFUSED] for own in counts.values()) > 100


@pytest.mark.slow
def test_five_hundred_damaged_files_of_each_format_are_read_or_refused() -> None:
    assert not loaders.campaign(500, SEED)[1]


def test_mutated_configurations_would_train_or_are_refused() -> None:
    found = [settings.one(SEED, number) for number in range(25)]
    assert not [words for verdict, words in found if verdict == settings.FAILED]
    assert {verdict for verdict, _ in found} >= {settings.REFUSED, settings.ENDED}


@pytest.mark.slow
def test_mutated_configurations_end_alike_in_real_children() -> None:
    assert not [wrong for number in range(8) if (wrong := settings.compared(SEED, number))]
    found = [settings.one(SEED, number) for number in range(25, 400)]
    assert not [words for verdict, words in found if verdict == settings.FAILED]


@pytest.mark.slow
def test_a_minute_of_faults_loses_nothing(tmp_path: Path) -> None:
    bench, began, number, failed = prepared(tmp_path), time.monotonic(), 0, []
    while time.monotonic() - began < SECONDS:
        line = one(bench, tmp_path, SEED, number)
        failed += [line] * (line["verdict"] == FAILED)
        number += 1
    assert number
    assert not failed, failed
