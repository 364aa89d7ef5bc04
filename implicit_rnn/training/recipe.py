"""The recipe under which implicit layers train: solves stay cheap from first update to last.

`docs/trainability.md` tells what was tried and measured.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax

from implicit_rnn import sequence, spectral
from implicit_rnn.cells.base import Cell, Params, State
from implicit_rnn.training import guard
from implicit_rnn.training.ranges import COUNT, POSITIVE, UNLIMITED, check_settings
from solvers import Info, Sweeps

RANGES = {
    "rtol": POSITIVE, "tied": POSITIVE, "loosest": POSITIVE, "max_steps": COUNT, "backward": COUNT,
    "bound_scale": POSITIVE, "clip": UNLIMITED, "levels": COUNT, "test_rtol": POSITIVE,
}  # fmt: skip
_MOST_SWEEPS = 100  # in an evaluation, before Newton's method takes over


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How to solve and how to update.

    Attributes:
      rtol: tolerance of forward solves; of their last iterate but two, with `free_sweeps`. None:
        what the precision of the states allows.
      free_sweeps: as for `implicit_batch`.
      tied: where set, the tolerance is `tied * loss` while that is looser than `rtol`, but at
        most `loosest`: early gradients need no accurate states.
      loosest: see `tied`.
      method: as for `implicit_batch`.
      max_steps: of a forward solve.
      backward: the backward solve, as for `implicit_batch`; a number is so many sweeps, after which
        an example whose series grows gets a zero gradient.
      extrapolated: of so many backward sweeps, the best combination (`Sweeps`) in place of the
        last, in lockstep.
      bounded: "transform" clips singular values after each update (`spectral.bounded`),
        "reparametrised" divides matrices by their excess norm before use, "none" does neither.
      bound_scale: factor on the cell's own bounds.
      clip: global norm that gradients are clipped to; infinite: they are not.
      accelerated: sweeps with secant steps.
      levels: batch sizes of a compacted batch; 1 sweeps the whole batch in lockstep.
      test_rtol: tolerance where nothing is learnt (`exact`); None: what the precision of the states
        allows, as for `solvers.fixed_point`: 2.4e-5 in float32, .04 in bfloat16.
      warm: in `implicit-rnn train`: keep the states of every example, and start from them when it
        comes again. Takes memory, and room in checkpoints, for all states of the training set.
    """

    rtol: float | None = 0.1
    free_sweeps: bool = True
    tied: float | None = None
    loosest: float = 0.4
    method: str = "banded"
    max_steps: int = 50
    backward: int | str | Sweeps = 6
    extrapolated: bool = True
    bounded: Literal["transform", "reparametrised", "none"] = "transform"
    bound_scale: float = 1.0
    clip: float = 1.0
    accelerated: bool = True
    levels: int = 1
    test_rtol: float | None = None
    warm: bool = False

    def __post_init__(self) -> None:
        check_settings(self, RANGES)
        if self.bounded not in ("transform", "reparametrised", "none"):
            raise ValueError(
                f'bounded must be "transform", "reparametrised" or "none", got {self.bounded!r}'
            )

    def exact(self) -> Recipe:
        """The recipe for evaluation: solves to `test_rtol` by the robust cascade."""
        return dataclasses.replace(
            self,
            rtol=self.test_rtol,
            tied=None,
            method="auto",
            max_steps=300,
            backward="auto",
            free_sweeps=False,
            levels=1,
        )

    def swept(self) -> Recipe:
        """The recipe for evaluation by sweeps alone.

        Newton's method takes most of the time that an exact solve needs to be compiled, and is
        hardly ever needed: only a batch that sweeps do not solve is worth the other program.
        """
        return dataclasses.replace(self.exact(), method="banded", max_steps=_MOST_SWEEPS)

    def settings(self, loss: jax.Array | float | None = None) -> dict[str, Any]:
        """What `implicit_batch` is to be called with.

        Args:
          loss: the latest one, for a tolerance that is tied to it.
        """
        rtol: Any = self.rtol
        if self.tied is not None and loss is not None:
            rtol = jnp.clip(self.tied * jnp.asarray(loss), self.rtol, self.loosest)
        backward = self.backward
        if isinstance(backward, int):
            best = self.extrapolated and backward > 1
            backward = Sweeps(steps=backward, extrapolated=best, on_failure="zero")
        return {
            "method": self.method,
            "adjoint": backward,
            "rtol": rtol,
            "max_steps": self.max_steps,
            "accelerated": self.accelerated,
            "free_sweeps": self.free_sweeps,
            "levels": self.levels,
        }

    def usable(self, params: Params, bounds: Any) -> Params:
        """The parameters as a model is to see them: within their bounds, if reparametrised."""
        if self.bounded != "reparametrised":
            return params
        return spectral.reparametrised(params, bounds)

    def bounds(self, cell: Cell) -> Any:
        """Spectral norms that the cell's matrices may have: a tree like a part of its parameters.

        Where those are a part of larger ones, nest it as they are: `{"layer": recipe.bounds(cell)}`
        for `{"layer": cell.init(...), "read": ...}`, `[recipe.bounds(a), recipe.bounds(b)]` for a
        list of two layers, `{"params": recipe.bounds(layer.cell)}` for the state of a flax layer.

        >>> from implicit_rnn import cells
        >>> Recipe().bounds(cells.mgu(8))
        {'candidate': 4.0, 'gate': 8.0}
        """
        return jax.tree.map(lambda bound: self.bound_scale * bound, cell.bounds)

    def solve(
        self,
        cell: Cell,
        params: Params,
        xs: jax.Array,
        *,
        length: jax.Array | None = None,
        start: State | str | None = None,
        loss: jax.Array | float | None = None,
        probe: Info | None = None,
    ) -> tuple[State, Info]:
        """The states of a batch `[batch, time, features]`.

        Args:
          loss: the latest one, for a tolerance that is tied to it.
          cell, params, xs, length, start, probe: as for `implicit_batch`.
        """
        params = self.usable(params, self.bounds(cell))
        return sequence.implicit_batch(
            cell, params, xs, length=length, start=start, probe=probe, **self.settings(loss)
        )

    def optimiser(
        self, bounds: Any, inner: optax.GradientTransformation
    ) -> optax.GradientTransformationExtraArgs:
        """`inner` between a clip of the gradient and the bounds on the matrices.

        A gradient that is not finite changes nothing and is counted (`training/guard.py`).

        Args:
          bounds: a tree of bounds like a part of the parameters: `{"layer": recipe.bounds(cell)}`
            for parameters `{"layer": ..., ...}`.
          inner: for instance `optax.adam(schedule)`.
        """
        links = [guard.clipped(self.clip), inner]
        if self.bounded == "transform":
            links.append(spectral.bounded(bounds))
        return guard.guarded(optax.chain(*links))
