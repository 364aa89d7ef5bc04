"""Trials of a cell as one program: what they give one by one, and the table they make."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import numpy as np
import pytest

from implicit_rnn.experiments import train
from implicit_rnn.experiments.config import load
from implicit_rnn.experiments.hopfield.trials import main, trials
from implicit_rnn.training.totals import numbers, ratios

SMALL = ("training.updates=3", "training.batch=5", "model.hidden=3", "model.truncation=2",
         "model.scale=0.3")  # fmt: skip


@pytest.mark.parametrize("rule", ["rbp", pytest.param("tbptt", marks=pytest.mark.slow)])
def test_trials_at_once_are_those_of_runs_one_by_one(root: Path, rule: str):
    """Batches of half of the images, so that their order counts; rbp draws as well."""
    file, own, lasts = root / "configs" / "hopfield.toml", [*SMALL, f"model.rule={rule}"], []
    (config,) = load(file, None, own).runs.values()
    found = trials(config, [4, 7, 9], together=2)
    for number, seed in enumerate((4, 7, 9)):
        (single,) = load(file, None, [*own, f"training.seed={seed}"]).runs.values()
        parts = train.trainer_of(single)
        state, losses, batches = parts.init(), [], []
        split = parts.task.splits["train"]
        for epoch in range(2):
            batches += split.plan(5, 4, np.random.default_rng((seed, epoch)))
        for entry in batches[:3]:
            state = parts.step(state, parts.load(split, entry))
            losses.append(ratios(numbers(state.totals))["loss"])
            state = state._replace(totals=jax.tree.map(np.zeros_like, state.totals))
        ends = (found.first[number], found.last[number])
        np.testing.assert_allclose(ends, (losses[0], losses[-1]), rtol=1e-5)
        error = parts.evaluate(state, parts.task.splits["test"])["error"]
        np.testing.assert_allclose(found.error[number], error, atol=1 / 60)
        lasts.append(losses[-1])
    assert np.ptp(lasts) > 1e-4, "seeds make a difference"


def test_a_table_is_written_cell_by_cell_and_goes_on(root: Path, tmp_path: Path, capsys):
    output = tmp_path / "new" / "trials.json"
    command = [str(root / "configs" / "hopfield.toml"), "--profile", "quick", "--trials", "2"]
    command += [part for setting in SMALL for part in ("--set", setting)]
    command += ["--set", "model.rule=neumann", "--output", str(output)]
    assert main(command) == 0
    cells = json.loads(output.read_text())["cells"]
    (cell,) = cells.values()
    assert (cell["model.rule"], cell["trials"], cell["skipped"]) == ("neumann", 2, 0)
    assert cell["success"] in (0, 0.5, 1)
    assert cell["paper's success"] is None, "the paper's are of other images"
    assert "seed" not in cell["config"]["training"]
    assert main(command) == 0
    assert json.loads(output.read_text())["cells"] == cells, "what is there is kept"
    assert "| neumann | 2 |" in capsys.readouterr().out
