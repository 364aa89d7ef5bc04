"""Notebooks as pages: text, code, and what the code printed and drew when it was last executed."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from pathlib import Path

import latex2mathml.converter
import nbformat

_MATHS = re.compile(r"\$\$(.+?)\$\$|(?<![\w$\\])\$([^$\n]+?)\$(?![\w$])", re.DOTALL)

_SIZES = re.compile(r"\\[Bb]ig+[lr]?")  # of parentheses: browsers stretch them by themselves


def converted(path: Path) -> tuple[str, dict[str, bytes]]:
    """A notebook as Markdown, and its pictures by file name."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "markdown":
            parts.append(_with_maths(cell.source))
            continue
        parts.append(f"```python\n{cell.source}\n```")
        for output in cell.outputs:
            data = output.get("data", {})
            if "image/png" in data:
                name = f"{path.stem}-{len(pictures) + 1}.png"
                pictures[name] = base64.b64decode(data["image/png"])
                parts.append(f"[![what the code above draws]({name})]({name})")  # opens in full
            elif output.output_type == "stream" or "text/plain" in data:
                text = output.get("text") or data["text/plain"]
                parts.append(f"```text\n{text.rstrip()}\n```")
    parts.insert(1, f"*This page is the notebook `notebooks/{path.name}`, as it was executed.*")
    return "\n\n".join(parts) + "\n", pictures


def contents(paths: Sequence[Path]) -> str:
    """The page that lists them."""
    lines = [
        "# Tutorials",
        "",
        "Notebooks, executed. Each opens in Colab: put the address of your",
        "clone into its first cell.",
        "",
    ]
    for path in paths:
        first = next(
            c for c in nbformat.read(path, as_version=4).cells if c.cell_type == "markdown"
        )
        title, _, text = first.source.partition("\n")
        sentence = re.split(r"(?<=[.!?:])\s", text.strip(), maxsplit=1)[0].replace("\n", " ")
        lines.append(f"* [{title.lstrip('# ')}]({path.name}): {_with_maths(sentence)}")
    return "\n".join(lines) + "\n"


def _with_maths(text: str) -> str:
    """Formulas as MathML, which browsers draw by themselves."""

    def drawn(match: re.Match[str]) -> str:
        display = "block" if match[1] else "inline"
        formula = _SIZES.sub("", match[1] or match[2]).strip()
        return latex2mathml.converter.convert(formula, display=display)

    return _MATHS.sub(drawn, text)
