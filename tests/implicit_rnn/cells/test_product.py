"""Products whose batch is more rows are products, whatever is done to them."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from implicit_rnn.cells.product import product

BATCH, TIME, INPUTS, OUTPUTS = 4, 3, 5, 2

# Axes of rows and of matrices over which products are batched, from the outermost.
BATCHES: dict[str, list[tuple[int | None, int | None]]] = {
    "no batch": [],
    "rows": [(0, None)],
    "rows, between their axes": [(1, None)],
    "rows, last": [(2, None)],
    "matrices": [(None, 0)],
    "matrices, last": [(None, 2)],
    "both": [(1, 0)],
    "rows and matrices": [(0, None), (None, 1)],
    "matrices and rows": [(None, 0), (0, None)],
}


def operands(axes: list[tuple[int | None, int | None]]) -> tuple[jax.Array, jax.Array]:
    """Rows and a matrix, or as many as are batched."""
    x, weights = [TIME, INPUTS], [INPUTS, OUTPUTS]
    for row, column in reversed(axes):
        for shape, axis in ((x, row), (weights, column)):
            if axis is not None:
                shape.insert(axis, BATCH)
    keys = jax.random.split(jax.random.key(0))
    return jax.random.normal(keys[0], x), jax.random.normal(keys[1], weights)


def batched(function: Callable, axes: list[tuple[int | None, int | None]]) -> Callable:
    for pair in reversed(axes):
        function = jax.vmap(function, pair)
    return function


@pytest.mark.parametrize("name", BATCHES)
def test_values_and_derivatives_are_those_of_a_plain_product(name: str) -> None:
    def derivatives(multiply: Callable) -> list:
        found = batched(multiply, BATCHES[name])

        def loss(x: jax.Array, weights: jax.Array) -> jax.Array:
            return jnp.sum(jnp.sin(found(x, weights)))

        def alone(x: jax.Array, weights: jax.Array) -> jax.Array:
            return jnp.sum(jnp.sin(multiply(x, weights)))

        slope = jax.grad(loss, (0, 1))

        def all_of(x: jax.Array, weights: jax.Array) -> list:
            pushed = jax.jvp(slope, (x, weights), (jnp.cos(x), jnp.cos(weights)))
            return [
                found(x, weights),
                *pushed,
                batched(jax.grad(alone, (0, 1)), BATCHES[name])(x, weights),
            ]

        return jax.jit(all_of)(*operands(BATCHES[name]))

    with jax.enable_x64(True):
        ours, plain = derivatives(product), derivatives(jnp.matmul)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12), ours, plain)


def test_the_gradient_of_a_batch_is_one_product_of_all_rows() -> None:
    x, weights = operands(BATCHES["rows"])
    slope = jax.grad(lambda w: jnp.sum(jax.vmap(lambda x: jnp.sin(product(x, w)))(x)))
    found = jax.make_jaxpr(slope)(weights).jaxpr.eqns
    shapes = [
        [variable.aval.shape for variable in equation.invars]
        for equation in found
        if len(equation.invars) == 2 and equation.outvars[0].aval.shape == weights.shape
    ]
    assert [(INPUTS, BATCH * TIME), (BATCH * TIME, OUTPUTS)] in shapes
    assert not any(equation.primitive.name == "dot_general" for equation in found)


def test_types_are_promoted_and_leading_axes_kept() -> None:
    rows, weights = jnp.ones((2, 0, INPUTS), jnp.bfloat16), jnp.ones((INPUTS, OUTPUTS))
    assert product(rows, weights).shape == (2, 0, OUTPUTS)
    assert product(rows, weights).dtype == jnp.float32
    assert product(rows, weights.astype(jnp.bfloat16)).dtype == jnp.bfloat16
    np.testing.assert_array_equal(product(jnp.ones(INPUTS), weights), [INPUTS] * OUTPUTS)


def test_the_precision_is_that_asked_for_where_a_product_is_traced() -> None:
    x, weights = operands([])
    with jax.default_matmul_precision("highest"):
        traced = jax.jit(jax.grad(lambda *at: jnp.sum(product(*at)), (0, 1))).trace(x, weights)
    text = traced.lower().as_text()
    assert text.count("stablehlo.dot_general") == text.count("precision = [HIGHEST, HIGHEST]") > 1


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("mapped", [False, True])
def test_on_a_mesh(kind: AxisType, mapped: bool) -> None:
    devices = jax.devices()[:BATCH]
    mesh = jax.make_mesh((len(devices),), ("data",), axis_types=(kind,), devices=devices)
    x, weights = operands(BATCHES["rows"])

    def loss(weights: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.sum(jnp.sin(jax.vmap(lambda x: product(x, weights))(x)))

    def shared(weights: jax.Array, x: jax.Array) -> jax.Array:
        return jax.lax.psum(loss(weights, x), "data")

    expected = jax.grad(loss)(weights, x)
    with jax.set_mesh(mesh):
        x = jax.device_put(x, NamedSharding(mesh, P("data")))
        total = jax.shard_map(shared, in_specs=(P(), P("data")), out_specs=P()) if mapped else loss
        found = jax.jit(jax.grad(total))(weights, x)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
