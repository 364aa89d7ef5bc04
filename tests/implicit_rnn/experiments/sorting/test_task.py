"""Sorting: the targets are sorted."""

from __future__ import annotations

import numpy as np
import pytest

from implicit_rnn.experiments.sorting.task import sorting_task

SMALL = {"train": 200, "valid": 40, "test": 60}


def rows(pairs):
    """Sources and targets without padding."""
    return [
        (list(source[:n]), list(target[:m]))
        for source, n, target, m in zip(*map(np.asarray, pairs), strict=True)
    ]


def insertion_sort(values):
    found = []
    for value in values:
        place = next((k for k, other in enumerate(found) if other > value), len(found))
        found.insert(place, value)
    return found


@pytest.mark.parametrize("length", [5, 10])
def test_sequences_are_sorted(length):
    task = sorting_task(**SMALL, length=length, values=7)
    assert task.sizes == {"source_vocabulary": 7, "target_vocabulary": 7}
    for name, count in SMALL.items():
        found = rows(task.details["pairs"][name])
        assert len(found) == count
        for source, target in found:
            assert len(source) == length
            assert target == insertion_sort(source)
        assert {value for source, _ in found for value in source} == set(range(7))
