"""The loop serves networks of other people: a task and a model of two attributes each."""

from __future__ import annotations

import dataclasses
import io
import json
import tomllib
from pathlib import Path
from types import SimpleNamespace

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from rich.console import Console

from implicit_rnn import training
from implicit_rnn.training import Outcome, TrainingSettings
from implicit_rnn.training.ahead import batches_ahead
from implicit_rnn.training.folder import Records
from implicit_rnn.training.tables import dump
from implicit_rnn.training.writers import JSONHistory
from tests.implicit_rnn.experiments.problems import without_times

SETTINGS = TrainingSettings(updates=12, batch=8, log_every=2, evaluate_every=4, evaluate_batch=10)


class Lines:
    """Points on a line, with noise."""

    metric = "loss"

    def __init__(self) -> None:
        random = np.random.default_rng(0)
        x = random.normal(size=(96, 3)).astype(np.float32)
        y = (x @ np.array([1.0, -2.0, 0.5], np.float32))[:, None]
        parts = {"train": slice(0, 64), "valid": slice(64, 80), "test": slice(80, 96)}
        self.splits = {
            name: training.arrays({"x": x[part], "y": y[part]}) for name, part in parts.items()
        }


class Net:
    """A module of flax, its mean square error."""

    def __init__(self) -> None:
        self.module = nn.Sequential([nn.Dense(8), nn.tanh, nn.Dense(1)])

    def init(self, key):
        return self.module.init(key, jnp.zeros((1, 3)))

    def loss(self, params, batch, *, key=None):
        square = (self.module.apply(params, batch["x"]) - batch["y"]) ** 2
        return jnp.mean(square), Outcome({"loss": jnp.sum(square), "count": square.size * 1.0})


def train(folder: Path, **options) -> dict:
    options = {"optimiser": optax.adam(0.05), "settings": SETTINGS} | options
    return training.train(
        Lines(), Net(), folder=folder, console=Console(file=io.StringIO()), **options
    )


def rows(folder: Path) -> list[dict]:
    return without_times(Records(folder / "metrics.jsonl").read())


def test_a_task_and_a_model_of_ones_own_are_trained_restored_and_evaluated(tmp_path: Path):
    result = train(tmp_path / "run")
    losses = [row["loss"] for row in rows(tmp_path / "run") if "loss" in row]
    assert losses[-1] < losses[0]
    assert json.loads((tmp_path / "run" / "result.json").read_text())["test"] == result["test"]
    found = training.restore(
        Lines(), Net(), folder=tmp_path / "run", optimiser=optax.adam(0.05), settings=SETTINGS
    )
    assert found.evaluate("test") == result["test"]
    assert found.record["update"] == result["best_update"]
    assert Net().module.apply(found.params, jnp.ones((2, 3))).shape == (2, 1)
    with pytest.raises(training.SettingsError, match="no split 'tests'; there are train, valid"):
        found.evaluate("tests")


def test_it_goes_on_where_it_was(tmp_path: Path):
    train(tmp_path / "whole")

    def stop(path: Path) -> None:
        if path.name == "000008":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run", on_checkpoint=stop)
    with pytest.raises(training.FolderError, match="holds a run already"):
        train(tmp_path / "run")
    train(tmp_path / "run", resume=True)
    assert rows(tmp_path / "run") == rows(tmp_path / "whole")


def test_checkpoints_have_an_interval_of_their_own(tmp_path: Path):
    settings = dataclasses.replace(SETTINGS, evaluate_every=6, checkpoint_every=5, keep=9)
    train(tmp_path / "whole", settings=settings)
    kept, best = [], json.loads((tmp_path / "whole" / "result.json").read_text())["best_update"]

    def stop(path: Path) -> None:
        kept.append(path.name)
        if path.name == "000010":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run", settings=settings, on_checkpoint=stop)
    assert kept == ["000005", "000006", "000010"]  # the first evaluation is the best so far
    train(tmp_path / "run", settings=settings, resume=True, on_checkpoint=stop)
    assert kept[3:] == ["000012"]
    assert rows(tmp_path / "run") == rows(tmp_path / "whole")
    assert json.loads((tmp_path / "run" / "result.json").read_text())["best_update"] == best


def test_an_opaque_configuration_is_kept_and_compared_as_text(tmp_path: Path):
    train(tmp_path / "run", configuration={"mine": {"anything": "at all"}})
    assert (tmp_path / "run" / "config.toml").read_text() == '[mine]\nanything = "at all"\n'
    with pytest.raises(training.FolderError, match="anything = 3"):
        train(tmp_path / "run", resume=True, configuration={"mine": {"anything": 3}})


def test_hooks_see_what_is_written(tmp_path: Path):
    logged, evaluated, kept = [], [], []
    train(
        tmp_path / "run",
        on_log=logged.append,
        on_evaluate=evaluated.append,
        on_checkpoint=lambda path: kept.append(path.name),
        optimiser=optax.inject_hyperparams(optax.sgd)(optax.linear_schedule(0.1, 0.0, 12)),
    )
    written = Records(tmp_path / "run" / "metrics.jsonl").read()
    assert [row for row in written if "loss" in row] == logged
    assert [row for row in written if "valid_loss" in row] == evaluated
    assert kept == ["000004", "000008", "000012"]
    assert all(row["gradient_norm"] > 0 for row in logged)
    np.testing.assert_allclose(
        [row["learning_rate"] for row in logged], 0.1 * (1 - np.arange(1, 12, 2) / 12), rtol=1e-5
    )


def test_settings_tell_their_rate(tmp_path: Path):
    optimiser = training.OptimiserSettings(rate=0.1, schedule="linear", warmup=2)
    logged = []
    train(tmp_path / "run", optimiser=optimiser, on_log=logged.append)
    rates = [row["learning_rate"] for row in logged]
    np.testing.assert_allclose(rates, [0.05, 0.09, 0.07, 0.05, 0.03, 0.01], rtol=1e-5)


def test_what_a_task_keeps_and_judges_goes_to_the_folder(tmp_path: Path):
    lines = Lines()
    task = SimpleNamespace(
        splits=lines.splits,
        metric="loss",
        keep={"words.json": {"a": 1}},
        notes=["a note"],
        verdict=lambda rows: {"lines": float(len(rows))},
    )
    console = Console(file=io.StringIO())
    result = training.train(
        task, Net(), folder=tmp_path / "run", settings=SETTINGS, console=console
    )
    assert json.loads((tmp_path / "run" / "words.json").read_text()) == {"a": 1}
    assert result["verdict"] == {"lines": 6.0}
    assert "a note" in console.file.getvalue()


def test_every_example_of_arrays_is_visited_once():
    source = training.arrays({"x": np.arange(10)})
    epoch = source.plan(4, 1, np.random.default_rng(0))
    assert len(set(np.concatenate([source.batch(entry)["x"] for entry in epoch]))) == 8
    whole = [source.batch(entry)["x"] for entry in source.plan(4, 1, None)]
    np.testing.assert_array_equal(np.concatenate(whole), np.arange(10))
    with pytest.raises(ValueError, match="one length wanted"):
        training.arrays((np.zeros(2), np.zeros(3)))


def test_library_networks_satisfy_the_protocol(tmp_path: Path):
    from implicit_rnn import models

    random = np.random.default_rng(1)
    x = random.normal(size=(24, 5, 2)).astype(np.float32)
    examples = training.Examples(x, (x.sum(-1) > 0).astype(np.int32), np.full(24, 5, np.int32))
    task = SimpleNamespace(
        splits=dict.fromkeys(("train", "valid", "test"), training.labelled(examples)),
        metric="error",
    )
    model = models.tagger(models.encoder("igru", 3), 2, 2)
    settings = TrainingSettings(updates=3, batch=8, log_every=1, evaluate_every=3, buckets=1)
    result = training.train(
        task,
        model,
        folder=tmp_path / "run",
        settings=settings,
        console=Console(file=io.StringIO()),
    )
    assert result["converged"] > 0
    assert jax.tree.leaves(result["forward_steps"])


def test_a_loss_in_half_precision_keeps_parameters_whole(tmp_path: Path):
    seen = []

    class Watched(Net):
        def loss(self, params, batch, *, key=None):
            seen.extend(leaf.dtype for leaf in jax.tree.leaves((params, batch)))
            return super().loss(params, batch, key=key)

    settings = dataclasses.replace(SETTINGS, dtype="bfloat16")
    how = {"optimiser": optax.adam(0.05), "settings": settings}
    parts = training.trainer(Lines(), Watched(), **how)
    split = parts.task.splits["train"]
    state = parts.init()
    before = [leaf.dtype for leaf in jax.tree.leaves(state)]
    losses = []
    for entry in split.plan(8, 1, np.random.default_rng(0)) * 3:
        state = parts.step(state, split.batch(entry))
        losses.append(float(state.loss))
    assert set(seen) == {jnp.dtype("bfloat16")}
    assert [leaf.dtype for leaf in jax.tree.leaves(state)] == before
    assert jnp.dtype("bfloat16") not in before
    assert np.mean(losses[-4:]) < np.mean(losses[:4])


def test_rows_go_to_a_history_that_wandb_can_take(tmp_path: Path):
    history = JSONHistory(tmp_path / "wandb-history.jsonl")
    train(tmp_path / "run", on_log=history, on_evaluate=history)
    lines = (tmp_path / "wandb-history.jsonl").read_text().splitlines()
    written = [json.loads(line) for line in lines]
    own = Records(tmp_path / "run" / "metrics.jsonl").read()
    assert [row["_step"] for row in written] == [row["update"] for row in own]
    assert written[0]["loss"] == own[0]["loss"]
    assert written[0]["_timestamp"] > 1.6e9


def test_some_updates_are_traced_for_a_profiler(tmp_path: Path):
    """Also of a run that ends before there were so many; the next run can trace again."""
    for name, updates in (("short", 99), ("run", 2)):
        train(tmp_path / name, profile_trace=updates)
        assert len([*(tmp_path / name / "profile").rglob("*.xplane.pb")]) == 1


def test_batches_are_begun_one_ahead_and_are_the_same():
    begun = []

    def batch(entry):
        begun.append(entry)
        return entry

    with batches_ahead(batch) as ahead:
        plan = list(range(3))
        assert [ahead.take(plan, number) for number in plan] == plan
        other = list(range(10, 13))
        assert ahead.take(other, 1) == 11, "a run that goes on within an epoch"
        assert ahead.take(other, 2) == 12
    assert begun == [0, 1, 2, 11, 12]


def test_a_configuration_of_any_text_can_be_read_again():
    table = {"task": {"path": "data/\N{GRINNING FACE}/a\\b", "sizes": [1, 2.5], "none": None}}
    assert tomllib.loads(dump(table)) == {
        "task": {key: table["task"][key] for key in ("path", "sizes")}
    }


def test_sums_that_are_no_numbers_are_refused():
    class Sums(Net):
        def loss(self, params, batch, *, key=None):
            value, _ = super().loss(params, batch, key=key)
            return value, Outcome({"loss": jnp.ones(3), "count": 3.0})

    with pytest.raises(training.SettingsError, match="sums of an Outcome are numbers: count, loss"):
        training.trainer(Lines(), Sums(), settings=SETTINGS).init()


def test_a_weak_type_does_not_have_the_first_program_compiled_twice():
    class Weak(Net):
        def init(self, key):
            return {"own": super().init(key), "scale": jnp.where(jnp.ones(3, bool), 4.0, -4.0)}

        def loss(self, params, batch, *, key=None):
            loss, outcome = super().loss(params["own"], batch)
            return loss * jnp.mean(params["scale"]), outcome

    assert jax.eval_shape(Weak().init, jax.random.key(0))["scale"].weak_type
    parts = training.trainer(Lines(), Weak(), settings=SETTINGS)
    assert not any(leaf.weak_type for leaf in jax.tree.leaves(jax.eval_shape(parts.init)))


def test_an_optimiser_that_looks_at_the_loss_is_told_it(tmp_path: Path):
    """Of optax's own kind: the loss of a rate that is far too high has stopped falling."""
    plateau = optax.contrib.reduce_on_plateau(patience=1, factor=0.5, cooldown=0)
    optimiser = optax.chain(optax.sgd(3.0), plateau)
    parts = training.trainer(Lines(), Net(), optimiser=optimiser, settings=SETTINGS)
    split, state = parts.task.splits["train"], parts.init()
    for entry in split.plan(8, 1, np.random.default_rng(0)):
        state = parts.step(state, split.batch(entry))
    (scale,) = [
        value for _, value in optax.tree_utils.tree_get_all_with_path(state.optimiser, "scale")
    ]
    assert scale < 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda task, net: task.splits.pop("valid"), "there is no valid in train, test"),
        (lambda task, net: setattr(task, "metric", "err"), "metric is 'err', .* there are loss"),
        (lambda task, net: setattr(net, "said", lambda loss, sums: loss), r"a pair, \(loss, Outc"),
        (
            lambda task, net: setattr(net, "said", lambda loss, sums: (loss, Outcome({"l": loss}))),
            "need `count`, .* there are l",
        ),
    ],
    ids=["a split", "the metric", "a pair", "the count"],
)
def test_what_a_task_or_a_model_lacks_is_said_before_it_trains(tmp_path: Path, change, message):
    class Wrong(Net):
        said = staticmethod(lambda loss, sums: (loss, Outcome(sums)))

        def loss(self, params, batch, *, key=None):
            loss, outcome = super().loss(params, batch)
            return self.said(loss, outcome.sums)

    task, net = Lines(), Wrong()
    change(task, net)
    with pytest.raises(training.SettingsError, match=message):
        training.train(task, net, folder=tmp_path / "run", settings=SETTINGS)
