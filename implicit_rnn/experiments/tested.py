"""Many test sequences through a trained tagger, solved once for all figures."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import numpy as np

from implicit_rnn import sequence
from implicit_rnn.cells import Cell
from implicit_rnn.models import Tagger
from implicit_rnn.training import Recipe, Trainer
from implicit_rnn.training.compiling import once

SHOWN = 20_000  # steps of the test set, with padding, that are looked at together


class Looks(NamedTuple):
    """What solves of a batch came to, in a tagger's first layer and at its read-out."""

    scores: jax.Array  # [batch, time], or [batch, time, labels]
    residual: jax.Array  # [batch], of the last layer that is solved
    converged: jax.Array  # [layers, batch]
    past: jax.Array | None  # [batch, time, channels]: how much the step before counts


class Tested:
    """A trained tagger's solves of the first test sequences, each made when it is asked for."""

    def __init__(self, trainer: Trainer, params: Any, recipe: Recipe) -> None:
        self._trainer, self._params, self._recipe = trainer, params, recipe

    @functools.cached_property
    def batch(self) -> Any:
        """The sequences."""
        return first_many(self._trainer.task.splits["test"])

    @property
    def switches(self) -> bool:
        """Whether states of the first layer choose between both of their neighbours."""
        model = self._trainer.model
        if not isinstance(model, Tagger) or not model.solves:
            return False
        cell = model.encoder.cells[0]
        return isinstance(cell, Cell) and cell.switch is not None and cell.stencil == (-1, 1)

    @functools.cached_property
    def in_training(self) -> Looks:
        """By the recipe of the training."""
        return self._looked(self._recipe)

    @functools.cached_property
    def exact(self) -> Looks:
        """As in an evaluation: by sweeps alone, unless these leave a sequence unsolved."""
        found = self._looked(self._recipe.swept())
        return found if np.all(found.converged) else self._looked(self._recipe.exact())

    def _looked(self, recipe: Recipe) -> Looks:
        model: Any = self._trainer.model
        switches = self.switches

        @once
        def look(params: Any, batch: Any) -> Looks:
            inputs = model.embed(params, batch)
            scores, encoded = model.scores(params, inputs, batch.length, solve=recipe.settings())
            assert encoded.info is not None
            past = None
            if switches:
                cell, layer = model.encoder.cells[0], params["encoder"][0]

                def share(xs: jax.Array, states: Any, length: jax.Array) -> jax.Array:
                    return sequence.switch(cell, layer, xs, states, length=length)[:, 0]

                past = jax.vmap(share)(inputs, encoded.states[0], batch.length)
            info = encoded.info
            return Looks(scores, info.residual[-1], info.converged, past)

        return jax.device_get(look(self._params, self.batch))


def count_of(source: Any) -> int:
    """How many sequences of a split are looked at."""
    count, longest = source.shape
    return min(max(SHOWN // longest, 1), count)


def first_many(source: Any) -> Any:
    """The first sequences of a split, as one batch."""
    return source.batch((np.arange(count_of(source)), source.shape[1]))
