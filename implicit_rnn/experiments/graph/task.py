"""Citation networks: from a document's words and its neighbours, what is it about?"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal

import numpy as np

from implicit_rnn.experiments import data
from implicit_rnn.experiments.data.arrays import read_arrays
from implicit_rnn.experiments.graph.block_graph import block_graph
from implicit_rnn.experiments.graph.graphs import (
    Graph,
    GraphError,
    checked_graph,
    graph_task,
    principal_components,
    random_split,
)
from implicit_rnn.experiments.task import Task

CLASSES = {"cora": 7, "pubmed": 3}
_SPLIT = {"train": "idx_train", "valid": "idx_val", "test": "idx_test"}
_ARRAYS = (
    "x_data", "x_indices", "x_indptr", "x_shape", "edges", "labels", *_SPLIT.values(),
)  # fmt: skip


def citation_task(
    *,
    network: Literal["cora", "pubmed", "generated"] = "generated",
    path: str | None = None,
    split: Literal["random", "planetoid"] = "random",
    seed: int = 0,
    train: float = 0.01,
    valid: float = 0.49,
    components: int = 0,
    scaled: bool = False,
) -> Task:
    """Documents of a citation network to label, a few of which are labelled.

    Args:
      network: Cora (2,708 documents, 7 topics), Pubmed (19,717, 3 topics), or a `block_graph` of
        1,000 documents, always the same.
      path: the `.npz` file of the network, in place of the data set's own.
      split: documents drawn at random, or the public ones of Planetoid (20 of each topic to train
        on, 500 to validate, 1,000 to test).
      seed: of the random split.
      train, valid: shares of the random split; the rest is tested on.
      components: how many principal components take the place of the words; 0: none do.
      scaled: divide the words of a document by their sum first.
    """
    if split not in ("random", "planetoid"):
        raise ValueError(f'split must be "random" or "planetoid", got {split!r}')
    if network == "generated":
        graph, public = block_graph(0), None
    elif network in CLASSES:
        file = Path(path) if path else data.sound(network, f"{network}.npz")
        graph, public = read_citations(file, CLASSES[network])
    else:
        raise ValueError(f"network must be generated, {' or '.join(CLASSES)}, got {network!r}")
    if split == "planetoid" and public is None:
        raise ValueError('a generated network has no public split: choose split = "random"')
    inputs = graph.inputs
    if scaled:
        inputs = inputs / np.maximum(inputs.sum(axis=1, keepdims=True), 1e-12)
    if components:
        inputs = principal_components(inputs, components)
    chosen = public if split == "planetoid" else None
    if chosen is None:
        chosen = random_split(len(inputs), seed, train, valid)
    return graph_task(graph._replace(inputs=inputs), chosen)


def read_citations(path: Path, classes: int) -> tuple[Graph, dict[str, np.ndarray]]:
    """A network out of an `.npz` file, and the public split that comes with it.

    Args:
      path: the file, with the arrays `x_data`, `x_indices`, `x_indptr` and `x_shape` (features as a
        compressed sparse row matrix), `edges` `[edges, 2]`, `labels`, `idx_train`, `idx_val` and
        `idx_test`.
      classes: how many labels there are.
    """
    found = read_arrays(path, _ARRAYS)
    graph = checked_graph(
        _dense(path, *(found[name] for name in _ARRAYS[:4])),
        found["edges"],
        found["labels"],
        classes,
        where=str(path),
    )
    split = {name: found[array] for name, array in _SPLIT.items()}
    for name, array in _SPLIT.items():
        if split[name].ndim != 1 or split[name].dtype.kind not in "iu" or not split[name].size:
            raise GraphError(f"{path}: {array} must hold numbers of nodes, one at least")
        bad = np.flatnonzero((split[name] < 0) | (split[name] >= len(graph.labels)))
        if bad.size:
            raise GraphError(
                f"{path}: row {bad[0]} of {array} is {split[name][bad[0]]}, but nodes are "
                f"numbered from 0 to {len(graph.labels) - 1}"
            )
    return graph, split


def _dense(
    path: Path, values: np.ndarray, columns: np.ndarray, starts: np.ndarray, shape: np.ndarray
) -> np.ndarray:
    """The matrix whose row `i` has `values[starts[i]:starts[i + 1]]` in these `columns`."""
    if any(array.dtype.kind not in "iu" for array in (columns, starts, shape)):
        raise GraphError(f"{path}: x_indices, x_indptr and x_shape must hold integers")
    columns, starts, shape = (array.astype(np.int64) for array in (columns, starts, shape))
    if (
        columns.ndim != 1
        or shape.shape != (2,)
        or starts.shape != (shape[0] + 1,)
        or values.shape != columns.shape
    ):
        raise GraphError(f"{path}: x_data, x_indices, x_indptr and x_shape do not fit together")
    if shape.min() < 1 or 4 * math.prod(map(int, shape)) > data.MOST:
        raise GraphError(f"{path}: x_shape says {shape[0]} x {shape[1]}, which is none or too many")
    counts = np.diff(starts)
    bad = np.flatnonzero(counts < 0)
    if bad.size or starts[0] != 0 or starts[-1] != len(values):
        row = bad[0] if bad.size else 0 if starts[0] else len(counts)
        raise GraphError(
            f"{path}: row {row} of x_indptr is out of order: it must rise from 0 to {len(values)}"
        )
    rows = np.repeat(np.arange(len(counts)), counts)
    bad = np.flatnonzero((columns < 0) | (columns >= shape[1]))
    if bad.size:
        raise GraphError(
            f"{path}: node {rows[bad[0]]} has the feature {columns[bad[0]]}, but features are "
            f"numbered from 0 to {shape[1] - 1}"
        )
    matrix = np.zeros(tuple(shape), np.float32)
    with np.errstate(
        over="ignore", invalid="ignore"
    ):  # what is not finite is refused with its node
        np.add.at(matrix, (rows, columns), values)
    return matrix
