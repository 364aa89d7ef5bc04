"""Training without bounds says so once, when solves become harder."""

from __future__ import annotations

import warnings

import jax
import numpy as np
import optax
import pytest

from implicit_rnn import cells, spectral
from implicit_rnn.experiments.walk.task import biased_walk_task
from implicit_rnn.models import encoder, tagger
from implicit_rnn.training import Recipe, TrainingSettings, Watch, train
from solvers import Info, Status


def solved(steps, share=1.0, count=100):
    status = np.where(np.arange(count) < share * count, Status.CONVERGED, Status.MAX_STEPS)
    return Info(np.full(count, steps), np.zeros(count), status)


@pytest.mark.parametrize("later", [solved(31), solved(6, share=0.94)], ids=["steps", "share"])
def test_harder_solves_are_told_once_with_the_line_to_change(later) -> None:
    watch = Watch()
    watch(solved(5))
    with pytest.warns(UserWarning, match=r"more steps .*recipe\.optimiser\(recipe\.bounds"):
        watch(later)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        watch(later)


def test_solves_that_stay_cheap_are_not_spoken_of() -> None:
    watch = Watch()
    for steps in (2, 9, 4, 8):
        watch(solved(steps))


def test_the_loop_watches_layers_without_bounds(tmp_path) -> None:
    task = biased_walk_task(train=64, valid=16, test=16, max_length=8)
    network = tagger(encoder("igru", 4), task.sizes["input_size"], 2)
    how = {
        "settings": TrainingSettings(updates=4, batch=16, log_every=2, evaluate_every=4, buckets=1)
    }
    hard = Recipe(bounded="none", rtol=1e-6, free_sweeps=False, max_steps=1)
    with pytest.warns(UserWarning, match=r'Recipe\(bounded="transform"\)'):
        train(task, network, recipe=hard, folder=tmp_path / "unbounded", **how)


def test_bounds_that_do_not_fit_say_how_to_nest_them() -> None:
    cell = cells.igru(4)
    params = {"layer": cell.init(jax.random.key(0), 3), "read": np.zeros(4)}
    with pytest.raises(
        ValueError, match=r'nest the bounds as the parameters are, \{"layer": bounds\}'
    ):
        spectral.bounded(Recipe().bounds(cell)).init(params)
    fitting = Recipe().optimiser({"layer": Recipe().bounds(cell)}, optax.sgd(0.1))
    fitting.init(params)
