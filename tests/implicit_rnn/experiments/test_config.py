"""Configurations: what they resolve to, and what a wrong one is told."""

from __future__ import annotations

import copy
import tomllib
import types
import typing
from pathlib import Path

import jax
import numpy as np
import pytest

from implicit_rnn.cells import CELLS
from implicit_rnn.experiments.config import RunSettings, load, resolve
from implicit_rnn.experiments.networks import ENCODERS
from implicit_rnn.experiments.options import ConfigError
from implicit_rnn.experiments.ranges import range_of
from implicit_rnn.experiments.registry import MODELS, TASKS, build
from implicit_rnn.models.encoder import encoder
from implicit_rnn.training import OptimiserSettings, Recipe, optimiser, recipe
from implicit_rnn.training import settings as training
from implicit_rnn.training.ranges import ANY
from implicit_rnn.training.tables import dump
from tests.implicit_rnn.experiments.problems import CONTENT, config


def changed(table: str, **entries):
    content = copy.deepcopy(CONTENT)
    content.setdefault(table, {}).update(entries)
    return content


def language(**entries):
    return {"task": {"name": "tiny_shakespeare"}, "model": {"name": "language_model", **entries}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (changed("trainig", updates=3), "table 'trainig' is unknown; did you mean 'training'?"),
        (
            changed("training", update=3),
            "training: key 'update' is unknown; did you mean 'updates'",
        ),
        (changed("optimiser", name="adma"), "optimiser.name: one of 'adam'.* wanted, got 'adma'"),
        (changed("training", updates="many"), "training.updates: an integer wanted, got 'many'"),
        (changed("training", updates=2.5), "training.updates: an integer wanted, got 2.5"),
        (changed("training", updates=0), "updates must be at least 1, got 0"),
        (changed("training", batch=True), "training.batch: an integer wanted, got True"),
        (changed("optimiser", rate=-1.0), "rate must be positive"),
        (changed("task", biass=1.0), "task: key 'biass' is unknown; did you mean 'bias'"),
        (
            changed("task", name="biased_wolk"),
            "task.name 'biased_wolk'.*did you mean 'biased_walk'",
        ),
        (changed("model", name="tager"), "model.name 'tager' is unknown; did you mean 'tagger'"),
        (changed("model", encoder="igur"), "model.encoder: unknown encoder 'igur'"),
        (changed("model", hiden=3), "model: key 'hiden' is unknown; did you mean 'hidden'"),
        (changed("model", update_bais=3), "did you mean 'update_bias'"),
        (changed("solver", bounded="clipped"), "solver.bounded: one of 'transform'"),
        ({"task": CONTENT["task"]}, "model.name is missing"),
        (changed("variants", a={"modle": {}}), "table 'modle' is unknown; did you mean 'model'"),
        (changed("grid", **{"": [1.0]}), "'' is not of the form table.key"),
        (changed("grid", **{"task.bias": 1.0}), "grid.task.bias: a list of values wanted, got 1.0"),
        (changed("model", encoder=3), "model.encoder"),
        (language(cell="lsmt"), "model.cell 'lsmt' is unknown; did you mean 'lstm'"),
        (language(forget_bais=0.0), "did you mean 'forget_bias'"),
    ],
)
def test_a_wrong_configuration_is_told_what_would_be_right(content, message):
    with pytest.raises(ConfigError, match=message) as error:
        resolve(content, "some.toml")
    assert "some.toml" in str(error.value)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("training.updates", "takes table.key=value"),
        ("updates=3", "not of the form table.key"),
        ("trainin.updates=3", "did you mean 'training'"),
        ("training.updats=3", "did you mean 'updates'"),
    ],
)
def test_a_wrong_setting_is_named(setting, message):
    with pytest.raises(ConfigError, match=message):
        config(setting)


def test_settings_replace_profiles_and_profiles_replace_the_file():
    content = copy.deepcopy(CONTENT)
    content["profiles"] = {"quick": {"training": {"updates": 3, "batch": 2}}}
    found = resolve(content, "x.toml", "quick", ["training.batch=5", "model.encoder=bigru"]).runs[
        ""
    ]
    assert (found.training.updates, found.training.batch) == (3, 5)
    assert found.training.log_every == CONTENT["training"]["log_every"]
    assert found.model["encoder"] == "bigru"
    assert found.optimiser.momentum == 0.9  # a default
    with pytest.raises(ConfigError, match="profile 'quik' is unknown; did you mean 'quick'"):
        resolve(content, "x.toml", "quik")


def test_grids_and_variants_make_a_run_each():
    content = copy.deepcopy(CONTENT) | {
        "grid": {"task.bias": [1.0, 0.5]},
        "variants": {"a": {}, "b": {"model": {"encoder": "bilstm"}}},
    }
    found = resolve(content, "x.toml")
    assert list(found.runs) == ["bias=1.0-a", "bias=1.0-b", "bias=0.5-a", "bias=0.5-b"]
    assert found.runs["bias=0.5-b"].model["encoder"] == "bilstm"
    assert found.runs["bias=0.5-b"].task["bias"] == 0.5
    assert found.labels["bias=1.0-a"] == {"task.bias": 1.0, "variant": "a"}


def test_settings_of_a_grid_go_together():
    content = {
        "task": {"name": "biased_walk"},
        "model": {"name": "tagger", "encoder": "gru"},
        "grid": {"task.seed training.seed": [0, 1], "task.bias": [1.0, 0.5]},
    }
    found = resolve(content, "here")
    assert list(found.runs) == [f"seed={s}-bias={b}" for s in (0, 1) for b in (1.0, 0.5)]
    assert [(r.task["seed"], r.training.seed) for r in found.runs.values()][1:3] == [(0, 0), (1, 1)]
    both = ["task.seed=7", "training.seed=7"]
    assert next(iter(resolve(content, "here", settings=both).runs)) == "seed=7-bias=1.0"
    for settings in (both[:1], [both[0], "training.seed=8"]):
        with pytest.raises(ConfigError, match="one value: set all of them"):
            resolve(content, "here", settings=settings)


def test_a_setting_stands_for_a_grid_but_does_not_undo_variants():
    content = copy.deepcopy(CONTENT) | {
        "grid": {"task.bias": [1.0, 0.5]},
        "variants": {"a": {}, "b": {"model": {"encoder": "bilstm"}}},
    }
    found = resolve(content, "x.toml", None, ["task.bias=0.25", "model.hidden=5"])
    assert list(found.runs) == ["bias=0.25-a", "bias=0.25-b"]
    assert {run.task["bias"] for run in found.runs.values()} == {0.25}
    assert {run.model["hidden"] for run in found.runs.values()} == {5}
    with pytest.raises(ConfigError, match=r"--set model\.encoder would undo what variant 'b' is"):
        resolve(content, "x.toml", None, ["model.encoder=gru"])


def test_every_number_that_a_table_may_hold_has_a_range():
    made = {**TASKS, **MODELS, **CELLS, **ENCODERS, "encoder": encoder}
    for owner, function in made.items():
        for option, hint in typing.get_type_hints(function).items():
            if option in ("return", "hidden_size") or "bool" in str(hint):
                continue
            if "int" in str(hint) or "float" in str(hint):
                assert range_of([owner], option) is not ANY, f"{owner}.{option}"
    for kind, ranges in ((Recipe, recipe), (OptimiserSettings, optimiser), (RunSettings, training)):
        hints = typing.get_type_hints(kind)
        numbers = [name for name in hints if hints[name] in (int, float) or name == "tied"]
        assert {*numbers} <= {*ranges.RANGES}, kind


def test_what_a_run_keeps_is_its_own_configuration():
    found = config("solver.tied=0.1", "optimiser.clip=inf")
    assert resolve(tomllib.loads(dump(found.table())), "again.toml").runs[""] == found


def test_a_file_that_is_no_configuration_is_named(tmp_path: Path):
    (tmp_path / "bad.toml").write_text("updates = = 3")
    with pytest.raises(ConfigError, match=r"bad.toml: not TOML.*line 1"):
        load(tmp_path / "bad.toml")
    with pytest.raises(ConfigError, match=r"no such file.*none.toml"):
        load(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="is a folder"):
        load(tmp_path)


def test_every_configuration_of_the_library_is_sound_in_every_profile(root: Path):
    paths = sorted((root / "configs").glob("*.toml"))
    assert paths
    for path in paths:
        profiles = tomllib.loads(path.read_text()).get("profiles", {})
        for profile in [None, *profiles]:
            assert load(path, profile).runs
        assert "quick" in profiles, path


SIZES = {
    "logical_inference": {"vocabulary": 11, "labels": 7}, "music": {"keys": 88},
    "parsing": {"source_vocabulary": 170, "target_vocabulary": 140},
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "profile", "parameters"),
    [("logical_inference", "source", 484e3), ("music", "jsb_long", 1e6),
     ("music", "nottingham_recall", 300e3), ("parsing", "tranx_geo", 1.32e6)],
)  # fmt: skip
def test_long_trainings_compare_networks_of_one_size(root: Path, name, profile, parameters):
    experiment = load(root / "configs" / f"{name}.toml", profile)
    for variant, run in experiment.runs.items():
        assert run.training.patience or run.optimiser.schedule != "plateau"
        options = {key: value for key, value in run.model.items() if key != "name"}
        task = types.SimpleNamespace(sizes=SIZES[name])
        made = MODELS[run.model["name"]](task, **options)
        shapes = jax.eval_shape(made.init, jax.random.key(0))
        size = sum(leaf.size for leaf in jax.tree.leaves(shapes))
        assert size == pytest.approx(parameters, rel=0.015), variant


GENERATED = [
    "biased_walk", "sorting", "tree_traversal", "hopfield", "graph", "hyper", "ice_cream", "music",
    "parsing", "pixels", "translation",
]  # fmt: skip


@pytest.mark.parametrize("name", GENERATED)
def test_quick_profiles_need_no_data_and_fit_their_tasks(root: Path, name: str, monkeypatch):
    monkeypatch.delenv("IMPLICIT_RNN_DATA", raising=False)
    runs = load(root / "configs" / f"{name}.toml", "quick").runs
    task, _ = build(next(iter(runs.values())).task, next(iter(runs.values())).model)
    assert {"train", "valid", "test"} <= set(task.splits)
    for run in runs.values():
        options = {key: value for key, value in run.model.items() if key != "name"}
        model = MODELS[run.model["name"]](task, **options)
        batch = task.splits["train"].batch(
            task.splits["train"].plan(run.training.batch, 1, np.random.default_rng(0))[0]
        )
        params = jax.eval_shape(model.init, jax.random.key(0))
        jax.eval_shape(lambda p, b, model=model: model.loss(p, b)[0], params, batch)


@pytest.mark.parametrize("encoder", ["bilstm", "tcn"])
def test_a_decoder_has_its_options_whatever_reads(encoder: str):
    model = {"name": "seq2seq", "encoder": encoder, "decoder": "xrnn", "decoder_depth": 3}
    (run,) = resolve({"task": {"name": "sorting"}, "model": model}, "file").runs.values()
    assert run.model["decoder_depth"] == 3
