"""Sorting, tree traversal and logical inference: what is asked for is what is right."""

from __future__ import annotations

import gzip
import itertools
import re
from pathlib import Path

import numpy as np
import pytest

from implicit_rnn.cli import main
from implicit_rnn.experiments import data
from implicit_rnn.experiments.data.lines import CorpusError
from implicit_rnn.experiments.data.pairs import drawn, padded, pairs_task, target_room
from implicit_rnn.experiments.logic.task import RELATIONS, WORDS, logical_inference_task, read
from implicit_rnn.experiments.registry import TASKS
from implicit_rnn.experiments.sorting.task import sorting_task
from implicit_rnn.experiments.trees.task import tree_traversal_task

SMALL = {"train": 200, "valid": 40, "test": 60}


def rows(pairs):
    """Sources and targets without padding."""
    return [
        (list(source[:n]), list(target[:m]))
        for source, n, target, m in zip(*map(np.asarray, pairs), strict=True)
    ]


def insertion_sort(values):
    found = []
    for value in values:
        place = next((k for k, other in enumerate(found) if other > value), len(found))
        found.insert(place, value)
    return found


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


@pytest.mark.parametrize("length", [5, 10])
def test_sequences_are_sorted(length):
    task = sorting_task(**SMALL, length=length, values=7)
    assert task.sizes == {"source_vocabulary": 7, "target_vocabulary": 7}
    for name, count in SMALL.items():
        found = rows(task.details["pairs"][name])
        assert len(found) == count
        for source, target in found:
            assert len(source) == length
            assert target == insertion_sort(source)
        assert {value for source, _ in found for value in source} == set(range(7))


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


@pytest.mark.parametrize("name", ["sorting", "tree_traversal"])
def test_seeds_decide_and_splits_share_nothing(name):
    options = SMALL | ({"length": 3, "values": 9} if name == "sorting" else {"depth": 3})
    one, same, other = (TASKS[name](seed=seed, **options) for seed in (3, 3, 4))
    sets = {}
    for split in SMALL:
        found, again, different = (t.details["pairs"][split] for t in (one, same, other))
        for a, b in zip(found, again, strict=True):
            np.testing.assert_array_equal(a, b)
        assert rows(found) != rows(different)
        sets[split] = {tuple(source) for source, _ in rows(found)}
        assert len(sets[split]) == SMALL[split]
    for a, b in itertools.combinations(sets.values(), 2):
        assert not a & b


def test_more_examples_than_there_are_is_an_error():
    with pytest.raises(ValueError, match="9 different examples are wanted, and after 8"):
        sorting_task(train=6, valid=2, test=1, length=3, values=2)
    assert len(rows(sorting_task(train=6, valid=1, test=1, length=3, values=2).details["pairs"][
        "train"])) == 6  # fmt: skip


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


def test_batches_of_pairs_hold_every_pair_once_and_mark_empty_places():
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 9, size=(50, 2))
    pairs = padded([(rng.integers(1, 5, a), rng.integers(1, 5, b)) for a, b in lengths])
    short = padded([(np.ones(2, int), np.ones(12, int))])
    splits = {"train": pairs, "valid": short, "test": pairs}
    np.testing.assert_array_equal(target_room(splits.values())[:3], [0, 8, 12])
    room = target_room([pairs])
    assert np.all(np.diff(room) >= 0)
    assert room[-1] == lengths[:, 1].max()
    source = pairs_task(splits, "vwxyz", 5).splits["test"]
    seen, times = [], set()
    for entry in source.plan(8, 3, None):
        batch = source.batch(entry)
        times.add((batch.source.shape, batch.target.shape))
        filled = source.numbers(entry) >= 0
        np.testing.assert_array_equal(batch.target_length >= 0, filled)
        np.testing.assert_array_equal(batch.length[~filled], 0)
        assert np.all(batch.target_length <= batch.target.shape[1])
        found = [row for row, keep in zip(rows(batch), filled, strict=True) if keep]
        assert found == [rows(pairs)[number] for number in entry[0][filled]]
        seen += list(entry[0][filled])
    assert sorted(seen) == list(range(50))
    assert len(times) <= 3  # programs to compile


def test_a_few_long_targets_do_not_set_the_cost_of_all():
    """They go with longer sources, where there is room for them."""
    usual = [(np.ones(n, int), np.ones(n, int)) for n in (2, 3, 8) for _ in range(40)]
    odd = (np.ones(2, int), np.ones(30, int))
    splits = {"train": padded([*usual, odd]), "valid": padded(usual), "test": padded(usual)}
    tasks = pairs_task(splits, "v", 1)
    source = tasks.splits["train"]
    shapes = {entry[1]: source.batch(entry) for entry in source.plan(20, 3, None)}
    assert {time: batch.target.shape[1] for time, batch in shapes.items()} == {2: 2, 3: 3, 8: 30}
    assert 30 in shapes[8].target_length
    # What is not trained on has a room of its own.
    test = tasks.splits["test"]
    assert {test.batch(entry).target.shape[1] for entry in test.plan(20, 3, None)} == {2, 3, 8}


def test_what_is_common_is_in_every_split():
    """Sources that are drawn often are drawn first: the order of drawing must not decide."""

    def draw(rng, count):
        values = np.minimum(rng.geometric(0.02, count), 400).astype(np.int32)
        return [(value[None], value[None]) for value in values]

    splits = drawn(draw, {"train": 120, "valid": 40, "test": 40}, 0)
    means = [np.mean(part.source) for part in splits.values()]
    assert max(means) < 1.5 * min(means)


# Formulas, by truth tables.

VARIABLES = "abcdef"


def formula(rng, operators):
    """Tokens of a random formula with so many operators."""
    if not operators:
        return [str(rng.choice(list(VARIABLES[:3])))]
    kind = rng.choice(["and", "or", "not"])
    if kind == "not":
        return ["(", "not", *formula(rng, operators - 1), ")"]
    left = int(rng.integers(operators))
    rest = ["(", kind, *formula(rng, operators - 1 - left), ")"]
    return ["(", *formula(rng, left), *rest, ")"]


def truth(tokens):
    """The truth of a formula under all 64 valuations, by rewriting it as Python."""
    text = " ".join(tokens)
    while "(" in text:
        text = re.sub(r"\( (and|or) ([^()]+) \)", r"\1 \2", text)
        text = re.sub(r"\( ([^()]+) \)", r"[\1]", text)
    code = compile(text.replace("[", "(").replace("]", ")"), "formula", "eval")
    rows = itertools.product([False, True], repeat=len(VARIABLES))
    return np.array([eval(code, dict(zip(VARIABLES, row, strict=True))) for row in rows])


def relation(first, second):
    a, b = truth(first), truth(second)
    disjoint, exhaustive = not np.any(a & b), np.all(a | b)
    if np.all(a == b):
        return "="
    if np.all(a <= b):
        return "<"
    if np.all(a >= b):
        return ">"
    if disjoint:
        return "^" if exhaustive else "|"
    return "v" if exhaustive else "#"


def write(folder: Path, count=12):
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    for split in ("train", "test"):
        for k in range(13):
            lines = []
            for _ in range(count):
                sides = [formula(rng, k + (k == 12)), formula(rng, int(rng.integers(k + 1)))]
                rng.shuffle(sides)
                lines.append("\t".join([relation(*sides), *map(" ".join, sides)]))
            text = "\n".join(lines) + "\n"
            (folder / f"{split}{k}.tsv.gz").write_bytes(gzip.compress(text.encode()))
    return folder


def words(sequence):
    return [WORDS[number] for number in sequence]


def assert_labels_are_those_of_truth_tables(part, count):
    for row in range(count):
        sides = [
            words(part.first[row, : part.first_length[row]]),
            words(part.second[row, : part.second_length[row]]),
        ]
        assert RELATIONS[part.labels[row]] == relation(*sides)


def test_formulas_are_read_and_parted_by_their_operators(tmp_path: Path):
    task = logical_inference_task(path=str(write(tmp_path / "logic")))
    assert task.sizes == {"vocabulary": 11, "labels": 7}
    assert list(task.splits) == ["train", "valid", "test", *map(str, range(7, 13))]
    counts = {name: len(part.labels) for name, part in task.details["examples"].items()}
    assert counts == {"train": 76, "valid": 8, "test": 72} | {str(k): 12 for k in range(7, 13)}
    for name, part in task.details["examples"].items():
        assert_labels_are_those_of_truth_tables(part, len(part.labels))
        if name.isdigit():
            most = [
                max(sum(w in ("and", "or", "not") for w in words(side)) for side in pair)
                for pair in zip(part.first, part.second, strict=True)
            ]
            assert {min(count, 12) for count in most} == {int(name)}


def test_batches_of_formulas_mark_empty_places(tmp_path: Path):
    source = logical_inference_task(path=str(write(tmp_path)), train=20).splits["train"]
    seen = []
    for entry in source.plan(8, 2, None):
        batch = source.batch(entry)
        assert batch.first.shape == batch.second.shape == (8, entry[1])
        np.testing.assert_array_equal(batch.labels >= 0, entry[0] >= 0)
        np.testing.assert_array_equal(batch.length[entry[0] < 0], 0)
        seen += [number for number in entry[0] if number >= 0]
    assert sorted(seen) == list(range(20))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("#\ta", "line 2: relation and two formulas wanted, got 2 parts"),
        ("!\ta\tb", "line 2: '!' is none of = <"),
        ("#\ta\t( not g )", "line 2: 'g' is no word of a formula"),
        ("#\ta\t", "line 2: '' is no word of a formula"),
        ("#\ta\t( not ( b )", "line 2: brackets do not match"),
        ("#\ta\tb", "line 2: 1 operators wanted, got 0"),
    ],
)
def test_a_wrong_line_is_named(line, message, tmp_path: Path):
    path = tmp_path / "train1.tsv"
    path.write_text(f"^\ta\t( not a )\n{line}\n")
    with pytest.raises(CorpusError, match=re.escape(str(path))) as error:
        read(path, 1)
    assert message in str(error.value)


def test_a_wrong_folder_is_named(tmp_path: Path):
    with pytest.raises(CorpusError, match=r"holds neither train0.tsv nor train0.tsv.gz"):
        logical_inference_task(path=str(tmp_path))
    (tmp_path / "train0.tsv").write_text("\n")
    with pytest.raises(CorpusError, match=r"train0.tsv: there are no pairs"):
        logical_inference_task(path=str(tmp_path))
    (tmp_path / "train0.tsv.gz").write_bytes(gzip.compress(b"x" * 99)[:-9])
    (tmp_path / "train0.tsv").unlink()
    with pytest.raises(CorpusError, match=r"train0.tsv.gz: not a whole gzip file"):
        logical_inference_task(path=str(tmp_path))
    with pytest.raises(ValueError, match="operators must be from 0 to 11, got 12"):
        logical_inference_task(path=str(tmp_path), operators=12)


def test_the_formulas_are_as_published():
    try:
        data.find("proplog", "train0.tsv")
    except data.DataError as error:
        pytest.skip(str(error))
    assert main(["data", "verify", "proplog"]) == 0
    task = logical_inference_task()
    counts = {name: len(part.labels) for name, part in task.details["examples"].items()}
    assert counts["train"] + counts["valid"] == 135_529
    assert [counts[str(k)] for k in range(7, 13)] == [4707, 3347, 2230, 1444, 864, 853]
    for name in ("valid", "12"):
        assert_labels_are_those_of_truth_tables(task.details["examples"][name], 40)
    sets = [
        {
            (a[:n].tobytes(), b[:m].tobytes())
            for a, n, b, m in zip(*task.details["examples"][name][:4], strict=True)
        }
        for name in ("train", "valid", "test")
    ]
    for a, b in itertools.combinations(sets, 2):
        assert not a & b
