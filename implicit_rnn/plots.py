"""Figures, drawn with matplotlib's file backend so that they work without a display."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.lines import Line2D

# Okabe and Ito's palette: distinct under the common forms of colour blindness. Its yellow is left
# out, which is too faint for a line on white.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_INK, _FAINT = "#333333", "#DDDDDD"


def convergence(traces: Mapping[str, ArrayLike], path: str | Path, title: str) -> Path:
    """Draws residuals against steps on a logarithmic scale, every line labelled at its end.

    Args:
      traces: name to relative residuals after 0, 1, 2, ... steps; values that are not finite or
        not positive (a trace's unused tail, an exact zero) are left out.
      path: the PNG file to write; its folder is made.
      title: above the figure.

    Returns:
      The path that was written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.8), dpi=160, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_yscale("log")
    lines, ends = [], []
    for index, (name, trace) in enumerate(traces.items()):
        residual = np.asarray(trace, np.float64)
        steps = np.flatnonzero(np.isfinite(residual) & (residual > 0))
        if steps.size:
            lines.append((name, PALETTE[index % len(PALETTE)], steps, residual[steps]))
    drawn: list[np.ndarray] = []
    for name, colour, steps, residual in sorted(lines, key=lambda line: -len(line[2])):
        # Where two lines coincide, dashes let the one below show through.
        hidden = any(
            np.allclose(residual, other[: residual.size], rtol=0.05, atol=0) for other in drawn
        )
        style = (0, (2.2, 2.2)) if hidden else "-"
        axes.plot(steps, residual, color=colour, linestyle=style, linewidth=2.2)
        axes.plot(steps[-1], residual[-1], "o", color=colour, markersize=3.5 if hidden else 5.5)
        drawn.append(residual)
        ends.append((int(steps[-1]), float(residual[-1]), name, colour))

    axes.set_title(title, loc="left", fontsize=12, color=_INK, pad=12)
    axes.set_xlabel("steps", color=_INK)
    axes.set_ylabel("relative residual", color=_INK)
    axes.tick_params(colors=_INK, which="both", length=0)
    axes.grid(True, color=_FAINT, linewidth=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(_INK)
    _label(canvas, axes, ends)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return path


def _label(canvas: FigureCanvasAgg, axes: Axes, ends: list[tuple[int, float, str, str]]) -> None:
    """Writes every name near the end of its line, where it covers no line and no other name."""
    from matplotlib.transforms import Bbox

    low, high = axes.get_ylim()
    axes.set_ylim(low / (high / low) ** 0.15, high)  # room below the ends
    axes.set_xlim(left=0, right=1.08 * axes.get_xlim()[1])
    canvas.draw()  # fixes the layout, so that pixels mean something
    renderer = canvas.get_renderer()
    frame = axes.get_window_extent(renderer)
    taken = np.concatenate([_pixels(line) for line in axes.lines] or [np.zeros((0, 2))])
    boxes: list[Bbox] = []
    for step, residual, name, colour in sorted(ends):
        anchor = axes.transData.transform((step, residual))
        text = axes.text(step, residual, name, color=colour, fontsize=9.5, fontweight="bold")
        extent = text.get_window_extent(renderer)

        def cost(box: Bbox, anchor: np.ndarray = anchor) -> float:
            low, high = box.get_points()
            inside = (taken > low - 3).all(1) & (taken < high + 3).all(1)
            overlaps = sum(box.overlaps(other) for other in boxes)
            outside = not (frame.contains(*low) and frame.contains(*high))
            away = np.hypot(*(np.clip(anchor, low, high) - anchor))
            return 10 * inside.sum() + 200 * (overlaps + outside) + away / 10

        places = [
            Bbox.from_bounds(anchor[0] + dx, anchor[1] + dy, extent.width, extent.height)
            for dx in (12, -extent.width / 2, -extent.width - 12)
            for dy in np.arange(-7.4, 7, 0.5) * extent.height
        ]
        box = min(places, key=cost)
        boxes.append(box.padded(2))
        corner, opposite = box.get_points()
        x, y = axes.transData.inverted().transform(corner)
        text.set_position((x, y))
        text.set_in_layout(False)
        nearest = np.clip(anchor, corner, opposite)
        if np.hypot(*(nearest - anchor)) > 1.2 * extent.height:
            line = axes.transData.inverted().transform([anchor, nearest])
            axes.plot(*line.T, color=colour, linewidth=0.7, alpha=0.6)


def _pixels(line: Line2D) -> np.ndarray:
    """Points along a drawn line, close enough to tell whether a name would cover it."""
    points = line.get_transform().transform(line.get_xydata())
    position = np.arange(len(points))
    fine = np.linspace(0, len(points) - 1, 20 * len(points))
    return np.stack([np.interp(fine, position, points[:, axis]) for axis in (0, 1)], axis=1)
