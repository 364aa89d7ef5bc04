"""Gradients by recurrent matrices, made of all steps at once, against those of a plain scan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import extend

from implicit_rnn import cells, unroll
from implicit_rnn.cells import Cell

TIME, INPUTS, WIDTH = 67, 3, 4  # so many that they are run in chunks, the last one in part
LENGTHS = (TIME, 7, 0)
CELLS = {
    "lstm": cells.lstm(WIDTH),
    "gru": cells.gru(WIDTH),
    "gru, reset after": cells.gru(WIDTH, reset="after"),
    "mgu": cells.mgu(WIDTH),
    "onlstm": cells.onlstm(WIDTH),
    "rnn": cells.rnn(WIDTH),
    "rnn by its output": cells.rnn(WIDTH, output_recurrence=True),
}


def loss(cell: Cell, reverse: bool, scan: bool) -> Callable[[Any, jax.Array], jax.Array]:
    """Of a batch; by a plain scan, as `truncate` asks for one, or as `unroll` has it."""
    truncate = TIME if scan else None

    def one(params: Any, xs: jax.Array, length: jax.Array) -> jax.Array:
        ys, last = unroll(cell, params, xs, length, reverse=reverse, truncate=truncate)
        return jnp.sum(jnp.sin(ys)) + sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(last))

    return lambda params, xs: jnp.sum(jax.vmap(one, (None, 0, 0))(params, xs, jnp.array(LENGTHS)))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", CELLS)
def test_derivatives_to_second_order_are_those_of_a_scan(name: str, reverse: bool) -> None:
    cell = CELLS[name]
    assert cell.step_with is not None
    with jax.enable_x64(True):
        params = cell.init(jax.random.key(0), INPUTS)
        xs = jax.random.normal(jax.random.key(1), (len(LENGTHS), TIME, INPUTS))
        along = jax.tree.map(jnp.cos, (params, xs))

        @jax.jit
        def derivatives(params: Any, xs: jax.Array) -> list:
            found = []
            for scan in (False, True):
                gradient = jax.grad(loss(cell, reverse, scan), (0, 1))
                pushed = jax.jvp(gradient, (params, xs), along)
                again = jax.grad(
                    lambda params, gradient=gradient: sum(
                        jnp.vdot(leaf, leaf) for leaf in jax.tree.leaves(gradient(params, xs))
                    )
                )(params)
                found.append((*pushed, again))
            return found

        ours, plain = derivatives(params, xs)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9), ours, plain)


def test_the_loop_adds_nothing_to_a_gradient_of_the_size_of_a_matrix() -> None:
    cell, xs = CELLS["lstm"], jnp.zeros((TIME, INPUTS))
    params = cell.init(jax.random.key(0), INPUTS)
    traced = jax.make_jaxpr(jax.grad(lambda p: jnp.sum(unroll(cell, p, xs)[0])))(params)

    def carried(jaxpr: Any) -> list[tuple]:
        shapes = []
        for equation in jaxpr.eqns:
            for inner in extend.core.jaxprs_in_params(equation.params):
                shapes += carried(inner)
            if equation.primitive.name == "scan":
                first = equation.params["num_consts"]
                own = equation.invars[first : first + equation.params["num_carry"]]
                length = equation.params["length"]
                shapes += [(length, variable.aval.shape) for variable in own]
        return shapes

    # The loop over chunks may carry it, that over the eight steps of one may not.
    steps = [shape for length, shape in carried(traced.jaxpr) if length == 8]
    assert (WIDTH,) in steps
    assert params["recurrent"].shape not in steps
