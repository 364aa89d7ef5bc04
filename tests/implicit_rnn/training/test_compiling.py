"""Programs that run once."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from implicit_rnn.training.compiling import once


def test_what_runs_once_is_compiled_alone_and_in_other_programs() -> None:
    def function(x):
        return jnp.sin(x) + 1

    run, x = once(function), jnp.arange(3.0)
    np.testing.assert_allclose(run(x), np.sin(np.arange(3.0)) + 1, rtol=1e-6)
    np.testing.assert_allclose(jax.jit(lambda x: 2 * run(x))(x), 2 * run(x), rtol=1e-6)
    assert jax.eval_shape(run, x).shape == (3,)
    np.testing.assert_allclose(jax.grad(lambda x: run(x).sum())(x), np.cos(x), rtol=1e-6)
