"""The associative memory that a configuration describes."""

from __future__ import annotations

from typing import Literal

from implicit_rnn import models
from implicit_rnn.experiments.task import Task


def hopfield(
    task: Task,
    *,
    hidden: int = 1024,
    rule: str = "neumann",
    truncation: int = 20,
    uniform: bool = False,
    steps: int = 50,
    tolerance: float = 1e-5,
    scale: float = 1e-3,
    read_out: Literal["state", "activation"] = "state",
    time_constant: float = 1.0,
    gain: float = 0.5,
    step: float = 1.0,
) -> models.Hopfield:
    """An associative memory of images.

    Args:
      hidden, rule, truncation, uniform, steps, tolerance: as for `models.hopfield`.
      scale, read_out, time_constant, gain, step: as for `models.hopfield`.
    """
    return models.hopfield(
        task.sizes["pixels"],
        hidden,
        rule=rule,
        truncation=truncation,
        uniform=uniform,
        steps=steps,
        tolerance=tolerance,
        scale=scale,
        read_out=read_out,
        time_constant=time_constant,
        gain=gain,
        step=step,
    )
