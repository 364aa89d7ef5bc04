"""The site and a report in a real browser: all is there, from here alone, and fits a phone."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest

from implicit_rnn.cli import main
from implicit_rnn.training.tables import dump
from tests.browser import DESK, PHONE, Visit, opened, served
from tests.implicit_rnn.experiments.problems import CONTENT, TRAINING


@pytest.fixture(scope="module")
def site(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` does: a dead link or an undocumented name is an error."""
    pytest.importorskip("mkdocs", reason="needs `.[docs]`")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    own = {"JAX_PLATFORMS": "cpu", "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=root, env=os.environ | own, capture_output=True, text=True)
    assert not done.returncode, done.stdout + done.stderr
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
def test_pages_are_whole_and_fit_the_window(site: Path, size: dict[str, int]) -> None:
    pages = {
        "index.html": "Start here",
        "tutorials/quickstart.html": "Quickstart",
        "migration.html": "From torchdeq, jaxopt or flax",
        "failures.html": "When it fails",
        "results.html": "What has been run",
        "reference/solvers.html": "solvers",
    }
    with served(site) as address, opened() as browser:
        visit = Visit(browser, size)
        for path, title in pages.items():
            page = visit.open(address + path)
            assert page.locator("h1").first.inner_text().startswith(title)
            assert visit.overflow() == 0, path
        visit.open(address + "tutorials/quickstart.html")
        assert visit.drawn("article img")
        assert not visit.complaints


@pytest.mark.slow
def test_a_function_is_three_clicks_away_and_the_search_finds_it(site: Path) -> None:
    with served(site) as address, opened() as browser:
        visit = Visit(browser, DESK)
        page = visit.open(address + "index.html")
        page.locator(".md-tabs").get_by_text("Reference").click()
        page.locator("article").get_by_role("link", name="fixed_point", exact=True).click()
        page.wait_for_function("decodeURIComponent(location.hash).endsWith('fixed_point')")
        assert "solvers.fixed_point" in page.locator("h2:target, :target h2").first.inner_text()
        visit.open(address + "index.html")
        page.get_by_placeholder("Search").fill("cg_rbp")
        found = page.locator(".md-search-result__item a").first
        found.wait_for()
        assert "adjoint" in (found.get_attribute("href") or "")
        assert not visit.complaints


@pytest.mark.slow
def test_a_report_opens_from_disk_and_its_pictures_can_be_paged_through(tmp_path: Path) -> None:
    content = copy.deepcopy(CONTENT) | {"training": TRAINING, "title": "Two <runs> & a report"}
    content["variants"] = {"igru": {}, "xrnn": {"model": {"encoder": "xrnn"}}}
    config, output = tmp_path / "small.toml", tmp_path / "out"
    config.write_text(dump(content))
    assert main(["train", str(config), "--output", str(output), "--no-figures"]) == 0
    assert main(["report", str(output)]) == 0
    with opened() as browser:
        for size in (DESK, PHONE):
            visit = Visit(browser, size)
            page = visit.open((output / "report.html").as_uri())
            assert page.locator("h1").inner_text() == "Two <runs> & a report"
            assert page.locator("table tr").count() == 3
            assert visit.drawn("img")
            assert page.locator(".pages").count() == 2  # a switch, and a recursion
            for pages in page.locator(".pages").all():
                first = pages.locator("output").inner_text()
                pages.locator("input").fill("2")
                assert pages.locator("output").inner_text() != first
                assert pages.locator("img:visible").count() == 1
            assert visit.overflow() == 0
            assert not visit.complaints


@pytest.mark.slow
def test_a_public_name_without_a_docstring_is_a_gap(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    griffe = pytest.importorskip("griffe", reason="needs `.[docs]`")
    monkeypatch.syspath_prepend(root / "docs" / "_site")
    import reference

    (tmp_path / "bare.py").write_text(
        'class Told:\n    """Is."""\n    def does(self): pass\n\ndef untold(): pass\n'
    )
    module = griffe.load("bare", search_paths=[tmp_path])
    assert "bare.untold has no docstring" in reference._gaps("bare.untold", module["untold"])[0]
    assert "Told.does has no docstring" in reference._gaps("bare.Told", module["Told"])[0]
    assert not reference.pages()[0]
