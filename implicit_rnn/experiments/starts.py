"""Where do solves end? Trained taggers, solved from several starts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from implicit_rnn.experiments import runs
from implicit_rnn.experiments.options import ConfigError
from implicit_rnn.experiments.train import restored
from implicit_rnn.models import Tagger
from implicit_rnn.training import Recipe

CHOSEN = "chosen"  # the start that a solve has by itself
OTHER = 0.01  # relative distance from which states are others, a hundred times the tolerance
RTOL = 1e-4


class Ends(NamedTuple):
    """What the sequences of a batch came to from one start, each leaf `[batch]`.

    Attributes:
      distance: of the states from those of the chosen start, over the norm of these.
      converged: whether all layers did, from this start and from the chosen one.
      wrong: labels that are not the true ones.
      changed: labels that are not those of the chosen start.
      steps: of the sequence.
    """

    distance: np.ndarray
    converged: np.ndarray
    wrong: np.ndarray
    changed: np.ndarray
    steps: np.ndarray


class Found(NamedTuple):
    """What one solve of a batch gave: states of all layers, labels, and whether it converged."""

    states: list[Any]
    labels: Any  # [batch, time]
    converged: Any  # [batch]


def compare(
    folder: Path, split: str = "test", draws: int = 4, rtol: float = RTOL
) -> list[dict[str, Any]]:
    """A row for every start: how often it ends in other states, and what that does to the error.

    Args:
      folder: of a trained tagger with solved layers.
      split: the set that is solved.
      draws: how many random starts there are beside the chosen one and zeros, uniform in [-1, 1].
      rtol: tolerance of the solves.

    Returns:
      Rows of `start`, `converged`, `elsewhere` (the share of sequences that converge from this
      start and from the chosen one, and whose states are further than `OTHER` apart), `changed`
      (the share of labels that differ), `error`, and that on the sequences that some start takes
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
    solve = _solver(model, config.solver, rtol)
    names = [CHOSEN, "zeros", *(f"random {number + 1}" for number in range(draws))]
    found: dict[str, list[Ends]] = {name: [] for name in names}
    rng, source = np.random.default_rng(0), splits[split]
    for entry in source.plan(config.training.evaluate_batch, 1, None):
        batch = source.batch(entry)
        # A start that is not a number is the chosen one.
        chosen = solve(trained.params, batch, lambda shape: np.full(shape, np.nan))
        for name in names:
            own = chosen
            if name != CHOSEN:
                own = solve(trained.params, batch, np.zeros if name == "zeros" else _uniform(rng))
            found[name].append(_ends(batch, chosen, own))
    return _rows({name: jax.tree.map(_joined, *own) for name, own in found.items()})


def _uniform(rng: np.random.Generator) -> Callable[[tuple[int, ...]], np.ndarray]:
    return lambda shape: rng.uniform(-1, 1, shape)


def _solver(model: Tagger, recipe: Recipe, rtol: float) -> Callable[..., Found]:
    """`(params, batch, draw) -> Found`: draw makes the states to start from, by their shape."""

    def run(params: Any, batch: Any, start: Any, robust: bool) -> Found:
        settings = (recipe.exact() if robust else recipe.swept()).settings() | {"rtol": rtol}
        inputs = model.embed(params, batch)
        if start is not None:
            settings |= {"start": start}
        scores, encoded = model.scores(params, inputs, batch.length, solve=settings)
        assert encoded.info is not None
        converged = jnp.all(encoded.info.converged, axis=0)
        return Found(encoded.states, model.predict(scores), converged)

    compiled = jax.jit(run, static_argnames="robust")
    known: dict[tuple[int, ...], Any] = {}  # to look at a program takes longer than to run it

    def solve(params: Any, batch: Any, draw: Callable[[tuple[int, ...]], np.ndarray]) -> Found:
        size = batch.labels.shape
        if size not in known:
            known[size] = jax.eval_shape(lambda: run(params, batch, None, False)).states
        start = jax.tree.map(lambda leaf: draw(leaf.shape).astype(leaf.dtype), known[size])
        found = compiled(params, batch, start, robust=False)
        if not found.converged.all():
            found = compiled(params, batch, start, robust=True)
        return jax.device_get(found)

    return solve


def _ends(batch: Any, chosen: Found, own: Found) -> Ends:
    def norm(states: Any) -> np.ndarray:
        leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(states)]
        return np.sqrt(sum(np.sum(leaf**2, axis=(1, 2)) for leaf in leaves))

    apart = norm(jax.tree.map(np.subtract, own.states, chosen.states))
    counts = np.arange(own.labels.shape[1]) < np.asarray(batch.length)[:, None]
    return Ends(
        apart / np.maximum(norm(chosen.states), 1e-12),
        own.converged & chosen.converged,
        np.sum(counts & (own.labels != batch.labels), axis=1),
        np.sum(counts & (own.labels != chosen.labels), axis=1),
        np.asarray(batch.length),
    )


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
