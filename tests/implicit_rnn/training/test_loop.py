"""Training: the same whether interrupted or not, and visible when it goes wrong."""

from __future__ import annotations

import copy
import io
import json
import os
import signal
import sys
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from implicit_rnn import cells, models
from implicit_rnn.experiments import train as experiments
from implicit_rnn.experiments.options import ConfigError
from implicit_rnn.experiments.shakespeare.task import text_task
from implicit_rnn.training import SettingsError, loop, trainer
from implicit_rnn.training import folder as folders
from implicit_rnn.training.tables import dump
from implicit_rnn.training.writers import WriterError
from tests.implicit_rnn.experiments.problems import CONTENT, config, without_times


def quiet() -> Console:
    return Console(file=io.StringIO())


def rows(folder: Path) -> list[dict]:
    return without_times(folders.Records(folder / "metrics.jsonl").read())


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "whole"
    experiments.train_run(config(), folder, console=quiet())
    return folder


def test_a_run_folder_tells_the_whole_story(uninterrupted: Path):
    result = json.loads((uninterrupted / "result.json").read_text())
    assert result["versions"]["jax"] == jax.__version__
    assert result["config"]["training"]["updates"] == 21
    assert result["parameters"] == sum(
        leaf.size
        for leaf in jax.tree.leaves(jax.eval_shape(experiments.trainer_of(config()).init).params)
    )
    assert 0 <= result["test"]["error"] <= 1
    assert result["converged"] > 0.9
    found = rows(uninterrupted)
    assert [row["update"] for row in found if "loss" in row] == [5, 10, 15, 20, 21]
    assert [row["update"] for row in found if "valid_loss" in row] == [7, 14, 21]
    assert {"forward_steps", "backward_steps", "converged", "skipped"} <= set(found[0])
    assert {"learning_rate", "gradient_norm"} <= set(found[0])
    assert (uninterrupted / "config.toml").read_text() == dump(config().table())


def test_training_learns(uninterrupted: Path):
    losses = [row["valid_loss"] for row in rows(uninterrupted) if "valid_loss" in row]
    assert losses[-1] < losses[0]


def test_a_damaged_last_checkpoint_costs_some_updates_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture
):
    folder, small = tmp_path / "run", config("training.updates=14", "model.encoder=gru")
    experiments.train_run(small, folder, console=quiet())
    before = rows(folder)
    victim = max(
        (p for p in (folder / "checkpoints" / "000014").rglob("*") if p.is_file()),
        key=lambda p: p.stat().st_size,
    )
    victim.write_bytes(victim.read_bytes()[:-1])
    experiments.train_run(small, folder, resume=True)
    assert "falling back to 000007" in capsys.readouterr().out
    assert rows(folder) == before
    # Nor does a run go on from the checkpoint of another, should nothing else tell them apart.
    (folder / "config.toml").unlink()
    other = config("training.updates=14", "model.encoder=gru", "optimiser.rate=0.01")
    with pytest.raises(folders.FolderError, match=r"000014 .* is that of another run"):
        experiments.train_run(other, folder, resume=True, console=quiet())


def test_two_runs_into_one_folder_refuse_each_other(tmp_path: Path):
    with (
        folders.locked(tmp_path / "run"),
        pytest.raises(folders.FolderError, match=f"in use by another run.*{os.getpid()}"),
    ):
        experiments.train_run(config(), tmp_path / "run", console=quiet())


def test_a_folder_with_a_run_is_not_overwritten(uninterrupted: Path):
    with pytest.raises(folders.FolderError, match="add --resume"):
        experiments.train_run(config(), uninterrupted, console=quiet())
    with pytest.raises(folders.FolderError, match=r"another configuration.*hidden = 4"):
        experiments.train_run(config("model.hidden=4"), uninterrupted, resume=True, console=quiet())


def test_an_update_that_is_not_finite_is_skipped_and_counted():
    parts = experiments.trainer_of(config("model.encoder=gru"))
    state = parts.init()
    state = state._replace(average=jax.tree.map(lambda leaf: leaf + 1, state.params))
    before = jax.tree.map(np.array, (state.params, state.average))
    source = parts.task.splits["train"]
    batch = source.batch(source.plan(8, 1, np.random.default_rng(0))[0])
    poisoned = batch._replace(inputs=np.full_like(batch.inputs, np.nan))
    state = parts.step(state, poisoned)
    after = state.params, state.average
    for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        np.testing.assert_array_equal(a, b)
    assert int(state.optimiser.total_notfinite) == 1
    state = parts.step(state, batch)
    assert int(state.optimiser.total_notfinite) == 1
    assert any(
        np.any(a != b)
        for a, b in zip(jax.tree.leaves(before[0]), jax.tree.leaves(state.params), strict=True)
    )


def test_a_run_that_cannot_go_on_stops_with_a_diagnosis(tmp_path: Path):
    content = copy.deepcopy(CONTENT)
    content["model"] |= {"encoder": "gru"}
    content["training"] |= {"most_skipped": 5}
    poor = config(content=content)
    parts = experiments.trainer_of(poor)
    source = parts.task.splits["train"]

    def batch(entry):
        found = source.batch(entry)
        return found._replace(inputs=np.full_like(found.inputs, np.inf))

    splits = parts.task.splits | {"train": source._replace(batch=batch)}
    parts = parts._replace(task=parts.task._replace(splits=splits))
    with pytest.raises(loop.TrainingError, match="5 updates in a row were not finite") as error:
        loop.run(parts, tmp_path / "run", configuration=poor.table(), console=quiet())
    assert "inputs is not finite: look at the data" in str(error.value)
    assert "checkpoints" in str(error.value)
    assert (tmp_path / "run" / "checkpoints" / "000005.json").exists()


def test_the_step_keeps_no_second_copy_of_the_state():
    parts = experiments.trainer_of(config("model.encoder=gru"))
    state = parts.init()
    source = parts.task.splits["train"]
    batch = source.batch(source.plan(8, 1, np.random.default_rng(0))[0])
    memory = jax.jit(parts.step, donate_argnums=0).lower(state, batch).compile().memory_analysis()
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    assert memory.alias_size_in_bytes >= 0.9 * size
    assert "callback" not in str(jax.make_jaxpr(parts.step)(state, batch))


def test_a_method_that_does_not_fit_is_refused_before_the_first_update(tmp_path: Path):
    wrong = config("solver.method=polynomial")
    with pytest.raises(SettingsError, match=r"got 'polynomial'.* or levels > 1"):
        experiments.train_run(wrong, tmp_path / "run", console=quiet())


def test_runs_of_other_seeds_are_the_same_programs():
    programs, losses = [], []
    for seed in (0, 1):
        parts = experiments.trainer_of(config("model.encoder=gru", f"training.seed={seed}"))
        source = parts.task.splits["train"]
        batch = source.batch(source.plan(8, 1, np.random.default_rng(0))[0])
        state = parts.init()
        programs.append(str(jax.make_jaxpr(parts.step)(state, batch)))
        losses.append(float(parts.step(state, batch).loss))
    assert programs[0] == programs[1]
    assert losses[0] != losses[1]


def test_the_mean_of_parameters_is_what_is_evaluated():
    parts = experiments.trainer_of(config("model.encoder=gru", "optimiser.ema=0.5"))
    state = parts.init()
    other = state._replace(params=jax.tree.map(jnp.zeros_like, state.params))
    valid = parts.task.splits["valid"]
    assert parts.evaluate(state, valid) == parts.evaluate(other, valid)


def test_patience_ends_a_run_that_gets_no_better(tmp_path: Path, capsys: pytest.CaptureFixture):
    small = config(
        "model.encoder=gru",
        "optimiser.rate=1e-12",
        "training.patience=2",
        "training.updates=28",
        "optimiser.ema=0.0",
        "optimiser.schedule=plateau",
        "optimiser.wait=1",
    )
    experiments.train_run(small, tmp_path / "run")
    assert "stopped early" in capsys.readouterr().out
    found = rows(tmp_path / "run")
    assert [r["update"] for r in found if "valid_loss" in r] == [7, 14, 21]
    rates = [r["learning_rate"] for r in found if "learning_rate" in r]
    # Halved at 14, the second evaluation and the first in vain.
    np.testing.assert_allclose(rates, [1e-12, 1e-12, 0.5e-12, 0.5e-12], rtol=1e-6)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["updates"], result["best_update"]) == (21, 7)
    # Killed before it could say so: it does not go on.
    (tmp_path / "run" / "result.json").unlink()
    experiments.train_run(small, tmp_path / "run", resume=True, console=quiet())
    assert rows(tmp_path / "run") == found


def test_every_example_is_evaluated_once_whatever_the_batch():
    found = [
        experiments.trainer_of(config("model.encoder=gru", f"training.evaluate_batch={size}"))
        for size in (16, 5)
    ]
    values = [parts.evaluate(parts.init(), parts.task.splits["test"]) for parts in found]
    np.testing.assert_allclose(values[0]["loss"], values[1]["loss"], rtol=1e-5)
    assert values[0]["error"] == pytest.approx(values[1]["error"])


def test_events_go_to_a_writer_that_is_there_already(tmp_path: Path, monkeypatch):
    written = []

    class SummaryWriter:
        def __init__(self, folder: str, purge_step: int) -> None:
            written.append(folder)

        def close(self) -> None:
            written.append("closed")

        def add_scalar(self, name: str, value: float, update: int) -> None:
            written.append((name, update))

    small = config("model.encoder=gru", "training.tensorboard=true", "training.updates=7")
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(WriterError, match="pip install tensorboardX"):
        experiments.train_run(small, tmp_path / "without", console=quiet())
    module = types.ModuleType("tensorboardX")
    module.SummaryWriter = SummaryWriter
    monkeypatch.setitem(sys.modules, "tensorboardX", module)
    experiments.train_run(small, tmp_path / "run", console=quiet())
    assert written[0] == str(tmp_path / "run" / "events")
    assert written[-1] == "closed"
    assert ("loss", 5) in written
    assert ("valid_error", 7) in written


def test_warm_starts_are_kept_and_make_later_visits_cheap(tmp_path: Path):
    warm = config(
        "solver.warm=true", "solver.rtol=1e-3", "optimiser.rate=1e-9", "model.feature_dropout=0.0"
    )
    parts = experiments.trainer_of(warm)
    source = parts.task.splits["train"]
    state, steps = parts.init(), []
    entry = source.plan(8, 1, np.random.default_rng(0))[0]
    for _ in range(2):
        before = float(state.totals["forward_steps"])
        state = parts.step(state, source.batch(entry), source.numbers(entry))
        steps.append(float(state.totals["forward_steps"]) - before)
    assert steps[1] < steps[0]
    visited = np.isfinite(np.asarray(state.memory[0])).all(axis=(1, 2))
    assert set(np.flatnonzero(visited)) == set(source.numbers(entry))
    with pytest.raises(SettingsError, match=r"solver\.warm\) need"):
        experiments.trainer_of(config("solver.warm=true", "model.encoder=gru")).init()


def test_a_stateful_run_interrupted_by_hand_goes_on_as_if_it_had_not_been(
    tmp_path: Path, monkeypatch
):
    """A language model with its carry; Ctrl-C in mid-epoch, between two evaluations."""
    tokens = np.random.default_rng(0).integers(0, 5, 500).astype(np.int32)
    task = text_task(tokens, list("abcde"), 10, 0.1)
    small = config("optimiser.ema=0.0", "training.batch=2", "training.evaluate_every=10")
    model = models.language_model([cells.gru(3)], 5)
    parts, tables = trainer(task, model, **experiments.how(small)), small.table()
    loop.run(parts, tmp_path / "whole", configuration=tables, console=quiet())

    def interrupting(state, *rest):
        if int(state.update) == 12:
            os.kill(os.getpid(), signal.SIGINT)
        return parts.step(state, *rest)

    with pytest.raises(KeyboardInterrupt):
        loop.run(
            parts._replace(step=interrupting),
            tmp_path / "run",
            configuration=tables,
            console=quiet(),
        )
    assert (tmp_path / "run" / "checkpoints" / "000013.json").exists()
    loop.run(parts, tmp_path / "run", configuration=tables, resume=True, console=quiet())
    assert rows(tmp_path / "run") == rows(tmp_path / "whole")
    sessions = json.loads((tmp_path / "run" / "run.json").read_text())["sessions"]
    assert len(sessions) == 2


def test_a_damaged_best_checkpoint_is_replaced_by_the_next_best(tmp_path: Path, capsys):
    small = config("model.encoder=gru")
    experiments.train_run(small, tmp_path / "run", console=quiet())
    best = json.loads((tmp_path / "run" / "result.json").read_text())["best_update"]
    seal = tmp_path / "run" / "checkpoints" / f"{best:06d}.json"
    seal.write_bytes(b"\xff" + seal.read_bytes()[1:])
    _, state, record = experiments.restored(small, tmp_path / "run")
    assert record["update"] != best
    assert int(state.update) == record["update"]


def test_a_wrong_value_is_an_error_before_anything_is_written_that_would_stand_in_the_way(
    tmp_path: Path,
):
    with pytest.raises(SettingsError, match=r"no bucket of .* holds a batch of 999"):
        experiments.train_run(config("training.batch=999"), tmp_path / "run", console=quiet())
    with pytest.raises(ConfigError, match="layers must be at least 1"):
        experiments.train_run(config("model.layers=0"), tmp_path / "run", console=quiet())
    folders.keep_configuration(tmp_path / "run", config().table())
