"""Pages of the site that are written elsewhere or made from the code.

Notebooks, results and changes stay where they are; here they become pages, with their links led to
where the pages are. A link to any other file of the repository leads to a page that shows the file.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import notebook
import reference
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
# Files outside docs/ that are pages.
ELSEWHERE = {
    "results/README.md": "results.md",
    "CHANGELOG.md": "changes.md",
    "CONTRIBUTING.md": "contributing.md",
    "README.md": "index.md",
}
_LINK = re.compile(r"(\]\()([^)#\s:]+)((?:#[^)\s]*)?\))")
_LANGUAGES = {".py": "python", ".toml": "toml", ".json": "json", ".txt": "text"}
_LONGEST = 100_000  # characters of a file that is shown


@event_priority(100)
def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Leaves out of the navigation what there is not; puts the pages of the reference into it."""
    made = {f"tutorials/{path.stem}.md" for path in (ROOT / "notebooks").glob("*.ipynb")}
    made |= {target for source, target in ELSEWHERE.items() if (ROOT / source).exists()}
    made |= {"tutorials/index.md", "reference/index.md"}

    def present(entry: object) -> bool:
        if isinstance(entry, dict):
            (value,) = entry.values()
            if isinstance(value, list):
                value[:] = [inner for inner in value if present(inner)]
                return bool(value)
            return present(value)
        return str(entry) in made or (ROOT / "docs" / str(entry)).exists()

    assert config.nav is not None
    config.nav[:] = [entry for entry in config.nav if present(entry)]
    (pages,) = (entry["Reference"] for entry in config.nav if "Reference" in entry)
    pages += reference.navigation()
    return config


@event_priority(100)  # before the plugins look at the files
def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that are made."""
    for source, target in ELSEWHERE.items():
        if target != "index.md" and (ROOT / source).exists():
            files.append(File.generated(config, target, content=(ROOT / source).read_text()))
    tutorials = sorted((ROOT / "notebooks").glob("*.ipynb"))
    for path in tutorials:
        text, pictures = notebook.converted(path)
        files.append(File.generated(config, f"tutorials/{path.stem}.md", content=text))
        for name, data in pictures.items():
            files.append(File.generated(config, f"tutorials/{name}", content=data))
    contents = notebook.contents(tutorials)
    files.append(File.generated(config, "tutorials/index.md", content=contents))
    problems, pages = reference.pages()
    if problems:
        raise PluginError("the reference has gaps:\n  " + "\n  ".join(problems))
    for target, text in pages.items():
        files.append(File.generated(config, target, content=text))
    sources: dict[str, File] = {}
    for file in files:
        if file.src_uri.endswith(".md"):
            for path in _linked_sources(file):
                sources.setdefault(
                    path, File.generated(config, _shown_at(path), content=_show(path))
                )
    for file in sources.values():
        files.append(file)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Leads the links of a page that was written elsewhere to where things are on the site."""
    origin, here = _origin(page.file.src_uri), os.path.dirname(page.file.src_uri)

    def led(match: re.Match[str]) -> str:
        path = _in_repository(origin, match[2])
        target = _target(path) if path else None
        if target is None:
            return match[0]
        return f"{match[1]}{os.path.relpath(target, here or '.')}{match[3]}"

    return _LINK.sub(led, markdown)


def _origin(page: str) -> str:
    """The file of the repository that a page shows."""
    if page.startswith("tutorials/"):
        return "notebooks/" + page.removeprefix("tutorials/")
    for source, target in ELSEWHERE.items():
        if page == target and source != "README.md":
            return source
    return "docs/" + page


def _in_repository(origin: str, link: str) -> str | None:
    """What a link of a file leads to, by its path from the top; None if it leads nowhere."""
    path = os.path.normpath(os.path.join(os.path.dirname(origin), link))
    return path if not path.startswith("..") and (ROOT / path).exists() else None


def _target(path: str) -> str | None:
    """Where on the site a file of the repository is."""
    if path in ELSEWHERE:
        return ELSEWHERE[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path.startswith("notebooks/") and path.endswith(".ipynb"):
        return f"tutorials/{Path(path).stem}.md"
    return _shown_at(path) if (ROOT / path).is_file() else None


def _shown_at(path: str) -> str:
    return f"source/{path}.md"


def _linked_sources(file: File) -> list[str]:
    origin = _origin(file.src_uri)
    paths = [_in_repository(origin, match[2]) for match in _LINK.finditer(file.content_string)]
    return [path for path in paths if path and _target(path) == _shown_at(path)]


def _show(path: str) -> str:
    text = (ROOT / path).read_text()
    if len(text) > _LONGEST:
        text = text[:_LONGEST] + "\n... (shortened)\n"
    language = _LANGUAGES.get(Path(path).suffix, "text")
    return f"---\nsearch:\n  exclude: true\n---\n\n# `{path}`\n\n``````{language}\n{text}\n``````\n"
