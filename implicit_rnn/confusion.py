"""The picture of which labels are taken for which."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from implicit_rnn.plots import _figure, _save, _style

_MOST = 20  # labels: with more, the numbers cannot be read


def confusion(counts: ArrayLike, labels: Sequence[str], path: str | Path, title: str) -> Path:
    """Draws the share of each label (row) that is taken for another (column), and how many are.

    Args:
      counts: `[labels or more, labels]`, how often a label was given which; rows past the labels
        are not drawn. The diagonal, what is right, is left blank.
      labels: names.
      path: the PNG file to write.
      title: above the figure.
    """
    wrong = np.array(counts, np.float64)[: len(labels)]
    totals = wrong.sum(axis=1)
    np.fill_diagonal(wrong, 0)
    # Of many labels those that take part in the most errors, in the labels' own order.
    shown = np.sort(np.argsort(-(wrong.sum(axis=0) + wrong.sum(axis=1)), kind="stable")[:_MOST])
    wrong, names = wrong[np.ix_(shown, shown)], [labels[number] for number in shown]
    share = wrong / np.maximum(totals[shown], 1)[:, None]
    size = 2.2 + 0.42 * len(names)
    figure, _ = _figure((size + 0.6, size))
    axes = figure.add_subplot()
    image = axes.imshow(share, cmap="Blues", vmin=0, vmax=max(float(share.max(initial=0)), 1e-3))
    for row, column in zip(*np.nonzero(wrong), strict=True):
        dark = share[row, column] > 0.6 * share.max()
        axes.text(
            column, row, f"{wrong[row, column]:.0f}", ha="center", va="center", fontsize=7.5,
            color="white" if dark else "#333333",
        )  # fmt: skip
    _style(axes, title, "was taken for", "what it is")
    axes.grid(False)
    axes.set_xticks(range(len(names)), names, rotation=90, fontsize=8.5)
    axes.set_yticks(range(len(names)), names, fontsize=8.5)
    bar = figure.colorbar(image, shrink=0.6, format=lambda value, _: f"{value:.0%}")
    bar.outline.set_visible(False)
    return _save(figure, path)
