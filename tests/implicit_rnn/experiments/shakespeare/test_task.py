"""Text in streams that go on from window to window."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from implicit_rnn.experiments.shakespeare.task import streams, text_task


def test_streams_go_on_from_window_to_window():
    tokens = np.arange(50, dtype=np.int32)
    source = streams(tokens, 5)
    plan = source.plan(3, 1, np.random.default_rng(0))
    windows = [source.batch(entry).tokens for entry in plan]
    assert [w.shape for w in windows] == [(3, 6)] * 3
    for before, after in itertools.pairwise(windows):
        np.testing.assert_array_equal(before[:, -1], after[:, 0])
    np.testing.assert_array_equal(windows[0][:, 0], [0, 16, 32])
    # An evaluation predicts every token of every stream.
    predicted = [source.batch(entry).tokens[:, 1:].ravel() for entry in source.plan(3, 1, None)]
    np.testing.assert_array_equal(np.sort(np.concatenate(predicted)), np.arange(1, 49))
    with pytest.raises(ValueError, match="too few for 20 streams"):
        source.plan(20, 1, np.random.default_rng(0))


def test_the_test_set_is_the_end_of_the_text():
    tokens = np.arange(1000, dtype=np.int32)
    task = text_task(tokens, ["a"] * 1000, 10, 0.1)
    np.testing.assert_array_equal(task.details["text"]["test"], tokens[900:])
    np.testing.assert_array_equal(task.details["text"]["valid"], tokens[850:900])
    with pytest.raises(ValueError, match="held_out"):
        text_task(tokens, [], 10, 0.0)
