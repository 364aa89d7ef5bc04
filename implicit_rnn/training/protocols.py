"""What a training loop asks of a task and of a model: two small protocols.

Anything with these attributes will do, a record of functions or an object with methods. Some have
more to say; what they have beyond the protocols is used where it is there:

| of | attribute | what it is |
| --- | --- | --- |
| a split | `numbers` | `entry -> [batch]`: which examples an entry of its plan holds |
| | `length` | of every example: by it, a batch is dealt over devices |
| | `size` | `entry -> int`: how many examples it holds |
| | `select` | `(entry, rows) -> entry` of some of them: what a process loads of it |
| | `shape` | how many examples there are, and the steps of the longest; both for `Recipe.warm` |
| a task | `verdict` | `lines -> dict`: numbers that a run's lines about training give |
| | `keep` | `file name -> JSON`: what the trained model needs beside its parameters |
| | `notes` | lines to be shown when training begins |
| a model | `solves` | how many layers are solved; its loss takes `solve` and `probe` |
| | `settles` | whether its solves are meant to converge (true without); if none do, a run ends |
| | `bounds` | spectral bounds, a tree like a part of the parameters |
| | `carry` | `(params, batch size) -> carry` at the start of an epoch; its loss takes `carry` |

The networks of `implicit_rnn.models` have all three of a model (`models.Network`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import chex
import jax
import numpy as np

from implicit_rnn.models.base import Outcome, metrics
from implicit_rnn.training.settings import SettingsError


class Split(Protocol):
    """A set of examples, a batch at a time; `training.Source` is one.

    Attributes:
      plan: `(batch size, buckets, rng) -> entries`: what the batches of one epoch are, in order.
        The same `rng` gives the same plan, so that a run can go on within an epoch. No `rng`: every
        example once, in a fixed order, for an evaluation.
      batch: makes one entry of a plan a tree of arrays.
    """

    @property
    def plan(self) -> Callable[[int, int, np.random.Generator | None], Sequence[Any]]: ...

    @property
    def batch(self) -> Callable[[Any], Any]: ...


class Task(Protocol):
    """What is learnt.

    Attributes:
      splits: `train`, `valid` and `test`; any other is a part of the test set, or another test set,
        that a result has by itself as well.
      metric: what a model is judged by, one of those that its loss counts; the lower, the better.
    """

    @property
    def splits(self) -> Mapping[str, Any]: ...

    @property
    def metric(self) -> str: ...


class Model(Protocol):
    """What learns it.

    Attributes:
      init: `key -> params`, any tree of arrays.
      loss: `(params, batch, *, key=None) -> (loss, Outcome)`. The key draws dropout and the like;
        without one, in evaluations, nothing is random.
    """

    @property
    def init(self) -> Callable[[jax.Array], Any]: ...

    @property
    def loss(self) -> Callable[..., tuple[jax.Array, Outcome]]: ...


def require_splits(task: Task) -> None:
    """Refuses a task that lacks one of the sets that a run needs."""
    missing = [name for name in ("train", "valid", "test") if name not in task.splits]
    if missing:
        raise SettingsError(
            f"task.splits needs train, valid and test; there is no {' and no '.join(missing)} "
            f"in {', '.join(task.splits)}"
        )


def require_outcome(found: Any, metric: str, solves: Sequence[str] = ()) -> Outcome:
    """The `Outcome` of a loss; refuses what the loop could not add up or judge by.

    Args:
      found: what a model's loss gave for a batch of the training set.
      metric: of the task.
      solves: what the loop counts besides.
    """
    pair = isinstance(found, tuple) and len(found) == 2 and hasattr(found[1], "sums")
    if not pair:
        raise SettingsError(f"a model's loss gives a pair, (loss, Outcome); got {found!r:.80}")
    sums = found[1].sums
    if "count" not in sums:
        raise SettingsError(
            "the sums of an Outcome need `count`, what the others are divided by; there are "
            + ", ".join(sums)
        )
    chex.assert_rank(
        [*sums.values()],
        0,
        custom_message=f"the sums of an Outcome are numbers: {', '.join(sums)}",
        exception_type=SettingsError,
    )
    known = [*metrics(dict.fromkeys(sums, 1.0)), *solves]
    if metric not in known:
        raise SettingsError(
            f"the task's metric is {metric!r}, which the loss does not count: there are "
            + ", ".join(known)
        )
    return found[1]
