"""Commands that pages name can be given: options are known, configurations load, runs fit."""

from __future__ import annotations

import fnmatch
import re
import shlex
from pathlib import Path

import pytest

from implicit_rnn.cli import parser
from implicit_rnn.experiments.config import load
from implicit_rnn.experiments.configurations import located

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "results" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
# What stands for something else: RUN, [--set ...], a | b, $SHARED.
_PLACE = re.compile(r"\b[A-Z]{2,}\b|[\[|$]|\.\.\.")
_MADE_BY_THE_GUIDE = ("parity",)


def code(text: str) -> list[str]:
    """Lines of blocks of shell, comments left out, and code within sentences."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    rest = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    spans = [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", rest)]
    return [re.sub(r"\s+#.*", "", line).strip() for line in lines] + spans


def named(page: Path, program: str) -> list[str]:
    return [line for line in code(page.read_text()) if line.startswith(program)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_of_a_page_can_be_given(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    for line in named(page, "implicit-rnn "):
        words = shlex.split(line)[1:]
        if len(words) == 1 or _PLACE.search(line):
            assert words[0] in parser().format_help(), f"{page.name}: {line}"
            continue
        options = parser().parse_args(words)
        config = getattr(options, "config", None)
        if config is None or config in _MADE_BY_THE_GUIDE:
            continue
        runs = load(located(config), options.profile, options.settings).runs
        for pattern in options.only:
            assert fnmatch.filter(runs, pattern), f"{page.name}: {line}: no run fits {pattern}"


def test_modules_and_targets_that_pages_name_are_there() -> None:
    assert len(named(ROOT / "results" / "README.md", "implicit-rnn train ")) > 20
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for page in PAGES:
        for line in named(page, "python -m "):
            module = line.split()[2]
            if module.startswith(("benchmarks", "tests", "implicit_rnn", "solvers")):
                path = ROOT / module.replace(".", "/")
                there = path.with_suffix(".py").exists() or (path / "__main__.py").exists()
                assert there or path.is_dir(), f"{page.name}: {line}"
        for line in named(page, "make "):
            words = [word for word in line.split()[1:] if "=" not in word and word[0] not in "<-"]
            assert {*words[:1]} <= {*targets}, f"{page.name}: {line}"
