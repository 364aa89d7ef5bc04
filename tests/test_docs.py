"""The code in the guides."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import solvers

PAGES = sorted((Path(__file__).parents[1] / "docs").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_code_in_a_guide_runs(page: Path, run_blocks: Callable[[Path], dict]) -> None:
    run_blocks(page)


def test_the_guide_to_choosing_covers_everything_there_is(root: Path) -> None:
    text = "".join((root / "docs" / name).read_text() for name in ("choosing.md", "failures.md"))
    words = set(re.findall(r"`(\w+)`", text))
    choices = {*solvers.METHODS, *solvers.linear.SOLVERS, *solvers.adjoint.ADJOINTS}
    assert choices | {status.name for status in solvers.Status} <= words


def test_links_between_pages_lead_somewhere(root: Path) -> None:
    for page in (root / "README.md", *PAGES):
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} -> {target}"
