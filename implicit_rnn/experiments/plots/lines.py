"""Lines: residuals by step, learning curves, panels of them, paths in a plane."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from implicit_rnn.experiments.plots.style import (
    FAINT,
    INK,
    MOST_INSIDE,
    Look,
    dress,
    few_ticks,
    grid_of,
    label_ends,
    legend,
    look_of,
    new_figure,
    save,
)


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
    figure, canvas = new_figure((8, 4.8))
    axes = figure.add_subplot()
    axes.set_yscale("log")
    lines, ends = [], []
    for index, (name, trace) in enumerate(traces.items()):
        residual = np.asarray(trace, np.float64)
        steps = np.flatnonzero(np.isfinite(residual) & (residual > 0))
        if steps.size:
            lines.append((name, look_of(index), steps, residual[steps]))
    drawn: list[np.ndarray] = []
    for name, look, steps, residual in sorted(lines, key=lambda line: -len(line[2])):
        # Where two lines coincide, dashes let the one below show through.
        hidden = any(
            np.allclose(residual, other[: residual.size], rtol=0.05, atol=0) for other in drawn
        )
        style = (0, (2.2, 2.2)) if hidden else look.dashes
        axes.plot(steps, residual, color=look.colour, linestyle=style, linewidth=2.2)
        axes.plot(
            steps[-1],
            residual[-1],
            look.marker,
            color=look.colour,
            markersize=3.5 if hidden else 5.5,
        )
        drawn.append(residual)
        ends.append((int(steps[-1]), float(residual[-1]), name, look.colour))

    dress(axes, title, "steps", "relative residual")
    label_ends(canvas, axes, ends)
    return save(figure, path)


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
    figure, _ = new_figure((8, 4.8))
    axes = figure.add_subplot()
    for index, (name, (x, y)) in enumerate(lines.items()):
        look = look_of(index)
        axes.plot(
            x,
            y,
            color=look.colour,
            linestyle=look.dashes,
            linewidth=2.2,
            label=name,
            marker=look.marker,
            markersize=3,
        )
        if references and name in references:
            level = references[name]
            axes.axhline(level, color=look.colour, linestyle=(0, (4, 3)), linewidth=1.2)
            axes.annotate(
                f"the paper's {name}: {level:g}",
                (1, level),
                (-4, 3),
                color=look.colour,
                fontsize=8.5,
                xycoords=("axes fraction", "data"),
                textcoords="offset points",
                ha="right",
            )
    dress(axes, title, *labels)
    few_ticks(axes, [np.asarray(x, float) for x, _ in lines.values()])
    if len(lines) <= MOST_INSIDE:
        axes.legend(frameon=False, labelcolor=INK, loc="best")
    else:
        figure.legend(
            frameon=False, labelcolor=INK, fontsize=8.5, loc="outside right upper", handlelength=4
        )
    return save(figure, path)


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

    class Plain(LogFormatter):  # labels what LogFormatter does, as major ticks are
        def __call__(self, x: float, pos: int | None = None) -> str:
            return f"{x:g}" if super().__call__(x, pos) else ""

    figure, grid = grid_of(list(groups), (2.9, 2.7), title, labels)
    looks: dict[str, Look] = {}
    for axes, lines in zip(grid, groups.values(), strict=True):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.yaxis.set_minor_formatter(Plain(minor_thresholds=(1.5, 0.6)))
        for line, (x, y) in lines.items():
            look = looks.setdefault(line, look_of(len(looks)))
            # Where lines coincide, those below show at the edges.
            width = max(3.4 - 0.6 * list(looks).index(line), 1.2)
            axes.plot(x, y, color=look.colour, linestyle=look.dashes, linewidth=width)
        few_ticks(axes, [np.asarray(x, float) for x, _ in lines.values()], most=4)
    legend(figure, looks)
    return save(figure, path)


def paths(groups: Mapping[str, Mapping[str, ArrayLike]], path: str | Path, title: str) -> Path:
    """Draws paths in a plane, in panels side by side: points darken with time, a star ends each.

    Args:
      groups: title of a panel to its paths, name to points `[points, 2]` that begin together.
      path: the PNG file to write.
      title: above the figure.
    """
    from matplotlib.colors import LinearSegmentedColormap

    axes_labels = ("first component", "second component")
    figure, grid = grid_of(list(groups), (4.4, 4.2), title, axes_labels)
    looks: dict[str, Look] = {}
    for axes, lines in zip(grid, groups.values(), strict=True):
        for line, points in lines.items():
            x, y = np.asarray(points, np.float64).T
            look = looks.setdefault(line, look_of(len(looks)))
            shades = LinearSegmentedColormap.from_list("time", [FAINT, look.colour])
            axes.plot(x, y, color=look.colour, linestyle=look.dashes, linewidth=0.8, alpha=0.5)
            size = max(6.5 - list(looks).index(line), 2)
            axes.scatter(x, y, s=size**2, c=np.arange(len(x)), cmap=shades, zorder=2)
            axes.plot(
                x[-1],
                y[-1],
                "*",
                color=look.colour,
                markersize=8 + 2 * size,
                markeredgecolor="white",
                zorder=4,
            )
        first = np.asarray(next(iter(lines.values())))[0]
        axes.plot(*first, "o", color=INK, markersize=6, zorder=3)
    legend(figure, looks)
    return save(figure, path)
