"""Tree traversal: one order of a binary tree's nodes out of two others (X-RNN, section 4.1)."""

from __future__ import annotations

from typing import Literal

import numpy as np

from implicit_rnn.experiments.data.pairs import Pair, drawn, pairs_task
from implicit_rnn.experiments.task import Task, one_of

# Nodes that the trees of a depth have at least, as in the paper.
LEAST = {5: 10, 8: 10, 10: 15}


def tree_traversal_task(
    *,
    seed: int = 0,
    train: int = 20_000,
    valid: int = 1000,
    test: int = 2000,
    depth: int = 5,
    growth: float = 0.5,
    least: int | None = None,
    most: int | None = None,
    target: Literal["postorder", "preorder"] = "postorder",
) -> Task:
    """The post-order of a binary tree out of its in-order and its pre-order.

    The two orders, which together tell the tree, are read one after the other with a delimiter
    between them. Nodes have different labels, drawn from the `2^depth - 1` places that a full tree
    has; the delimiter is the token after them.

    Args:
      seed: of all three sets, of which no two share a tree.
      train, valid, test: how many trees.
      depth: levels that a tree has at most; the paper has 3, 4, 5, 8 and 10.
      growth: chance of each child of a node to be there. The paper does not say which.
      least: nodes that a tree has at least; by default the paper's 10 for depths 5 and 8, 15 for
        depth 10, and 1 for others.
      most: nodes that a tree has at most; by default no tree is too large.
      target: what is written; the pre-order comes out of in-order and post-order, which is what
        the paper's printed example shows.
    """
    if not 1 <= depth <= 12:
        raise ValueError(f"depth must be from 1 to 12, got {depth}")
    if not 0 < growth <= 1:
        raise ValueError(f"growth must be above 0 and at most 1, got {growth}")
    nodes = 2**depth - 1
    fewest = LEAST.get(depth, 1) if least is None else least
    largest = nodes if most is None else most
    if not 1 <= fewest <= min(largest, nodes):
        raise ValueError(
            f"trees of depth {depth} have 1 to {nodes} nodes; {fewest} to {largest} are asked for"
        )
    orders = traversals(depth)
    one_of("target", target, ("postorder", "preorder"))
    given = {"postorder": "preorder", "preorder": "postorder"}[target]

    def draw(rng: np.random.Generator, count: int) -> list[Pair]:
        present = rng.random((count, nodes)) < growth
        present[:, 0] = True
        for level in range(1, depth):
            first, end = 2**level - 1, 2 ** (level + 1) - 1
            present[:, first:end] &= np.repeat(present[:, (first - 1) // 2 : first], 2, axis=1)
        labels = np.tile(np.arange(nodes, dtype=np.int32), (count, 1))
        rng.permuted(labels, axis=1, out=labels)
        sizes = present.sum(axis=1)
        found = []
        for row in np.flatnonzero((sizes >= fewest) & (sizes <= largest)):
            # The order of a sparse tree is that of the full one without what is not there.
            walk = {name: labels[row, order][present[row, order]] for name, order in orders.items()}
            source = np.concatenate([walk["inorder"], [nodes], walk[given]]).astype(np.int32)
            found.append((source, walk[target]))
        return found

    counts = {"train": train, "valid": valid, "test": test}
    words = [*(str(label) for label in range(1, nodes + 1)), "|"]
    return pairs_task(drawn(draw, counts, seed), words, nodes)


def traversals(depth: int) -> dict[str, np.ndarray]:
    """The orders of a full tree whose nodes are numbered level by level, the root 0."""

    def walk(node: int, place: int) -> list[int]:
        if node >= 2**depth - 1:
            return []
        parts = [walk(2 * node + 1, place), walk(2 * node + 2, place)]
        parts.insert(place, [node])
        return [number for part in parts for number in part]

    places = {"preorder": 0, "inorder": 1, "postorder": 2}
    return {name: np.array(walk(0, place)) for name, place in places.items()}
