"""Tables and images: confusions of labels, rows of pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from implicit_rnn.experiments.plots.style import (
    FAINT,
    INK,
    dress,
    new_figure,
    save,
)

_MOST_LABELS = 20  # in a table of confusions: with more, the numbers cannot be read


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
    figure, _ = new_figure((size + 0.6, size))
    axes = figure.add_subplot()
    most = max(float(share.max(initial=0)), 1e-3)
    image = axes.imshow(share, cmap="Blues", norm=PowerNorm(0.5, 0, most))
    for row, column in zip(*np.nonzero(wrong), strict=True):
        dark = share[row, column] > 0.36 * most
        axes.text(
            column,
            row,
            f"{wrong[row, column]:.0f}",
            ha="center",
            va="center",
            fontsize=7.5,
            color="white" if dark else INK,
        )
    dress(axes, title, "was taken for", "what it is")
    axes.grid(False)
    axes.set_xticks(range(len(names)), names, rotation=90, fontsize=8.5)
    axes.set_yticks(range(len(names)), names, fontsize=8.5)
    bar = figure.colorbar(image, shrink=0.6, format=lambda value, _: f"{value:.0%}")
    bar.outline.set_visible(False)
    return save(figure, path)


def gallery(rows: Mapping[str, ArrayLike], path: str | Path, title: str) -> Path:
    """Draws images in rows, ink black; an image of one row stands below that of another.

    Args:
      rows: name to images `[count, height, width]`, from 0 (paper) to 1 (ink).
      path: the PNG file to write.
      title: above the figure.
    """
    images = {name: np.asarray(row, np.float64) for name, row in rows.items()}
    across = max(len(row) for row in images.values())
    figure, _ = new_figure((0.72 * across + 1.4, 0.72 * len(images) + 0.6))
    grid = figure.subplots(len(images), across, squeeze=False)
    for axes in grid.flat:
        axes.set_axis_off()
    for line, (name, row) in zip(grid, images.items(), strict=True):
        line[0].text(
            -0.15, 0.5, name, ha="right", va="center", color=INK, transform=line[0].transAxes
        )
        for axes, image in zip(line, row, strict=False):
            axes.set_axis_on()
            axes.imshow(image, cmap="gray_r", vmin=0, vmax=1, interpolation="nearest")
            axes.set_xticks([])
            axes.set_yticks([])
            for spine in axes.spines.values():
                spine.set_color(FAINT)
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, color=INK)
    return save(figure, path)
