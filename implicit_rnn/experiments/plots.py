"""Figures, drawn with matplotlib's file backend so that they work without a display."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

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
_INK, _FAINT = "#333333", "#DDDDDD"
_MOST_LABELS = 20  # in a table of confusions: with more, the numbers cannot be read
_MOST_INSIDE = 6  # names in a legend: more would cover the lines
_MOST_ACROSS = 4  # panels in a row
_PAST, _FUTURE = "#B35806", "#542788"  # as in the colour map of the switch


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
    figure, canvas = _figure((8, 4.8))
    axes = figure.add_subplot()
    axes.set_yscale("log")
    lines, ends = [], []
    for index, (name, trace) in enumerate(traces.items()):
        residual = np.asarray(trace, np.float64)
        steps = np.flatnonzero(np.isfinite(residual) & (residual > 0))
        if steps.size:
            lines.append((name, _look(index), steps, residual[steps]))
    drawn: list[np.ndarray] = []
    for name, look, steps, residual in sorted(lines, key=lambda line: -len(line[2])):
        # Where two lines coincide, dashes let the one below show through.
        hidden = any(
            np.allclose(residual, other[: residual.size], rtol=0.05, atol=0) for other in drawn
        )
        style = (0, (2.2, 2.2)) if hidden else look.dashes
        axes.plot(steps, residual, color=look.colour, linestyle=style, linewidth=2.2)
        axes.plot(
            steps[-1], residual[-1], look.marker, color=look.colour,
            markersize=3.5 if hidden else 5.5,
        )  # fmt: skip
        drawn.append(residual)
        ends.append((int(steps[-1]), float(residual[-1]), name, look.colour))

    _style(axes, title, "steps", "relative residual")
    _label(canvas, axes, ends)
    return _save(figure, path)


def curves(
    lines: Mapping[str, tuple[ArrayLike, ArrayLike]],
    path: str | Path,
    title: str,
    labels: tuple[str, str],
    references: Mapping[str, float] | None = None,
) -> Path:
    """Draws one line a name, over a common axis.

    Args:
      lines: name to `(x, y)`.
      path: the PNG file to write.
      title: above the figure.
      labels: of the axes.
      references: name to a number that is drawn as a dashed level, in the colour of the line of
        that name.
    """
    figure, _ = _figure((8, 4.8))
    axes = figure.add_subplot()
    for index, (name, (x, y)) in enumerate(lines.items()):
        look = _look(index)
        axes.plot(
            x, y, color=look.colour, linestyle=look.dashes, linewidth=2.2, label=name,
            marker=look.marker, markersize=3,
        )  # fmt: skip
        if references and name in references:
            level = references[name]
            axes.axhline(level, color=look.colour, linestyle=(0, (4, 3)), linewidth=1.2)
            axes.annotate(
                f"the paper's {name}: {level:g}", (1, level), (-4, 3), color=look.colour,
                fontsize=8.5, xycoords=("axes fraction", "data"), textcoords="offset points",
                ha="right",
            )  # fmt: skip
    _style(axes, title, *labels)
    if len(lines) <= _MOST_INSIDE:
        axes.legend(frameon=False, labelcolor=_INK, loc="best")
    else:
        figure.legend(
            frameon=False, labelcolor=_INK, fontsize=8.5, loc="outside right upper", handlelength=4
        )
    return _save(figure, path)


def listening(
    past: ArrayLike,
    path: str | Path,
    title: str,
    *,
    score: ArrayLike | None = None,
    truth: ArrayLike | None = None,
    words: Sequence[str] | None = None,
) -> Path:
    """Draws who listens to the past and who to the future, step by step.

    Args:
      past: `[time, channels]`, the share of the step before; the rest is that of the step after.
      path: the PNG file to write.
      title: above the figure.
      score: `[time]`, a probability that the network gives for every step.
      truth: `[time]`, what it should be.
      words: `[time]`, written below the steps.
    """
    shares = np.asarray(past, np.float64)
    time = np.arange(len(shares))
    shares = shares[:, np.argsort(shares.mean(axis=0))]
    extra = score is not None or truth is not None
    figure, _ = _figure((9, 6.2 if extra else 4.8))
    ratios = [1.1, 1.1, 2.2] if extra else [1.1, 2.2]
    grid = figure.add_gridspec(len(ratios), 2, height_ratios=ratios, width_ratios=[60, 1])
    row = 0
    if extra:
        axes = figure.add_subplot(grid[0, 0])
        if truth is not None:
            axes.fill_between(
                time, np.asarray(truth, float), step="mid", color=_FAINT, label="truth"
            )
        if score is not None:
            axes.plot(time, score, color=PALETTE[0], linewidth=2, label="the network's probability")
        _style(axes, title, "", "drift?")
        axes.set_ylim(-0.05, 1.05)
        axes.legend(frameon=False, labelcolor=_INK, fontsize=8.5, loc="upper left")
        axes.set_xlim(-0.5, len(time) - 0.5)
        axes.tick_params(labelbottom=False)
        row = 1
    axes = figure.add_subplot(grid[row, 0])
    mean = shares.mean(axis=1)
    axes.axhline(0.5, color=_INK, linewidth=0.8)
    axes.bar(
        time, mean - 0.5, bottom=0.5, width=0.8,
        color=[_PAST if m > 0.5 else _FUTURE for m in mean],
    )  # fmt: skip
    _style(axes, "" if extra else title, "", "mean share\nof the past")
    reach = max(0.05, 1.15 * float(np.max(np.abs(mean - 0.5), initial=0)))
    axes.set_ylim(0.5 - reach, 0.5 + reach)
    axes.set_xlim(-0.5, len(time) - 0.5)
    axes.tick_params(labelbottom=False)
    axes = figure.add_subplot(grid[row + 1, 0])
    image = axes.imshow(
        shares.T, aspect="auto", origin="lower", cmap="PuOr_r", vmin=0, vmax=1,
        interpolation="nearest",
    )  # fmt: skip
    _style(axes, "", "" if words else "step", "channels, sorted")
    axes.grid(False)
    axes.set_yticks([])
    if words:
        axes.set_xticks(time, words, rotation=60, ha="right", fontsize=9)
    bar = figure.colorbar(image, cax=figure.add_subplot(grid[row + 1, 1]), ticks=[0, 0.5, 1])
    bar.ax.set_yticklabels(["future", "both", "past"], color=_INK, fontsize=8.5)
    bar.outline.set_visible(False)
    return _save(figure, path)


def recursion(
    weights: Mapping[str, ArrayLike],
    path: str | Path,
    title: str,
    *,
    means: Mapping[str, float] | None = None,
    words: Sequence[str] | None = None,
) -> Path:
    """Draws how much the gates of an X-RNN take from the units below: in the mean, and over time.

    Args:
      weights: name of a unit (`L`, `R`, `LL`, ...) to its weights `[time]`, as
        `cells.recursion_weights` gives them.
      path: the PNG file to write.
      title: above the figure.
      means: of every unit, over many sequences; by default over this one.
      words: `[time]`, written below the steps.
    """
    figure, _ = _figure((10, 4.8))
    bars, over_time = figure.subplots(1, 2, width_ratios=[1, 2.2])
    # A colour is a unit's place within its level, and the style of its line the level.
    styles = ("-", (0, (4, 2)), (0, (1, 1.2)))
    for index, (name, values) in enumerate(weights.items()):
        values = np.asarray(values, np.float64)
        place = int(name.replace("L", "0").replace("R", "1"), 2)
        colour = PALETTE[place % len(PALETTE)]  # eight, as many as units at the third level
        style = styles[(len(name) - 1) % len(styles)]
        mean = means[name] if means else values.mean() if values.size else 0
        bars.barh(index, mean, color=colour, height=0.7)
        over_time.plot(values, color=colour, linestyle=style, linewidth=1.6, label=name)
    _style(bars, title, "mean weight", "")
    bars.set_yticks(range(len(weights)), list(weights))
    bars.invert_yaxis()
    _style(over_time, "", "" if words else "step", "weight")
    if words:
        over_time.set_xticks(range(len(words)), words, rotation=90, fontsize=8)
    if weights:
        figure.legend(frameon=False, labelcolor=_INK, fontsize=8.5, loc="outside right upper")
    return _save(figure, path)


def residuals(
    sets: Mapping[str, ArrayLike], path: str | Path, title: str, limits: Mapping[str, float]
) -> Path:
    """Draws histograms of relative residuals on a logarithmic scale, each with its tolerance.

    Args:
      sets: name to residuals.
      path: the PNG file to write.
      title: above the figure.
      limits: name to tolerance.
    """
    figure, _ = _figure((8, 4.2))
    axes = figure.add_subplot()
    values = {name: np.maximum(np.asarray(found, np.float64), 1e-9) for name, found in sets.items()}
    everything = np.concatenate([*values.values(), list(limits.values())])
    edges = np.geomspace(everything.min() / 1.3, everything.max() * 1.3, 60)
    for index, (name, found) in enumerate(values.items()):
        colour = _look(index).colour
        axes.hist(found, list(edges), color=colour, alpha=0.75, label=name)
        if name in limits:
            axes.axvline(limits[name], color=colour, linestyle=(0, (4, 3)), linewidth=1.4)
    axes.set_xscale("log")
    _style(axes, title, "relative residual; dashed: what was asked for", "sequences")
    axes.legend(frameon=False, labelcolor=_INK)
    return _save(figure, path)


def confusion(counts: ArrayLike, labels: Sequence[str], path: str | Path, title: str) -> Path:
    """Draws the share of each label (row) that is taken for another (column), and how many are.

    Colours go with the root of a share: a rare label that is often mistaken leaves room for others.

    Args:
      counts: `[labels or more, labels]`, how often a label was given which; rows past the labels
        are not drawn. The diagonal, what is right, is left blank.
      labels: names.
      path: the PNG file to write.
      title: above the figure.
    """
    from matplotlib.colors import PowerNorm

    wrong = np.array(counts, np.float64)[: len(labels)]
    totals = wrong.sum(axis=1)
    np.fill_diagonal(wrong, 0)
    # Of many labels those that take part in the most errors, in the labels' own order.
    shown = np.sort(
        np.argsort(-(wrong.sum(axis=0) + wrong.sum(axis=1)), kind="stable")[:_MOST_LABELS]
    )
    wrong, names = wrong[np.ix_(shown, shown)], [labels[number] for number in shown]
    share = wrong / np.maximum(totals[shown], 1)[:, None]
    size = 2.2 + 0.42 * len(names)
    figure, _ = _figure((size + 0.6, size))
    axes = figure.add_subplot()
    most = max(float(share.max(initial=0)), 1e-3)
    image = axes.imshow(share, cmap="Blues", norm=PowerNorm(0.5, 0, most))
    for row, column in zip(*np.nonzero(wrong), strict=True):
        dark = share[row, column] > 0.36 * most
        axes.text(
            column, row, f"{wrong[row, column]:.0f}", ha="center", va="center", fontsize=7.5,
            color="white" if dark else _INK,
        )  # fmt: skip
    _style(axes, title, "was taken for", "what it is")
    axes.grid(False)
    axes.set_xticks(range(len(names)), names, rotation=90, fontsize=8.5)
    axes.set_yticks(range(len(names)), names, fontsize=8.5)
    bar = figure.colorbar(image, shrink=0.6, format=lambda value, _: f"{value:.0%}")
    bar.outline.set_visible(False)
    return _save(figure, path)


def panels(
    groups: Mapping[str, Mapping[str, tuple[ArrayLike, ArrayLike]]],
    path: str | Path,
    title: str,
    labels: tuple[str, str],
) -> Path:
    """Draws lines in panels side by side, on one logarithmic scale; a name looks alike in all.

    Args:
      groups: title of a panel to its lines, name to `(x, y)`.
      path: the PNG file to write.
      title: above the figure.
      labels: of the axes.
    """
    from matplotlib.ticker import LogFormatter, StrMethodFormatter

    figure, grid = _panels(list(groups), (2.9, 2.7), title, labels)
    looks: dict[str, _Look] = {}
    for axes, lines in zip(grid, groups.values(), strict=True):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(1.5, 0.6)))
        for line, (x, y) in lines.items():
            look = looks.setdefault(line, _look(len(looks)))
            # Where lines coincide, those below show at the edges.
            width = max(3.4 - 0.6 * list(looks).index(line), 1.2)
            axes.plot(x, y, color=look.colour, linestyle=look.dashes, linewidth=width)
    _legend(figure, looks)
    return _save(figure, path)


def gallery(rows: Mapping[str, ArrayLike], path: str | Path, title: str) -> Path:
    """Draws images in rows, ink black; an image of one row stands below that of another.

    Args:
      rows: name to images `[count, height, width]`, from 0 (paper) to 1 (ink).
      path: the PNG file to write.
      title: above the figure.
    """
    images = {name: np.asarray(row, np.float64) for name, row in rows.items()}
    across = max(len(row) for row in images.values())
    figure, _ = _figure((0.72 * across + 1.4, 0.72 * len(images) + 0.6))
    grid = figure.subplots(len(images), across, squeeze=False)
    for axes in grid.flat:
        axes.set_axis_off()
    for line, (name, row) in zip(grid, images.items(), strict=True):
        line[0].text(
            -0.15, 0.5, name, ha="right", va="center", color=_INK, transform=line[0].transAxes
        )
        for axes, image in zip(line, row, strict=False):
            axes.set_axis_on()
            axes.imshow(image, cmap="gray_r", vmin=0, vmax=1, interpolation="nearest")
            axes.set_xticks([])
            axes.set_yticks([])
            for spine in axes.spines.values():
                spine.set_color(_FAINT)
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, color=_INK)
    return _save(figure, path)


def paths(groups: Mapping[str, Mapping[str, ArrayLike]], path: str | Path, title: str) -> Path:
    """Draws paths in a plane, in panels side by side: points darken with time, a star ends each.

    Args:
      groups: title of a panel to its paths, name to points `[points, 2]` that begin together.
      path: the PNG file to write.
      title: above the figure.
    """
    from matplotlib.colors import LinearSegmentedColormap

    axes_labels = ("first component", "second component")
    figure, grid = _panels(list(groups), (4.4, 4.2), title, axes_labels)
    looks: dict[str, _Look] = {}
    for axes, lines in zip(grid, groups.values(), strict=True):
        for line, points in lines.items():
            x, y = np.asarray(points, np.float64).T
            look = looks.setdefault(line, _look(len(looks)))
            shades = LinearSegmentedColormap.from_list("time", [_FAINT, look.colour])
            axes.plot(x, y, color=look.colour, linestyle=look.dashes, linewidth=0.8, alpha=0.5)
            size = max(6.5 - list(looks).index(line), 2)
            axes.scatter(x, y, s=size**2, c=np.arange(len(x)), cmap=shades, zorder=2)
            axes.plot(
                x[-1], y[-1], "*", color=look.colour, markersize=8 + 2 * size,
                markeredgecolor="white", zorder=4,
            )  # fmt: skip
        first = np.asarray(next(iter(lines.values())))[0]
        axes.plot(*first, "o", color=_INK, markersize=6, zorder=3)
    _legend(figure, looks)
    return _save(figure, path)


class _Look(NamedTuple):
    """How one of several lines is drawn."""

    colour: str
    dashes: Any
    marker: str


def _look(index: int) -> _Look:
    """Every colour with a solid line, then again with dashes and another marker: 24 in all."""
    turn = index // len(PALETTE) % len(_DASHES)
    return _Look(PALETTE[index % len(PALETTE)], _DASHES[turn], _MARKERS[turn])


def _figure(size: tuple[float, float]) -> tuple[Figure, FigureCanvasAgg]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, dpi=160, layout="constrained")
    return figure, FigureCanvasAgg(figure)


def _panels(
    names: Sequence[str], size: tuple[float, float], title: str, labels: tuple[str, str]
) -> tuple[Figure, list[Axes]]:
    """A figure of named panels with a common scale upwards, at most four in a row."""
    columns = min(len(names), _MOST_ACROSS)
    rows = -(-len(names) // columns)
    scale = 1.7 if len(names) == 1 else 1
    figure, _ = _figure((scale * columns * size[0] + 1.6, scale * rows * size[1] + 0.5))
    grid = figure.subplots(rows, columns, sharey=True, squeeze=False)
    for number, axes in enumerate(grid.flat):
        axes.set_visible(number < len(names))
        _style(axes, "", labels[0], "" if number % columns else labels[1])
    for axes, name in zip(grid.flat, names, strict=False):
        axes.set_title(name, loc="left", fontsize=9.5, color=_INK)
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, color=_INK)
    return figure, list(grid.flat)[: len(names)]


def _legend(figure: Figure, looks: Mapping[str, _Look]) -> None:
    """What every panel's lines are called, beside them all."""
    from matplotlib.lines import Line2D

    lines = [
        Line2D([], [], color=look.colour, linestyle=look.dashes, linewidth=2, label=name)
        for name, look in looks.items()
    ]
    figure.legend(
        handles=lines, frameon=False, labelcolor=_INK, fontsize=9, loc="outside right center"
    )


def _style(axes: Axes, title: str, across: str, up: str) -> None:
    axes.set_title(title, loc="left", fontsize=12, color=_INK, pad=12 if title else None)
    axes.set_xlabel(across, color=_INK)
    axes.set_ylabel(up, color=_INK)
    axes.tick_params(colors=_INK, which="both", length=0)
    axes.grid(True, color=_FAINT, linewidth=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(_INK)


def _save(figure: Figure, path: str | Path) -> Path:
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
