"""Graphs whose nodes are to be labelled: checks, splits, and a whole graph as one batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from implicit_rnn.experiments.task import Task
from implicit_rnn.training.sources import Source


class GraphError(ValueError):
    """A graph that cannot be used: where it comes from, which row, and what is wrong."""


class Graph(NamedTuple):
    """A graph whose nodes have features and labels."""

    inputs: np.ndarray  # float32 [nodes, features]
    edges: np.ndarray  # int32 [edges, 2]: from, to
    labels: np.ndarray  # int32 [nodes]
    classes: int


class GraphBatch(NamedTuple):
    """A batch of one graph, and which of its nodes count."""

    inputs: Any  # float32 [1, nodes, features]
    edges: Any  # int32 [1, edges, 2]
    labels: Any  # int32 [1, nodes]
    mask: Any  # bool [1, nodes]


def checked_graph(
    inputs: np.ndarray,
    edges: np.ndarray,
    labels: np.ndarray,
    classes: int,
    *,
    directed: bool = False,
    where: str = "graph",
) -> Graph:
    """A graph fit for message passing, or a `GraphError` that says what is wrong with it.

    * An edge is followed in both directions, unless `directed`.
    * An edge that is listed more than once, in either direction unless `directed`, counts once.
    * A self-loop is left out: a node's own state enters its update anyway.
    * A node without edges stays. It receives nothing, and is labelled by its features alone.
    * A node outside 0..nodes-1, a label outside 0..classes-1, and a feature that is not finite are
      refused.

    Args:
      inputs: features `[nodes, features]`.
      edges: integers `[edges, 2]`; none at all is legal.
      labels: integers `[nodes]`.
      classes: how many labels there are.
      directed: whether an edge leads from its first node to its second only.
      where: what messages begin with: a file's name.

    Returns:
      The graph, its edges sorted by where they end.
    """
    inputs, edges, labels = np.asarray(inputs), np.asarray(edges), np.asarray(labels)
    if inputs.ndim != 2:
        raise GraphError(f"{where}: features must be [nodes, features], got {inputs.shape}")
    nodes = len(inputs)
    if labels.shape != (nodes,):
        raise GraphError(f"{where}: {nodes} nodes need as many labels, got shape {labels.shape}")
    if edges.size == 0:
        edges = np.zeros((0, 2), np.int32)
    if edges.ndim != 2 or edges.shape[1] != 2:
        raise GraphError(f"{where}: edges must be [edges, 2], got {edges.shape}")
    for name, values in (("edges", edges), ("labels", labels)):
        if not np.issubdtype(values.dtype, np.integer):
            raise GraphError(f"{where}: {name} must be integers, got {values.dtype}")
    if inputs.dtype.kind not in "biuf":
        raise GraphError(f"{where}: features must be numbers, got {inputs.dtype}")
    with np.errstate(over="ignore"):  # too large for the programs is not finite: refused here
        inputs = inputs.astype(np.float32)
    bad = np.flatnonzero(~np.isfinite(inputs).all(axis=1))
    if bad.size:
        raise GraphError(f"{where}: a feature of node {bad[0]} is not finite")
    _check_numbers(edges, labels, classes, where)
    edges = edges[edges[:, 0] != edges[:, 1]].astype(np.int32)
    if not directed:
        edges = np.concatenate([edges, edges[:, ::-1]])
    by_end = np.unique(edges[:, ::-1], axis=0)[:, ::-1]
    return Graph(inputs, np.ascontiguousarray(by_end), labels.astype(np.int32), classes)


def random_split(nodes: int, seed: int, train: float, valid: float) -> dict[str, np.ndarray]:
    """Nodes to train on, to validate on, and the rest to test on.

    Args:
      nodes: how many.
      seed: of the draw.
      train, valid: shares, rounded down.
    """
    if not (train > 0 and valid > 0 and train + valid < 1):
        raise ValueError(
            f"train and valid must be positive and leave something to test on, got {train} and "
            f"{valid}"
        )
    first, second = int(nodes * train), int(nodes * train) + int(nodes * valid)
    if not 0 < first < second < nodes:
        raise ValueError(f"of {nodes} nodes, {train} and {valid} leave a split empty")
    drawn = np.random.default_rng(seed).permutation(nodes)
    return {"train": drawn[:first], "valid": drawn[first:second], "test": drawn[second:]}


def principal_components(inputs: np.ndarray, count: int) -> np.ndarray:
    """The leading `count` principal components of features `[nodes, features]`, not rescaled.

    A component's largest loading, by magnitude, is positive.
    """
    if not 0 < count <= min(inputs.shape):
        raise ValueError(f"components must lie between 1 and {min(inputs.shape)}, got {count}")
    centred = inputs.astype(np.float64) - inputs.mean(axis=0, dtype=np.float64)
    loadings = np.linalg.eigh(centred.T @ centred)[1][:, ::-1][:, :count]
    largest = np.take_along_axis(loadings, np.abs(loadings).argmax(axis=0)[None], axis=0)
    return (centred @ (loadings * np.sign(largest))).astype(np.float32)


def _check_numbers(edges: np.ndarray, labels: np.ndarray, classes: int, where: str) -> None:
    bad = np.flatnonzero(((edges < 0) | (edges >= len(labels))).any(axis=1))
    if bad.size:
        first, second = edges[bad[0]]
        raise GraphError(
            f"{where}: row {bad[0]} of the edges joins {first} and {second}, but nodes are "
            f"numbered from 0 to {len(labels) - 1}"
        )
    bad = np.flatnonzero((labels < 0) | (labels >= classes))
    if bad.size:
        raise GraphError(
            f"{where}: node {bad[0]} has the label {labels[bad[0]]}, but labels are numbered "
            f"from 0 to {classes - 1}"
        )


def graph_task(graph: Graph, split: Mapping[str, np.ndarray], **details: Any) -> Task:
    """A task whose every batch is the whole graph; splits differ in the labels that count.

    Args:
      graph: what to learn.
      split: the nodes of `train`, `valid` and `test`.
      details: as for `Task`.
    """
    _check_numbers(graph.edges, graph.labels, graph.classes, "graph")
    # On the device once and for all: updates pass them on, and no program holds them as constants.
    inputs, edges, labels = jax.device_put(
        (graph.inputs[None], graph.edges[None], graph.labels[None])
    )

    def source(members: np.ndarray) -> Source:
        mask = np.zeros((1, len(graph.labels)), bool)
        mask[0, members] = True
        batch = GraphBatch(inputs, edges, labels, jax.device_put(mask))
        return Source(
            lambda size, buckets, rng: [np.array([0])],
            lambda entry: batch,
            lambda entry: entry,
            mask.shape,
        )

    return Task(
        "graph",
        {"input_size": graph.inputs.shape[1], "labels": graph.classes},
        {name: source(members) for name, members in split.items()},
        "error",
        {"graph": graph, "split": split, **details},
    )
