"""What all figures share: colours, axes, legends, labels at the ends of lines, files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

# Okabe and Ito's palette: distinct under the common forms of colour blindness. Its yellow is left
# out, which is too faint for a line on white; a grey stands for it.
PALETTE = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999",
)  # fmt: skip
_DASHES = ("-", (0, (4, 1.5)), (0, (5, 1.5, 1, 1.5)))  # once the colours are used up
_MARKERS = ("o", "s", "^")
INK, FAINT = "#333333", "#DDDDDD"
MOST_INSIDE = 6  # names in a legend: more would cover the lines
_MOST_ACROSS = 4  # panels in a row


class Look(NamedTuple):
    """How one of several lines is drawn."""

    colour: str
    dashes: Any
    marker: str


def look_of(index: int) -> Look:
    """Every colour with a solid line, then again with dashes and another marker: 24 in all."""
    turn = index // len(PALETTE) % len(_DASHES)
    return Look(PALETTE[index % len(PALETTE)], _DASHES[turn], _MARKERS[turn])


def new_figure(size: tuple[float, float]) -> tuple[Figure, FigureCanvasAgg]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, dpi=160, layout="constrained")
    return figure, FigureCanvasAgg(figure)


def grid_of(
    names: Sequence[str], size: tuple[float, float], title: str, labels: tuple[str, str]
) -> tuple[Figure, list[Axes]]:
    """A figure of named panels with a common scale upwards, at most four in a row."""
    rows = -(-len(names) // _MOST_ACROSS)
    columns = -(-len(names) // rows)  # as even as can be: six are two rows of three
    scale = 1.7 if len(names) == 1 else 1
    figure, _ = new_figure((scale * columns * size[0] + 1.6, scale * rows * size[1] + 0.5))
    grid = figure.subplots(rows, columns, sharey=True, squeeze=False)
    for number, axes in enumerate(grid.flat):
        axes.set_visible(number < len(names))
        dress(axes, "", labels[0], "" if number % columns else labels[1])
    for axes, name in zip(grid.flat, names, strict=False):
        axes.set_title(name, loc="left", fontsize=9.5, color=INK)
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, color=INK)
    return figure, list(grid.flat)[: len(names)]


def legend(figure: Figure, looks: Mapping[str, Look]) -> None:
    """What every panel's lines are called, beside them all."""
    from matplotlib.lines import Line2D

    lines = [
        Line2D([], [], color=look.colour, linestyle=look.dashes, linewidth=2, label=name)
        for name, look in looks.items()
    ]
    figure.legend(
        handles=lines, frameon=False, labelcolor=INK, fontsize=9, loc="outside right center"
    )


def dress(axes: Axes, title: str, across: str, up: str) -> None:
    axes.set_title(title, loc="left", fontsize=12, color=INK, pad=12 if title else None)
    axes.set_xlabel(across, color=INK)
    axes.set_ylabel(up, color=INK)
    axes.tick_params(colors=INK, which="both", length=0)
    axes.grid(True, color=FAINT, linewidth=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(INK)


def few_ticks(
    axes: Axes, values: Sequence[np.ndarray], most: int | Literal["auto"] = "auto"
) -> None:
    """Ticks across where there are values: one for a single one, and no fractions of whole numbers.

    Left alone, an axis of a single point runs over a hundredth of it on either side.
    """
    from matplotlib.ticker import MaxNLocator

    found = np.unique(np.concatenate([*values, np.zeros(0)]))
    if found.size == 1:
        axes.set_xticks(found, [f"{found[0]:g}"])
        reach = max(abs(found[0]) / 2, 1.0)
        axes.set_xlim(found[0] - reach, found[0] + reach)
    elif np.array_equal(found, np.round(found)):
        axes.xaxis.set_major_locator(MaxNLocator(most, integer=True))


def save(figure: Figure, path: str | Path) -> Path:
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return path


def label_ends(
    canvas: FigureCanvasAgg, axes: Axes, ends: list[tuple[int, float, str, str]]
) -> None:
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
