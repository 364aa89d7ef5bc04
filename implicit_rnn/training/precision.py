"""What a loss computes in, apart from what its parameters are kept in."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from implicit_rnn.cells.base import cast, common_dtype
from implicit_rnn.models.base import Outcome
from implicit_rnn.training.protocols import Model


class InPrecision:
    """A model whose loss computes in a type of its own: mixed precision.

    Parameters, inputs and what is carried are cast on their way in; gradients come back in the type
    of the parameters, and loss and sums in float32 at least.

    Args:
      model: whose loss it is; all else that it has is passed on.
      dtype: such as bfloat16.
    """

    def __init__(self, model: Model, dtype: Any) -> None:
        self._model, self._dtype = model, jnp.dtype(dtype)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def loss(self, params: Any, batch: Any, **options: Any) -> tuple[jax.Array, Outcome]:
        """As the model's, in `dtype`."""
        params, batch = cast((params, batch), self._dtype)
        if options.get("carry") is not None:
            options["carry"] = cast(options["carry"], self._dtype)
        loss, outcome = self._model.loss(params, batch, **options)
        exact = jnp.promote_types(common_dtype(loss), jnp.float32)
        return loss.astype(exact), outcome._replace(sums=cast(outcome.sums, exact))
