"""What a search finds: counted right, noted beside other searches, refused where there is none."""

from __future__ import annotations

import contextlib
import types
from pathlib import Path

import jax.numpy as jnp
import pytest

from implicit_rnn.experiments import search
from implicit_rnn.experiments.config import resolve
from implicit_rnn.experiments.sorting.task import sorting_task
from implicit_rnn.models.decoding import Decoded
from implicit_rnn.training.files import read_sealed, write_sealed
from implicit_rnn.training.folder import FolderError
from implicit_rnn.training.tables import dump

OPTIONS = {"train": 8, "valid": 8, "test": 24}


def configured(folder: Path, **model):
    content = {"task": {"name": "sorting", **OPTIONS}, "model": {"name": "seq2seq", **model}}
    folder.mkdir(exist_ok=True)
    (folder / "config.toml").write_text(dump(resolve(content, "x.toml").runs[""].table()))


def test_sequences_that_are_found_whole_are_counted(tmp_path: Path, monkeypatch):
    """A search that sorts, but leaves out the last token where the first is an even one."""
    task, asked = sorting_task(**OPTIONS), []

    def beam(params, source, length, limit, width, penalty, *, solve):
        asked.append((width, penalty))
        inside = jnp.arange(source.shape[1]) < length[:, None]
        tokens = jnp.sort(jnp.where(inside, source, 10**6), axis=1)
        tokens = jnp.pad(tokens, ((0, 0), (0, limit - tokens.shape[1])))
        return Decoded(tokens[:, None], (length - (source[:, 0] % 2 == 0))[:, None], None)

    model = types.SimpleNamespace(beam=beam)
    parts = types.SimpleNamespace(task=task, model=model, usable=lambda state: {})
    monkeypatch.setattr(search, "restored", lambda *_: (parts, None, {"update": 3}))
    monkeypatch.setattr(search.folders, "locked", lambda _: contextlib.nullcontext())
    configured(tmp_path)
    write_sealed(tmp_path / "result.json", {"searched": []})
    records = search.judge(tmp_path, search.Search(5, 0.0), "test")
    source = task.splits["test"]
    odd = 0
    for entry in source.plan(24, 1, None):
        batch = source.batch(entry)
        odd += int(((batch.source[:, 0] % 2 == 1) & (batch.target_length >= 0)).sum())
    assert 0 < odd < 24
    assert records[0]["exact"] == odd / 24
    assert records[0]["sequences"] == 24
    search.judge(tmp_path, search.Search(5, 0.0))  # the same search again, and other sets
    search.judge(tmp_path, search.Search(1, 0.0), "test")
    noted = read_sealed(tmp_path / "result.json")["searched"]
    beams = [record["beam"] for record in noted if record["split"] == "test"]
    assert beams == [5, 1]
    assert {*asked} == {(5, 0.0), (1, 0.0)}


def test_a_model_that_writes_nothing_is_refused(tmp_path: Path):
    content = {"task": {"name": "biased_walk"}, "model": {"name": "tagger"}}
    (tmp_path / "config.toml").write_text(dump(content))
    with pytest.raises(FolderError, match="writes no sequences"):
        search.judge(tmp_path, search.Search())
