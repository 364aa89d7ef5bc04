"""The code in the guides."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import solvers

PAGES = sorted((Path(__file__).parents[1] / "docs").glob("*.md"))


LONG = ("migration.md", "scaling.md")  # peers are imported and compiled; processes are started


@pytest.mark.parametrize(
    "page",
    [pytest.param(p, marks=pytest.mark.slow if p.name in LONG else []) for p in PAGES],
    ids=lambda page: page.name,
)
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
            if not target.startswith("reference/"):  # made when the site is built
                assert (page.parent / target).exists(), f"{page.name} -> {target}"


def test_the_index_of_failures_quotes_what_the_library_says(root: Path) -> None:
    sources = [
        path.read_text()
        for part in ("solvers", "implicit_rnn")
        for path in (root / part).rglob("*.py")
    ]
    # Messages are written over several lines, and with braces where something is put in.
    said = re.sub(r"""["']\s*\n\s*f?["']""", "", "\n".join(sources))
    said = re.sub(r"\{[^{}]*\}", "...", said)
    quoted = re.findall(r"^#### `(.*)`$", (root / "docs/failures.md").read_text(), re.MULTILINE)
    assert len(quoted) > 20
    for message in quoted:
        for piece in re.split(r"\.\.\.", message):
            assert piece.strip() in said, message
