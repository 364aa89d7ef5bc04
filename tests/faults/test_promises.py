"""Every promise of docs/reliability.md names a test, and every test that it names is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.faults.cases import WEIGHTS


def promises(root: Path) -> list[tuple[str, str]]:
    """What is promised, and what is said to keep it."""
    text = (root / "docs" / "reliability.md").read_text()
    table = text.partition("## Promises")[2].partition("\n\n## ")[0]
    rows = [row.strip("| ").split(" | ") for row in table.splitlines() if row.startswith("| ")]
    head, _, *rest = rows
    assert head == ["promise", "kept by"]
    assert len(rest) > 10
    assert all(len(row) == 2 for row in rest), rest
    return [(promise, kept) for promise, kept in rest]


def test_every_promise_names_tests_that_are_there(root: Path) -> None:
    for promise, kept in promises(root):
        words = re.findall(r"`([^`]+)`", kept)
        tests = [word for word in words if word.startswith("tests/")]
        for name in tests:
            file, _, function = name.partition("::")
            tree = ast.parse((root / file).read_text())
            there = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
            assert function.startswith("test_"), f"{name}: a test wanted"
            assert function in there, f"{name}: no such test"
        kinds = [word for word in words if word not in tests]
        assert {*kinds} <= {*WEIGHTS}, f"{kinds}: no such cases"
        assert tests or kinds, f"nothing keeps: {promise}"


def test_every_kind_of_case_keeps_a_promise(root: Path) -> None:
    named = " ".join(kept for _, kept in promises(root))
    assert not [kind for kind in WEIGHTS if f"`{kind}`" not in named]
