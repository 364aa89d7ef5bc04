"""A run or an experiment as one HTML file that needs no other: `implicit-rnn report RUN`.

The table beside the paper's numbers, learning curves, what solves took while training, figures of
the model, pictures of test sequences to page through, configuration and versions.
"""

from __future__ import annotations

import base64
import html
import json
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from implicit_rnn.experiments import figures, pictures, report, runs
from implicit_rnn.training import CheckpointError, FolderError
from implicit_rnn.training.files import read_sealed, write_text

FILE = "report.html"
_EXAMPLES = 8  # of a slider
_MOST_RUNS = 6  # whose sequences are drawn; more would make the file heavy
_PARTS = {
    "Learning": ("learning_",),
    "Solves over training": ("solver_",),
    "Figures": ("",),  # what is left
}
_BY_EXAMPLE = ("switch.png", "recursion.png", "recursion_backwards.png")

_HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>
  body {{ font-family: system-ui, sans-serif; color: #333; background: #fff; line-height: 1.5;
         max-width: 64rem; margin: 2rem auto; padding: 0 1rem; }}
  h1 {{ font-size: 1.5rem; }}  h2 {{ font-size: 1.15rem; margin-top: 2.5rem; }}
  .note {{ color: #666; }}
  .wide {{ overflow-x: auto; }}
  table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }}
  th, td {{ text-align: right; padding: .3rem .7rem; border-bottom: 1px solid #ddd;
            white-space: nowrap; }}
  th:first-child, td:first-child {{ text-align: left; }}
  img {{ max-width: 100%; height: auto; display: block; margin: .5rem 0; }}
  figure {{ margin: 1.5rem 0; }}  figcaption {{ font-weight: 600; }}
  .pages input {{ width: min(24rem, 100%); }}
  pre {{ overflow-x: auto; background: #f6f6f6; padding: .8rem; font-size: .8rem; }}
  summary {{ cursor: pointer; }}
  [hidden] {{ display: none; }}
</style>
</head>
<body>
<h1>{title}</h1>
"""
_SCRIPT = """<script>
for (const pages of document.querySelectorAll(".pages")) {
  const input = pages.querySelector("input"), told = pages.querySelector("output");
  const images = pages.querySelectorAll("img");
  const show = () => {
    images.forEach((image, number) => { image.hidden = number != input.value; });
    told.textContent = images[input.value].alt;
  };
  input.addEventListener("input", show);
  show();
}
</script>
</body>
</html>
"""


def write(
    output: Path,
    drawn: Sequence[Path] | None = None,
    gallery: figures.Gallery | None = None,
) -> Path:
    """Writes `report.html` into the folder of a run or an experiment; returns it.

    Args:
      output: the folder.
      drawn: its figures, if they are there already; by default they are drawn.
      gallery: what they were drawn from.
    """
    folders = runs.run_folders(output)
    gallery = gallery or figures.Gallery()
    drawn = figures.draw(output, gallery) if drawn is None else drawn
    title, rows = _table(output, folders)
    parts = [
        _HEAD.format(title=html.escape(title)),
        _rows(rows),
        *_figures(drawn),
        *_sliders(folders, gallery),
        *_settings(folders),
        _SCRIPT,
    ]
    return write_text(output / FILE, "\n".join(parts))


def _table(output: Path, folders: Sequence[Path]) -> tuple[str, list[dict[str, Any]]]:
    if (output / runs.MARK).exists():
        return runs.experiment(output)["title"], report.results(output)
    rows = []
    for folder in folders:
        if (folder / "result.json").exists():
            found = runs.outcome(folder)
            numbers = {f"test {key}": value for key, value in found["test"].items()}
            kept = {key: found[key] for key in ("parameters", "updates", "seconds")}
            rows.append({"run": runs.label_of(folder)} | numbers | kept)
    return runs.label_of(output), rows


def _rows(rows: Sequence[dict[str, Any]]) -> str:
    if not rows:
        return '<p class="note">No run has finished yet; what follows is how far they are.</p>'
    columns = list(dict.fromkeys(key for row in rows for key in row))
    lines = ["<tr>" + "".join(f"<th>{html.escape(key)}</th>" for key in columns) + "</tr>"]
    for row in rows:
        cells = (html.escape(report.cell(key, row.get(key))) for key in columns)
        lines.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    return '<h2>Table</h2>\n<div class="wide"><table>\n' + "\n".join(lines) + "\n</table></div>"


def _figures(drawn: Sequence[Path]) -> Iterable[str]:
    left = [p for p in drawn if p.suffix == ".png" and not p.name.endswith(_BY_EXAMPLE)]
    for title, beginnings in _PARTS.items():
        own = [path for path in left if path.name.startswith(beginnings)]
        left = [path for path in left if path not in own]
        if own:
            yield f"<h2>{title}</h2>"
            yield from (f"<figure>{_image(path, _words(path))}</figure>" for path in own)


def _sliders(folders: Sequence[Path], gallery: figures.Gallery) -> Iterable[str]:
    """Pictures of several test sequences, for the first run of every group of repetitions."""
    firsts = [members[0] for members in runs.repetitions(folders).values()]
    made = [part for folder in firsts[:_MOST_RUNS] for part in _slider(folder, gallery)]
    if made:
        yield "<h2>Test sequences, one by one</h2>"
        yield from made
    if made and len(firsts) > _MOST_RUNS:
        yield f'<p class="note">Of {len(firsts)} runs the first {_MOST_RUNS}.</p>'


def _slider(folder: Path, gallery: figures.Gallery) -> list[str]:
    try:
        shown = gallery(folder)
    except CheckpointError:
        return []
    parts = []
    numbers = pictures.telling(shown.trainer, _EXAMPLES) if shown.kinds else []
    for kind, draw in shown.kinds.items():
        with tempfile.TemporaryDirectory() as place:
            images = [
                _image(draw(number, Path(place) / f"{number}.png"), f"test sequence {number}")
                for number in numbers
            ]
        name = html.escape(f"{shown.label}: {kind.replace('_', ' ')}")
        parts.append(
            f'<figure class="pages"><figcaption>{name}</figcaption>'
            f'<label>sequence <input type="range" min="0" max="{len(images) - 1}" value="0" '
            f'aria-label="{name}"></label> <output></output>\n' + "\n".join(images) + "</figure>"
        )
    return parts


def _settings(folders: Sequence[Path]) -> Iterable[str]:
    yield "<h2>Configuration and versions</h2>"
    for folder in folders:
        path = folder / "run.json"
        sessions = read_sealed(path).get("sessions") if path.exists() else []
        if not isinstance(sessions, list):
            raise FolderError(f"{path} is damaged: it holds no list of sessions")
        told = json.dumps(sessions[-1], indent=1) if sessions else "not begun"
        config = (folder / "config.toml").read_text("utf-8")
        yield (
            f"<details><summary>{html.escape(runs.label_of(folder))}</summary>"
            f"<pre>{html.escape(config)}</pre><pre>{html.escape(told)}</pre></details>"
        )


def _image(path: Path, words: str) -> str:
    data = base64.b64encode(path.read_bytes()).decode()
    return f'<img alt="{html.escape(words)}" src="data:image/png;base64,{data}">'


def _words(path: Path) -> str:
    return path.stem.replace("_", " ")
