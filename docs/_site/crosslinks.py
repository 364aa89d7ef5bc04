"""Names in code lead to the reference: `solvers.adjoint.implicit`, `training.train(...)`.

In the guides a name needs a dot; in the reference, names of the same namespace go without.
`optional` references that nothing answers are left as they are.
"""

from __future__ import annotations

import re

import reference
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

_TOKEN = re.compile(r"<code>([^<]*)</code>|<(/?)(a|autoref|pre|h[1-6])\b[^>]*>")
_NAME = re.compile(r"([A-Za-z_][\w.]*)(?:\(.*\))?")


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Makes references of names; autorefs, which runs later, makes links of references."""
    path = page.file.src_uri
    namespace = path.removeprefix("reference/").removesuffix(".md")
    inside = namespace if path.startswith("reference/") else None
    parts, end, depth = [], 0, 0
    for token in _TOKEN.finditer(html):
        if token[3]:
            depth += -1 if token[2] else 1
            continue
        home = None if depth else _home(token[1], inside)
        if home:
            parts += [html[end : token.start()],
                      f'<autoref identifier="{home}" optional>{token[0]}</autoref>']  # fmt: skip
            end = token.end()
    return "".join([*parts, html[end:]])


def _home(code: str, namespace: str | None) -> str | None:
    match = _NAME.fullmatch(code.strip())
    if match is None:
        return None
    name, homes = match[1], reference.homes()
    tried = [name, f"implicit_rnn.{name}", f"solvers.{name}"] if "." in name else []
    if namespace in reference.NAMESPACES:
        tried.append(f"{namespace}.{name}")
    return next((homes[full] for full in tried if full in homes), None)
