"""Beam search with trained models: how it is done, what it finds, what a run keeps of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from implicit_rnn.experiments import runs
from implicit_rnn.experiments.options import ConfigError
from implicit_rnn.experiments.registry import KINDS
from implicit_rnn.experiments.train import restored
from implicit_rnn.training import files
from implicit_rnn.training import folder as folders

_LONGER = 10  # tokens that a search may write beyond the longest target of a batch


class Search(NamedTuple):
    """How sequences are looked for.

    Attributes:
      beam: how many are kept at every step; the X-RNN paper has 8 for German-English, 4 for
        English-Vietnamese, and TranX 5 for parsing.
      length_penalty: as for `models.beam`.
      average: parameters are the mean of so many checkpoints, the last ones; 0: the best alone.
    """

    beam: int = 4
    length_penalty: float = 0.6
    average: int = 0


def judge(folder: Path, search: Search, split: str | None = None) -> list[dict[str, Any]]:
    """The share of sequences that beam search finds whole, noted in the result of a run.

    Args:
      folder: of one run, whose model writes sequences.
      search: how.
      split: which set; by default `test`, and what else the task has but `train` and `valid`.

    Returns:
      The records: split, search, `exact`, how many sequences.
    """
    config = runs.configuration(folder)
    if KINDS[config.model["name"]] != "pairs":
        raise folders.FolderError(
            f"{folder} writes no sequences that a search could find: leave out --beam"
        )
    with folders.locked(folder):
        parts, state, record = restored(config, folder, search.average)
        splits = parts.task.splits
        if split is not None and split not in splits:
            raise ConfigError(f"no split {split!r}; there are {', '.join(splits)}")
        names = [name for name in splits if name not in ("train", "valid")]
        params, settings = parts.usable(state), config.solver.exact().settings()

        def right(params: Any, batch: Any) -> tuple[jax.Array, jax.Array]:
            time = batch.target.shape[1]
            found = parts.model.beam(
                params, batch.source, batch.source_length, time + _LONGER,
                search.beam, search.length_penalty, solve=settings,
            )  # fmt: skip
            outside = jnp.arange(time) >= jnp.asarray(batch.target_length)[:, None]
            same = outside | (found.tokens[:, 0, :time] == batch.target)
            whole = jnp.all(same, axis=1) & (found.length[:, 0] == batch.target_length)
            there = jnp.asarray(batch.target_length) >= 0
            return jnp.sum(whole & there), jnp.sum(there)

        run, records = jax.jit(right), []
        for name in names if split is None else [split]:
            plan = splits[name].plan(config.training.evaluate_batch, 2, None)
            counts = [run(params, splits[name].batch(entry)) for entry in plan]
            exact, count = np.sum([[int(part) for part in pair] for pair in counts], axis=0)
            records.append(
                {"split": name, **search._asdict(), "exact": float(exact / max(count, 1))}
                | {"sequences": int(count), "update": record["update"]}
            )
        note(folder / "result.json", "searched", records)
    return records


def note(path: Path, key: str, records: Sequence[Mapping[str, Any]]) -> None:
    """Puts records of a result, if there is one, beside those of other searches."""
    if not path.exists():
        return
    result = files.read_sealed(path)
    new = {_search_of(record): dict(record) for record in records}
    old = {_search_of(record): record for record in result.get(key, [])}
    files.write_sealed(path, result | {key: list((old | new).values())})


def _search_of(record: Mapping[str, Any]) -> tuple:
    return tuple(record[key] for key in ("split", *Search._fields))
