"""Tree traversal: the target is the order of the tree that the source tells."""

from __future__ import annotations

import numpy as np
import pytest

from implicit_rnn.experiments.sorting.task import sorting_task
from implicit_rnn.experiments.trees.task import tree_traversal_task

SMALL = {"train": 200, "valid": 40, "test": 60}


def rows(pairs):
    """Sources and targets without padding."""
    return [
        (list(source[:n]), list(target[:m]))
        for source, n, target, m in zip(*map(np.asarray, pairs), strict=True)
    ]


def tree_of(inorder, other):
    """The tree `(left, label, right)` out of its in-order and its pre-order, with a stack.

    Follows the pre-order down to the left until the in-order says that nothing is to the left any
    more: no search for a root's place, as a recursive reconstruction has.
    """
    root = [None, other[0], None]
    stack, place = [root], 0
    for label in other[1:]:
        node, last = [None, label, None], None
        while stack and stack[-1][1] == inorder[place]:
            last = stack.pop()
            place += 1
        if last is None:
            stack[-1][0] = node
        else:
            last[2] = node
        stack.append(node)
    return root


def mirrored(tree):
    return None if tree is None else [mirrored(tree[2]), tree[1], mirrored(tree[0])]


def tree_from(inorder, other, kind):
    """A post-order backwards is the pre-order of the mirrored tree."""
    if kind == "preorder":
        return tree_of(inorder, other)
    return mirrored(tree_of(inorder[::-1], other[::-1]))


def walked(tree, kind):
    if tree is None:
        return []
    left, right = walked(tree[0], kind), walked(tree[2], kind)
    return {
        "preorder": [tree[1], *left, *right],
        "inorder": [*left, tree[1], *right],
        "postorder": [*left, *right, tree[1]],
    }[kind]


def levels(tree):
    return 0 if tree is None else 1 + max(levels(tree[0]), levels(tree[2]))


@pytest.mark.parametrize(("depth", "least"), [(3, 1), (4, 1), (5, 10), (8, 10), (10, 15)])
def test_the_target_is_the_order_of_the_tree_that_the_source_tells(depth, least):
    task = tree_traversal_task(**SMALL, depth=depth)
    nodes = 2**depth - 1
    assert task.sizes == {"source_vocabulary": nodes + 1, "target_vocabulary": nodes}
    deepest, sizes = 0, set()
    for name, count in SMALL.items():
        found = rows(task.details["pairs"][name])
        assert len(found) == count
        for source, target in found:
            middle = source.index(nodes)
            inorder, preorder = source[:middle], source[middle + 1 :]
            tree = tree_from(inorder, preorder, "preorder")
            assert walked(tree, "inorder") == inorder
            assert walked(tree, "preorder") == preorder
            assert walked(tree, "postorder") == target
            assert len(set(target)) == len(target) >= least
            deepest = max(deepest, levels(tree))
            sizes.add(len(target))
    assert deepest == depth
    assert len(sizes) > 5  # sparsity is random


def test_the_printed_example_of_the_paper_is_a_preorder_of_inorder_and_postorder():
    """Section 4.1: 13,15,4,7,5,X,13,4,15,5,7 -> 7,15,13,4,5."""
    tree = tree_from([13, 15, 4, 7, 5], [13, 4, 15, 5, 7], "postorder")
    assert walked(tree, "inorder") == [13, 15, 4, 7, 5]
    assert walked(tree, "postorder") == [13, 4, 15, 5, 7]
    assert walked(tree, "preorder") == [7, 15, 13, 4, 5]
    task = tree_traversal_task(**SMALL, depth=4, target="preorder")
    for source, target in rows(task.details["pairs"]["test"]):
        middle = source.index(15)
        tree = tree_from(source[:middle], source[middle + 1 :], "postorder")
        assert walked(tree, "inorder") == source[:middle]
        assert walked(tree, "preorder") == target


def test_children_are_there_as_often_as_asked_for():
    for growth in (0.3, 0.8):
        found = tree_traversal_task(train=3000, valid=1, test=1, depth=6, growth=growth, least=1)
        trees = [
            tree_from(source[: source.index(63)], source[source.index(63) + 1 :], "preorder")
            for source, _ in rows(found.details["pairs"]["train"])
        ]
        # Small trees are soon used up, as no two sources are the same: look below large ones.
        children = [
            tree[side][end] is not None
            for tree in trees
            for side in (0, 2)
            if tree[0] and tree[2]
            for end in (0, 2)
        ]
        assert abs(np.mean(children) - growth) < 0.04


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"depth": 0}, "depth must be from 1 to 12, got 0"),
        ({"growth": 0.0}, "growth must be above 0 and at most 1, got 0.0"),
        ({"depth": 3, "least": 9}, "trees of depth 3 have 1 to 7 nodes; 9 to 7 are asked for"),
        ({"depth": 5, "most": 9}, "10 to 9 are asked for"),
    ],
)
def test_trees_that_cannot_be_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        tree_traversal_task(**SMALL, **options)
    with pytest.raises(ValueError, match="at least 1, got 0 and 5"):
        sorting_task(length=0, values=5)
