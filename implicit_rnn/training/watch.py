"""Says once, in a warning, that a layer's solves become harder while it trains without bounds."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from implicit_rnn.training.recipe import Recipe
from solvers import Info

Hook = Callable[[dict[str, Any]], None]

_GROWN = 3.0  # times as many steps as at first
_FEWEST = 10.0  # steps that are cheap enough to be nobody's concern
_SHARE = 0.99  # of the examples that should converge


class Watch:
    """Looks at solves of a training and warns, once, when they take many more steps than at first.

    `training.train` has one for recipes and models without bounds. A loop of your own calls it with
    every update's `Info`, or with every tenth:

        watch = Watch()
        for batch in batches:
            params, state, info = update(params, state, batch)
            watch(info)

    Args:
      remedy: the line to change, said in the warning.
    """

    def __init__(
        self,
        remedy: str = "optimiser = recipe.optimiser(recipe.bounds(cell), optimiser), "
        "with recipe = implicit_rnn.training.Recipe()",
    ) -> None:
        self.remedy = remedy
        self.first: float | None = None
        self.warned = False

    def __call__(self, info: Info) -> None:
        """Takes the `Info` of one solve, or of a batch."""
        self.look(float(np.mean(info.steps)), float(np.mean(np.asarray(info.converged))))

    def look(self, steps: float, converged: float) -> None:
        """Takes mean steps, and the share of the examples that converged."""
        if self.first is None:
            self.first = steps
        grown = steps > max(_GROWN * self.first, _FEWEST)
        if self.warned or not (grown or converged < _SHARE):
            return
        self.warned = True
        warnings.warn(
            f"implicit layers are taking more steps than at first ({steps:.1f}, then "
            f"{self.first:.1f}; {converged:.1%} of the examples converged): training without "
            f"bounds makes solves harder. Bound the recurrent matrices: {self.remedy}",
            UserWarning,
            stacklevel=3,
        )


def watching(model: Any, recipe: Recipe | None, on_log: Hook | None) -> Hook | None:
    """A hook for lines about training that also looks at layers which nothing bounds."""
    remedy = ""
    if getattr(model, "solves", 0):
        if recipe is not None and recipe.bounded == "none":
            remedy = 'recipe=Recipe(bounded="transform"), or solver.bounded of a configuration'
        elif not jax.tree.leaves(getattr(model, "bounds", {})):
            remedy = "give the model an attribute `bounds`, such as {'layer': cell.bounds}"
    if not remedy:
        return on_log
    watch = Watch(remedy)

    def look(row: dict[str, Any]) -> None:
        if "forward_steps" in row:
            watch.look(row["forward_steps"], row["converged"])
        if on_log is not None:
            on_log(row)

    return look
