"""The networks of a graph that a configuration describes."""

from __future__ import annotations

from typing import Literal

from implicit_rnn import models
from implicit_rnn.experiments.task import Task


def graph(
    task: Task,
    *,
    hidden: int | None = None,
    rule: str = "neumann",
    truncation: int = 5,
    uniform: bool = False,
    steps: int = 100,
    tolerance: float = 1e-3,
    inputs: Literal["every_step", "initial"] = "every_step",
    normalise: Literal["none", "mean", "symmetric"] = "symmetric",
    coupling: float = 0.95,
    dropout: float = 0.0,
) -> models.GraphNetwork:
    """A label for every node: a gated graph network at its equilibrium.

    Args:
      hidden: width of a node's state; as many as it has features without.
      rule, truncation, uniform, steps, tolerance, inputs, normalise, coupling, dropout: as for
        `models.graph_network`.
    """
    sizes = task.sizes
    return models.graph_network(
        sizes["input_size"],
        sizes["labels"],
        hidden or sizes["input_size"],
        rule=rule,
        truncation=truncation,
        uniform=uniform,
        steps=steps,
        tolerance=tolerance,
        inputs=inputs,
        normalise=normalise,
        coupling=coupling,
        dropout=dropout,
    )


def logistic_regression(task: Task, *, dropout: float = 0.0) -> models.LogisticRegression:
    """A label for every node from its own features.

    Args:
      dropout: of the features.
    """
    return models.logistic_regression(
        task.sizes["input_size"], task.sizes["labels"], dropout=dropout
    )
