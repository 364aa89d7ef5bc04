"""Citation networks: files as published, graphs with every defect, splits, and a generated one."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import pytest

from implicit_rnn.cli import main
from implicit_rnn.experiments import data
from implicit_rnn.experiments.graph.block_graph import block_graph
from implicit_rnn.experiments.graph.graphs import (
    GraphError,
    checked_graph,
    graph_task,
    principal_components,
    random_split,
)
from implicit_rnn.experiments.graph.task import read_citations
from implicit_rnn.experiments.registry import TASKS

FEATURES = np.array([[1, 0, 0.5], [0, 0, 0], [0, 2, 0], [0, 0, 3]], np.float32)
ARRAYS = {
    "x_data": np.array([1, 0.5, 2, 3], np.float32),
    "x_indices": np.array([0, 2, 1, 2], np.int32),
    "x_indptr": np.array([0, 2, 2, 3, 4], np.int32),
    "x_shape": np.array([4, 3]),
    "edges": np.array([[0, 1], [1, 2]], np.int32),
    "labels": np.array([0, 1, 1, 0], np.int32),
    "idx_train": np.array([0, 2], np.int32),
    "idx_val": np.array([1], np.int32),
    "idx_test": np.array([3], np.int32),
}


def file_of(folder: Path, **changed: np.ndarray) -> Path:
    path = folder / "small.npz"
    np.savez_compressed(path, **(ARRAYS | changed))
    return path


def test_a_file_becomes_a_graph_and_its_public_split(tmp_path):
    graph, split = read_citations(file_of(tmp_path), 2)
    np.testing.assert_array_equal(graph.inputs, FEATURES)
    assert graph.inputs.dtype == np.float32
    assert graph.edges.tolist() == [[1, 0], [0, 1], [2, 1], [1, 2]]
    np.testing.assert_array_equal(graph.labels, ARRAYS["labels"])
    assert {name: members.tolist() for name, members in split.items()} == {
        "train": [0, 2],
        "valid": [1],
        "test": [3],
    }


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"edges": [[0, 1], [1, 4]]}, "row 1 of the edges joins 1 and 4, .* from 0 to 3"),
        ({"edges": [[0, -1]]}, "row 0 of the edges joins 0 and -1"),
        ({"edges": [[0.0, 1.0]]}, "edges must be integers, got float64"),
        ({"edges": [[0, 1, 2]]}, r"edges must be \[edges, 2\], got \(1, 3\)"),
        ({"labels": [0, 1, 2, 0]}, "node 2 has the label 2, .* from 0 to 1"),
        ({"labels": [0, 1, -1, 0]}, "node 2 has the label -1"),
        ({"labels": [0, 1]}, "4 nodes need as many labels"),
        ({"x_indices": [0, 3, 1, 2]}, "node 0 has the feature 3, .* from 0 to 2"),
        ({"x_indptr": [0, 3, 2, 3, 4]}, "row 1 of x_indptr is out of order"),
        ({"x_indptr": [0, 2, 2, 3, 9]}, "row 4 of x_indptr is out of order"),
        ({"x_indptr": [0, 4]}, "x_data, x_indices, x_indptr and x_shape do not fit together"),
        ({"x_data": [1, np.nan, 2, 3]}, "a feature of node 0 is not finite"),
        ({"idx_val": [1, 7]}, "row 1 of idx_val is 7, .* from 0 to 3"),
    ],
)
def test_what_is_wrong_with_a_file_is_named(tmp_path, changed, message):
    path = file_of(tmp_path, **{name: np.array(value) for name, value in changed.items()})
    with pytest.raises(GraphError, match=f"small.npz: {message}"):
        read_citations(path, 2)


def test_a_damaged_file_is_named(tmp_path):
    path = file_of(tmp_path)
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b"no zip file at all", b""):
        path.write_bytes(content)
        with pytest.raises(data.DataError, match=r"small.npz is damaged \(.*fetch it again"):
            read_citations(path, 2)
    flipped = bytearray(whole)
    flipped[len(whole) // 3] ^= 0xFF
    path.write_bytes(flipped)
    with pytest.raises((data.DataError, GraphError), match=r"small.npz"):
        read_citations(path, 2)
    np.savez(path, edges=ARRAYS["edges"])
    with pytest.raises(data.DataError, match=r"small.npz lacks an array: .*x_data"):
        read_citations(path, 2)
    with pytest.raises(data.DataError, match=r"no such file: .*other.npz"):
        read_citations(tmp_path / "other.npz", 2)


def test_defects_that_graphs_have_are_taken_out():
    # A self-loop, one edge three times, of which once the other way round; node 3 is isolated.
    edges = np.array([[0, 1], [2, 2], [1, 0], [0, 1], [1, 2]])
    graph = checked_graph(FEATURES, edges, ARRAYS["labels"], 2)
    assert graph.edges.tolist() == [[1, 0], [0, 1], [2, 1], [1, 2]]
    directed = checked_graph(FEATURES, edges, ARRAYS["labels"], 2, directed=True)
    assert directed.edges.tolist() == [[1, 0], [0, 1], [1, 2]]
    for none in ([], np.zeros((0, 2), int), [[1, 1]]):
        assert checked_graph(FEATURES, none, ARRAYS["labels"], 2).edges.shape == (0, 2)
    with pytest.raises(GraphError, match=r"graph: features must be \[nodes, features\]"):
        checked_graph(FEATURES[0], edges, ARRAYS["labels"], 2)


def test_random_splits_divide_all_nodes_and_follow_their_seed():
    split = random_split(2708, 3, 0.01, 0.49)
    assert [len(split[name]) for name in ("train", "valid", "test")] == [27, 1326, 1355]
    together = np.sort(np.concatenate(list(split.values())))
    np.testing.assert_array_equal(together, np.arange(2708))
    np.testing.assert_array_equal(split["train"], random_split(2708, 3, 0.01, 0.49)["train"])
    assert set(split["train"]) != set(random_split(2708, 4, 0.01, 0.49)["train"])
    for train, valid in ((0.0, 0.5), (0.5, 0.5), (0.6, 0.5)):
        with pytest.raises(ValueError, match="train and valid must be positive"):
            random_split(100, 0, train, valid)
    with pytest.raises(ValueError, match=r"of 10 nodes, 0.01 and 0.49 leave a split empty"):
        random_split(10, 0, 0.01, 0.49)


def test_components_are_those_of_a_singular_value_decomposition():
    inputs = np.random.default_rng(0).normal(size=(30, 6)).astype(np.float32) * [5, 4, 3, 2, 1, 1]
    left, sizes, right = np.linalg.svd(inputs - inputs.mean(axis=0), full_matrices=False)
    found = principal_components(inputs, 3)
    signs = np.sign(right[np.arange(3), np.abs(right[:3]).argmax(axis=1)])
    np.testing.assert_allclose(found, left[:, :3] * sizes[:3] * signs, atol=1e-4)
    with pytest.raises(ValueError, match="components must lie between 1 and 6, got 7"):
        principal_components(inputs, 7)


def test_generated_documents_cite_and_speak_mostly_of_their_own_topic():
    graph = block_graph(0, 3000, 4, degree=6.0, homophily=0.7, words=80, length=10, topical=0.5)
    assert graph.inputs.shape == (3000, 80)
    assert set(graph.labels) == {0, 1, 2, 3}
    assert abs(len(graph.edges) / 3000 - 6) < 0.1
    same = graph.labels[graph.edges[:, 0]] == graph.labels[graph.edges[:, 1]]
    assert abs(same.mean() - (0.7 + 0.3 / 4)) < 0.03
    own = np.arange(80) // 20 == graph.labels[:, None]
    assert abs((graph.inputs * own).sum() / graph.inputs.sum() - (0.5 + 0.5 / 4)) < 0.03
    for once, again in zip(block_graph(1, 50), block_graph(1, 50), strict=True):
        np.testing.assert_array_equal(once, again)
    with pytest.raises(ValueError, match="homophily"):
        block_graph(0, homophily=1.5)
    with pytest.raises(ValueError, match="5 topics need a word each"):
        block_graph(0, words=4)


def test_a_batch_is_the_whole_graph_with_the_labels_that_count(tmp_path):
    graph, split = read_citations(file_of(tmp_path), 2)
    for wrong, message in (
        ({"edges": np.array([[0, 9]])}, "row 0 of the edges joins 0 and 9"),
        ({"labels": np.array([0, 1, 5, 0])}, "node 2 has the label 5"),
    ):
        with pytest.raises(GraphError, match=message):
            graph_task(graph._replace(**wrong), split)
    task = graph_task(graph, split)
    assert task.sizes == {"input_size": 3, "labels": 2}
    seen = np.zeros(4, int)
    for name, source in task.splits.items():
        for rng in (None, np.random.default_rng(0)):
            (entry,) = source.plan(32, 4, rng)
        batch = source.batch(entry)
        assert isinstance(batch.inputs, jax.Array), "on the device, not a constant of a program"
        assert batch.inputs is task.splits["train"].batch(entry).inputs
        assert np.flatnonzero(batch.mask[0]).tolist() == sorted(split[name])
        seen += np.asarray(batch.mask[0])
    assert np.all(seen == 1)


def test_options_of_the_task(tmp_path):
    make = TASKS["citation"]
    with pytest.raises(GraphError, match="node 2 has the label 3"):  # Pubmed has three topics
        make(network="pubmed", path=str(file_of(tmp_path, labels=np.array([0, 1, 3, 0]))))
    path = str(file_of(tmp_path))
    public = make(network="cora", path=path, split="planetoid", scaled=True)
    np.testing.assert_allclose(public.details["graph"].inputs.sum(axis=1), [1, 0, 1, 1])
    assert public.details["split"]["train"].tolist() == [0, 2]
    assert make(network="cora", path=path, components=2, train=0.3).sizes["input_size"] == 2
    with pytest.raises(ValueError, match="a generated network has no public split"):
        make(split="planetoid")
    with pytest.raises(ValueError, match='split must be "random" or "planetoid"'):
        make(split="public")
    with pytest.raises(ValueError, match="network must be generated, cora or pubmed"):
        make(network="citeseer")


@pytest.mark.parametrize(
    ("network", "nodes", "edges", "features", "counts", "train"),
    [
        ("cora", 2708, 5278, 1433, [351, 217, 418, 818, 426, 298, 180], 140),
        ("pubmed", 19717, 44324, 500, [4103, 7739, 7875], 60),
    ],
)
def test_networks_are_as_published(network, nodes, edges, features, counts, train):
    try:
        data.find(network, f"{network}.npz")
    except data.DataError as error:
        pytest.skip(str(error))
    assert main(["data", "verify", network]) == 0
    task = TASKS["citation"](network=network, split="planetoid")
    graph, split = task.details["graph"], task.details["split"]
    assert graph.inputs.shape == (nodes, features)
    assert len(graph.edges) == 2 * edges
    assert np.bincount(graph.labels).tolist() == counts
    assert np.bincount(graph.labels[split["train"]]).tolist() == [20] * len(counts)
    assert [len(split[name]) for name in ("train", "valid", "test")] == [train, 500, 1000]
