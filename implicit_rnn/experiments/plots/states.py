"""What states do: whom they listen to, how deep gates go, how well equations hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from implicit_rnn.experiments.plots.style import (
    FAINT,
    INK,
    PALETTE,
    dress,
    look_of,
    new_figure,
    save,
)

_PAST, _FUTURE = "#B35806", "#542788"  # as in the colour map of the switch


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
    figure, _ = new_figure((9, 6.2 if extra else 4.8))
    ratios = [1.1, 1.1, 2.2] if extra else [1.1, 2.2]
    grid = figure.add_gridspec(len(ratios), 2, height_ratios=ratios, width_ratios=[60, 1])
    row = 0
    if extra:
        axes = figure.add_subplot(grid[0, 0])
        if truth is not None:
            axes.bar(time, np.asarray(truth, float), width=1, color=FAINT, label="truth")
        if score is not None:
            axes.plot(time, score, color=PALETTE[0], linewidth=2, label="the network's probability")
        dress(axes, title, "", "probability")
        axes.set_ylim(-0.05, 1.05)
        axes.legend(frameon=False, labelcolor=INK, fontsize=8.5, loc="upper left")
        axes.set_xlim(-0.5, len(time) - 0.5)
        axes.tick_params(labelbottom=False)
        row = 1
    axes = figure.add_subplot(grid[row, 0])
    mean = shares.mean(axis=1)
    axes.axhline(0.5, color=INK, linewidth=0.8)
    axes.bar(
        time,
        mean - 0.5,
        bottom=0.5,
        width=0.8,
        color=[_PAST if m > 0.5 else _FUTURE for m in mean],
    )
    dress(axes, "" if extra else title, "", "mean share\nof the past")
    reach = max(0.05, 1.15 * float(np.max(np.abs(mean - 0.5), initial=0)))
    axes.set_ylim(0.5 - reach, 0.5 + reach)
    axes.set_yticks([0.5 - 0.8 * reach, 0.5, 0.5 + 0.8 * reach])
    axes.yaxis.set_major_formatter("{x:.2f}")
    axes.set_xlim(-0.5, len(time) - 0.5)
    axes.tick_params(labelbottom=False)
    axes = figure.add_subplot(grid[row + 1, 0])
    image = axes.imshow(
        shares.T,
        aspect="auto",
        origin="lower",
        cmap="PuOr_r",
        vmin=0,
        vmax=1,
        interpolation="nearest",
    )
    dress(axes, "", "" if words else "step", "channels, sorted")
    axes.grid(False)
    axes.set_yticks([])
    if words:
        axes.set_xticks(time, words, rotation=60, ha="right", fontsize=9)
    bar = figure.colorbar(image, cax=figure.add_subplot(grid[row + 1, 1]), ticks=[0, 0.5, 1])
    bar.ax.set_yticklabels(["future", "both", "past"], color=INK, fontsize=8.5)
    bar.outline.set_visible(False)
    return save(figure, path)


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
    figure, _ = new_figure((10, 4.8))
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
    dress(bars, title, "mean weight", "")
    bars.set_yticks(range(len(weights)), list(weights))
    bars.invert_yaxis()
    dress(over_time, "", "" if words else "step", "weight")
    if words:
        over_time.set_xticks(range(len(words)), words, rotation=90, fontsize=8)
    if weights:
        figure.legend(frameon=False, labelcolor=INK, fontsize=8.5, loc="outside right upper")
    return save(figure, path)


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
    figure, _ = new_figure((8, 4.2))
    axes = figure.add_subplot()
    values = {name: np.maximum(np.asarray(found, np.float64), 1e-9) for name, found in sets.items()}
    everything = np.concatenate([*values.values(), list(limits.values())])
    edges = np.geomspace(everything.min() / 1.3, everything.max() * 1.3, 60)
    for index, (name, found) in enumerate(values.items()):
        colour = look_of(index).colour
        axes.hist(found, list(edges), color=colour, alpha=0.75, label=name)
        if name in limits:
            axes.axvline(limits[name], color=colour, linestyle=(0, (4, 3)), linewidth=1.4)
    axes.set_xscale("log")
    dress(axes, title, "relative residual; dashed: what was asked for", "sequences")
    axes.legend(frameon=False, labelcolor=INK)
    return save(figure, path)
