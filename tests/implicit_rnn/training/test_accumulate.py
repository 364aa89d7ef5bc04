"""Several batches an update are as one large batch, also in a run that is gone on with."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from types import SimpleNamespace

import chex
import numpy as np
import optax
import pytest

from implicit_rnn import training
from implicit_rnn.training import TrainingSettings
from tests.implicit_rnn.training.test_own import SETTINGS, rows, train


@pytest.mark.parametrize(
    "sizes", [pytest.param((4, 4, 4), marks=pytest.mark.slow), (6, 1, 5)], ids=str
)
def test_batches_of_one_update_are_as_one_large_batch(sizes):
    """Of unequal size and length, so that their losses are means over unequal numbers."""
    from implicit_rnn import models

    random = np.random.default_rng(2)
    length = random.integers(1, 7, 12).astype(np.int32)
    x = random.normal(size=(12, 6, 2)).astype(np.float32)
    whole = training.Examples(x, (x.sum(-1) > 0).astype(np.int32), length)
    task = SimpleNamespace(
        splits=dict.fromkeys(("train", "valid", "test"), training.labelled(whole)), metric="error"
    )
    model = models.tagger(models.encoder("igru", 3), 2, 2)
    how = {"optimiser": optax.sgd(0.5), "recipe": training.Recipe(rtol=1e-6, backward=60)}
    settings = TrainingSettings(batch=4, buckets=1)
    split = training.labelled(whole)
    one = split.batch((np.arange(12), 6))
    ends = np.cumsum((0, *sizes))
    parts = tuple(
        split.batch((np.arange(a, b), max(length[a:b]))) for a, b in itertools.pairwise(ends)
    )
    large = training.trainer(task, model, **how, settings=settings)
    several = training.trainer(
        task, model, **how, settings=dataclasses.replace(settings, accumulate=3)
    )
    expected, found = large.step(large.init(), one), several.step(several.init(), parts)
    chex.assert_trees_all_close(found.params, expected.params, rtol=1e-4, atol=1e-6)
    for name in ("loss", "count", "error", "solves", "forward_most"):
        np.testing.assert_allclose(found.totals[name], expected.totals[name], rtol=1e-5, atol=1)
    np.testing.assert_allclose(found.totals["loss"], expected.totals["loss"], rtol=1e-5)
    np.testing.assert_allclose(
        found.totals["gradient_norm"], expected.totals["gradient_norm"], rtol=1e-4
    )
    assert found.update == 1


def test_a_run_accumulates_and_goes_on_where_it_was(tmp_path: Path):
    settings = dataclasses.replace(SETTINGS, accumulate=3)  # of 8 batches an epoch: 3, 3 and 2
    train(tmp_path / "whole", settings=settings)

    def stop(path: Path) -> None:
        if path.name == "000004":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run", settings=settings, on_checkpoint=stop)
    train(tmp_path / "run", settings=settings, resume=True)
    assert rows(tmp_path / "run") == rows(tmp_path / "whole")
    assert [row["epoch"] for row in rows(tmp_path / "run") if "epoch" in row] == [0, 1, 1, 2, 3, 3]
