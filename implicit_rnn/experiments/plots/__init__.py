"""Figures, drawn with matplotlib's file backend so that they work without a display."""

from implicit_rnn.experiments.plots.images import confusion, gallery
from implicit_rnn.experiments.plots.lines import convergence, curves, panels, paths
from implicit_rnn.experiments.plots.states import listening, recursion, residuals
from implicit_rnn.experiments.plots.style import PALETTE

__all__ = [
    "PALETTE",
    "confusion",
    "convergence",
    "curves",
    "gallery",
    "listening",
    "panels",
    "paths",
    "recursion",
    "residuals",
]
