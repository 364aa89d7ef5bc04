"""Table 1 of the 2018 paper: all trials of a cell as one program.

    python -m implicit_rnn.experiments.hopfield.trials --profile table --trials 100

A cell is a learning rule with a truncation. Its trials, runs that differ in their seeds alone, are
one `vmap` of what training does in a run of its own. Cells are written one by one to a JSON file,
and a table that was interrupted goes on.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from implicit_rnn.experiments.config import Config, load, look_up
from implicit_rnn.experiments.configurations import located
from implicit_rnn.experiments.registry import build
from implicit_rnn.training import files
from implicit_rnn.training.optimiser import optimiser_of
from implicit_rnn.training.program import Program, State


class Trials(NamedTuple):
    """What came of the trials of a cell, each field `[trials]`.

    Attributes:
      first, last: the training loss of the first update and of the last.
      skipped: updates that were skipped for not being finite.
      error: on the test set, the share of pixels on the wrong side of 1/2.
    """

    first: np.ndarray | jax.Array
    last: np.ndarray | jax.Array
    skipped: np.ndarray | jax.Array
    error: np.ndarray | jax.Array

    @property
    def success(self) -> np.ndarray | jax.Array:
        """Whose loss has halved, as `task.success` judges a run."""
        return (2 * self.last < self.first) & (self.skipped == 0)


def trials(config: Config, seeds: Sequence[int], together: int | None = None) -> Trials:
    """Trains with many seeds at once.

    Args:
      config: of one of the runs; its own seed does not matter.
      seeds: one a trial.
      together: how many share a program, for what memory there is; by default all.
    """
    if not seeds:
        raise ValueError("there must be at least one seed")
    program = _program(config)
    run = jax.jit(jax.vmap(functools.partial(_trial, program), (0, 1), 0))
    size = min(together or len(seeds), len(seeds))
    # A program has so many places; what the last one has too many is thrown away.
    padded = [*seeds, *[seeds[-1]] * (-len(seeds) % size)]
    parts = [
        jax.device_get(run(np.array(part, np.uint32), _orders(program, part)))
        for part in (padded[first : first + size] for first in range(0, len(padded), size))
    ]
    return Trials(*(np.concatenate(leaves)[: len(seeds)] for leaves in zip(*parts, strict=True)))


def _program(config: Config) -> Program:
    """An update, as in a run of its own."""
    task, model = build(config.task, config.model)
    recipe = _clipped(config)
    optimiser = optimiser_of(config.optimiser, config.training.updates)
    return Program(
        task, model, recipe, recipe.optimiser({}, optimiser), {}, config.optimiser.ema,
        config.training, None,
    )  # fmt: skip


def _clipped(config: Config) -> Any:
    """The recipe with the clip of the optimiser's table, which takes the place of its own."""
    return dataclasses.replace(config.solver, clip=config.optimiser.clip or math.inf)


def _orders(program: Program, seeds: Sequence[int]) -> np.ndarray:
    """Which images an update is given, as in a run of its own: `[updates, trials, batch]`."""
    settings, plan = program.settings, program.task.splits["train"].plan

    def of(seed: int) -> Iterator[np.ndarray]:
        epoch = 0
        while True:
            yield from plan(settings.batch, settings.buckets, np.random.default_rng((seed, epoch)))
            epoch += 1

    rows = [zip(range(settings.updates), of(seed), strict=False) for seed in seeds]
    return np.array([[index for _, index in row] for row in rows], np.int32).swapaxes(0, 1)


def _trial(program: Program, seed: jax.Array, order: jax.Array) -> Trials:
    """One of them; what is left is for `vmap`."""
    images = program.task.splits["train"].batch(np.arange(program.task.splits["train"].shape[0]))
    test = program.task.splits["test"]
    whole = test.batch(np.arange(test.shape[0]))

    def update(state: State, index: jax.Array) -> tuple[State, jax.Array]:
        batch = jax.tree.map(lambda leaf: jnp.asarray(leaf)[index], images)
        new = program.step(state, batch, None, seed)
        loss = new.totals["loss"] / new.totals["count"]
        return new._replace(totals=jax.tree.map(jnp.zeros_like, new.totals)), loss

    state, losses = jax.lax.scan(update, program.init(seed), order)
    _, outcome = program.model.loss(program.usable(state), whole)
    error = outcome.sums["error"] / outcome.sums["count"]
    return Trials(losses[0], losses[-1], state.optimiser.total_notfinite, error)


def table(
    path: Path,
    profile: str | None,
    settings: Sequence[str],
    count: int,
    output: Path,
    together: int | None = None,
) -> dict[str, Any]:
    """The cells of a configuration's grid, each with so many trials; those in `output` are kept.

    Args:
      path, profile, settings: as for `config.load`.
      count: trials of a cell, whose seeds are 0, 1, ...
      output: a JSON file, written after every cell.
      together: as for `trials`.
    """
    experiment = load(path, profile, settings)
    found = json.loads(output.read_text("utf-8")) if output.exists() else {}
    content: dict[str, Any] = {"title": experiment.title, "cells": found.get("cells", {})}
    for config in experiment.runs.values():
        rule, steps = config.model["rule"], config.model["truncation"]
        name, own = f"{rule} {steps}", config.table()
        own["training"].pop("seed")
        own = files.plain(own)
        there = content["cells"].get(name, {})
        if there.get("config") == own and there.get("trials") == count:
            continue
        began = time.perf_counter()
        came = trials(config, range(count), together)
        content["cells"][name] = {
            "model.rule": rule,
            "model.truncation": steps,
            "trials": count,
            "success": float(np.mean(came.success)),
            "test error": float(np.mean(came.error)),
            "spread": float(np.std(came.error)),
            "loss": [float(np.mean(came.first)), float(np.mean(came.last))],
            "skipped": int(np.sum(came.skipped)),
            "seconds": time.perf_counter() - began,
            "paper's success": _published(experiment.paper, own),
            "config": own,
        }
        output.parent.mkdir(parents=True, exist_ok=True)
        files.write_json(output, content)
        print(_line(content["cells"][name]), flush=True)
    return content


def _published(paper: Sequence[dict[str, Any]], config: dict[str, Any]) -> float | None:
    """What the paper has for a cell, if these are its images."""
    for row in paper:
        where = {key: value for key, value in row.items() if "." in key}
        if "success" in row and all(look_up(config, k) == v for k, v in where.items()):
            return float(row["success"])
    return None


_COLUMNS = ("model.rule", "model.truncation", "test error", "trials", "success", "paper's success")


def _line(cell: dict[str, Any]) -> str:
    """A row of a table in Markdown."""
    values = [cell[name] for name in _COLUMNS]
    shown = ["" if v is None else f"{v:.4g}" if isinstance(v, float) else str(v) for v in values]
    return f"| {' | '.join(shown)} |"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command of this module."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("config", nargs="?", default="hopfield", help="a file, or its name")
    parser.add_argument("--profile", default="table")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="settings")
    parser.add_argument("--trials", type=int, default=100, help="of each cell (100)")
    parser.add_argument("--together", type=int, help="how many share a program (all)")
    parser.add_argument("--output", type=Path, default=Path("runs/hopfield-trials.json"))
    given = parser.parse_args(arguments)
    found = table(
        located(given.config), given.profile, given.settings, given.trials, given.output,
        given.together,
    )  # fmt: skip
    print(f"\n| {' | '.join(_COLUMNS)} |\n|{' --- |' * len(_COLUMNS)}")
    print("\n".join(map(_line, found["cells"].values())))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
