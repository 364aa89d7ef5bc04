"""Recorded results can still be read: their tables print, their configurations are known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from implicit_rnn.experiments.config import resolve
from implicit_rnn.experiments.report import markdown

RECORDS = sorted((Path(__file__).parents[3] / "results").glob("*.json"))


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_a_recorded_result_prints_and_its_configurations_are_known(path: Path) -> None:
    content = json.loads(path.read_text())
    rows = content["rows"]
    assert len(markdown(rows).splitlines()) == 2 + len(rows)
    for name, run in content.get("runs", {}).items():
        config = resolve(run["config"], name).runs[""]
        recorded = {table: {*keys} for table, keys in run["config"].items()}
        assert all({*config.table()[table]} >= keys for table, keys in recorded.items())
