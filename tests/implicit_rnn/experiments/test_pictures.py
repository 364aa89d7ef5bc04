"""What figures are drawn from."""

from __future__ import annotations

import numpy as np

import implicit_rnn
from implicit_rnn.experiments import tested
from implicit_rnn.experiments.registry import Tasks
from implicit_rnn.experiments.train import trainer_of
from tests.implicit_rnn.experiments.problems import config


def test_a_switch_in_a_picture_is_that_of_its_sequence_alone() -> None:
    small = config()
    trainer = trainer_of(small)
    params = trainer.usable(trainer.init())
    looked = tested.Tested(trainer, params, small.solver)
    assert looked.switches
    assert np.all(looked.exact.converged)
    assert np.all(looked.exact.residual <= looked.in_training.residual + 1e-4)

    number = int(np.argmin(looked.batch.length))  # padding must change nothing
    xs, length = looked.batch.inputs[number], int(looked.batch.length[number])
    cell, layer = trainer.model.encoder.cells[0], params["encoder"][0]
    states, _ = implicit_rnn.implicit(cell, layer, xs[:length], rtol=1e-5)
    past = implicit_rnn.switch(cell, layer, xs[:length], states)[:, 0]
    np.testing.assert_allclose(looked.exact.past[number, :length], past, atol=1e-3)


def test_runs_that_differ_in_models_share_their_task() -> None:
    tasks, tables = Tasks(), [config(f"task.bias={bias}").task for bias in (1.0, 1.0, 2.0)]
    first, again, other = map(tasks, tables)
    assert first is again
    assert other is not first
