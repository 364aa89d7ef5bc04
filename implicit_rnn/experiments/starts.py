"""Where do solves end? Trained taggers, solved from several starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from implicit_rnn.experiments import runs
from implicit_rnn.experiments.options import ConfigError
from implicit_rnn.experiments.train import restored
from implicit_rnn.models import Tagger
from implicit_rnn.models.base import inside
from implicit_rnn.training import Recipe

CHOSEN = "chosen"  # the start that a solve has by itself
OTHER = 0.01  # relative distance from which states are others, a hundred times the tolerance
RTOL = 1e-4


class Ends(NamedTuple):
    """What the sequences of a batch came to from one start, each leaf `[batch]`.

    Attributes:
      distance: of the states from those of the usual start, over the norm of these.
      converged: whether all layers did.
      wrong: labels that are not the true ones.
      changed: labels that are not those of the usual start.
      steps: of the sequence.
    """

    distance: Any
    converged: Any
    wrong: Any
    changed: Any
    steps: Any


def compare(
    folder: Path, split: str = "test", draws: int = 4, rtol: float = RTOL
) -> list[dict[str, Any]]:
    """A row for every start: how often it ends in other states, and what that does to the error.

    Args:
      folder: of a trained tagger with solved layers.
      split: the set that is solved.
      draws: how many random starts there are beside those with a name, uniform in [-1, 1].
      rtol: tolerance of the solves.

    Returns:
      Rows of `start`, `converged`, `elsewhere` (the share of sequences that converge from this
      start and from the usual one, and whose states are further than `OTHER` apart), `changed` (the
      share of labels that differ), `error`, and that on the sequences that some start takes
      elsewhere (`error there`; None where there are none). The last row counts those. Empty for a
      model that is no tagger, or solves nothing.
    """
    config = runs.configuration(folder)
    trained = restored(config, folder)
    model, splits = trained.trainer.model, trained.trainer.task.splits
    if not isinstance(model, Tagger) or not model.solves:
        return []
    if split not in splits:
        raise ConfigError(f"no split {split!r}; there are {', '.join(splits)}")
    names = [CHOSEN, "zeros"]
    first = model.encoder.cells[0]
    if not isinstance(first, tuple) and first.causal_step is not None:
        names += ["forward", "bidirectional"]
    names += [f"random {number + 1}" for number in range(draws)]
    solve = _solver(model, config.solver)
    found: dict[str, list[Ends]] = {name: [] for name in names}
    for batch in _batches(splits[split], config.training.evaluate_batch):
        usual = None
        for number, name in enumerate(names):
            key = jax.random.key(number)
            ends, usual = solve(trained.params, batch, name.split()[0], key, usual, rtol)
            found[name].append(jax.device_get(ends))
    return _rows({name: jax.tree.map(_joined, *own) for name, own in found.items()})


def _solver(model: Tagger, recipe: Recipe) -> Callable[..., tuple[Ends, Any]]:
    """`(params, batch, start, key, usual, rtol) -> (Ends, what the usual start came to)`."""

    def run(
        params: Any, batch: Any, start: str, key: Any, usual: Any, rtol: float, robust: bool
    ) -> tuple[Ends, Any]:
        settings = (recipe.exact() if robust else recipe.swept()).settings() | {"rtol": rtol}
        if start != CHOSEN:
            settings |= {"start": [start] * model.solves, "key": key}
        inputs = model.embed(params, batch)
        scores, encoded = model.scores(params, inputs, batch.length, solve=settings)
        assert encoded.info is not None
        labels = model.predict(scores)
        own = (encoded.states, labels, jnp.all(encoded.info.converged, axis=0))
        states, before, settled = own if usual is None else usual
        apart, size = (
            sum(
                jnp.sum(leaf.astype(jnp.float32) ** 2, axis=(1, 2))
                for leaf in jax.tree.leaves(tree)
            )
            for tree in (jax.tree.map(jnp.subtract, encoded.states, states), states)
        )
        counts = inside(batch.length, labels.shape[1])
        ends = Ends(
            jnp.sqrt(apart / jnp.maximum(size, 1e-12)),
            own[2] & settled,
            jnp.sum(counts & (labels != batch.labels), axis=1),
            jnp.sum(counts & (labels != before), axis=1),
            batch.length,
        )
        return ends, (own if usual is None else usual)

    compiled = jax.jit(run, static_argnames=("start", "robust"))

    def solve(
        params: Any, batch: Any, start: str, key: Any, usual: Any, rtol: float
    ) -> tuple[Ends, Any]:
        found = compiled(params, batch, start, key, usual, rtol, robust=False)
        if not found[0].converged.all():
            found = compiled(params, batch, start, key, usual, rtol, robust=True)
        return found

    return solve


def _batches(source: Any, size: int) -> Iterator[Any]:
    for entry in source.plan(size, 1, None):
        yield source.batch(entry)


def _joined(*parts: np.ndarray) -> np.ndarray:
    return np.concatenate(parts)


def _rows(found: dict[str, Ends]) -> list[dict[str, Any]]:
    elsewhere = {name: own.converged & (own.distance > OTHER) for name, own in found.items()}
    several = np.any([*elsewhere.values()], axis=0)
    real = next(iter(found.values())).steps > 0

    def share(count: np.ndarray, of: np.ndarray, where: np.ndarray) -> float | None:
        return float(count[where].sum() / of[where].sum()) if of[where].any() else None

    rows = []
    for name, own in found.items():
        one = np.ones_like(own.steps)
        rows.append(
            {
                "start": name,
                "converged": share(own.converged, one, real),
                "elsewhere": share(elsewhere[name], one, real),
                "changed": share(own.changed, own.steps, real),
                "error": share(own.wrong, own.steps, real),
                "error there": share(own.wrong, own.steps, several & real),
            }
        )
    return [*rows, {"start": "any of them", "elsewhere": share(several, np.ones_like(one), real)}]
