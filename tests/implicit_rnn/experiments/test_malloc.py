"""Freed memory is kept where the C library knows how, and nowhere is that an error."""

from __future__ import annotations

import ctypes
import types

import pytest

from implicit_rnn.experiments.malloc import keep_freed_memory

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of malloc.h


@pytest.mark.parametrize("accepts", [True, False])
def test_nothing_is_mapped_apart_and_nothing_is_given_back(accepts: bool, monkeypatch):
    asked = {}

    def mallopt(name: int, value: int) -> int:
        asked[name] = value
        return int(accepts)

    monkeypatch.setattr(ctypes, "CDLL", lambda name: types.SimpleNamespace(mallopt=mallopt))
    assert keep_freed_memory() is accepts
    assert asked[M_MMAP_MAX] == 0
    assert asked.get(M_TRIM_THRESHOLD, 0) >= (2**30 if accepts else 0)


def test_a_library_without_the_setting_is_left_alone(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert keep_freed_memory() is False
