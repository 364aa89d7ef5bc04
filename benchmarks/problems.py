"""The problems that solvers are compared on, as arrays, with residuals judged in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


class LinearSystem(NamedTuple):
    """`A x = b` with `||b|| = 1`, or a batch of them."""

    name: str
    matvec: Callable  # (coefficients, v) -> A v, for one system
    coefficients: tuple[jax.Array, ...]
    rhs: jax.Array
    batched: bool = False

    def residual(self, x: jax.Array) -> float:
        """The largest `||b - A x|| / ||b||` of the batch."""
        coefficients = tuple(np.asarray(c, np.float64) for c in self.coefficients)
        x, b = np.asarray(x, np.float64), np.asarray(self.rhs, np.float64)
        if not self.batched:
            coefficients, x, b = tuple(c[None] for c in coefficients), x[None], b[None]
        sizes = []
        for index in range(len(b)):
            product = self.matvec(tuple(c[index] for c in coefficients), x[index])
            sizes.append(np.linalg.norm(b[index] - product) / np.linalg.norm(b[index]))
        worst = float(np.max(sizes))
        return worst if np.isfinite(worst) else float("inf")

    def products(self, count: int) -> tuple[Callable, tuple]:
        """A program of so many products and no more, and its arguments."""
        product = jax.vmap(self.matvec) if self.batched else self.matvec
        program = jax.jit(lambda c, v: lax.fori_loop(0, count, lambda _, v: product(c, v), v))
        return program, (self.coefficients, self.rhs)


def _dense_product(coefficients: tuple, v):
    return coefficients[0] @ v


def _tridiagonal_product(coefficients: tuple, v):
    """`(I - J) v`, `J` with blocks `L_t`, `U_t` beside the diagonal: `v` is `[time, features]`."""
    lower, upper = coefficients
    xp = jnp if isinstance(v, jax.Array) else np
    before = xp.concatenate([xp.zeros_like(v[:1]), v[:-1]])
    after = xp.concatenate([v[1:], xp.zeros_like(v[:1])])
    return v - xp.einsum("tij,tj->ti", lower, before) - xp.einsum("tij,tj->ti", upper, after)


def dense(size: int, radius: float = 0.9) -> LinearSystem:
    """`I - J` with the eigenvalues of `J` spread over a disc of this radius."""
    rng = np.random.default_rng(size)
    matrix = np.eye(size) - radius * rng.normal(size=(size, size)) / size**0.5
    return LinearSystem(
        f"dense n={size}", _dense_product, (_float32(matrix),), _unit(rng.normal(size=size))
    )


def block_tridiagonal(time: int = 100, features: int = 32) -> LinearSystem:
    """The Jacobian of an implicit RNN: each time couples to both neighbours, matrix-free."""
    rng = np.random.default_rng(1)
    lower, upper = 0.45 * rng.normal(size=(2, time, features, features)) / features**0.5
    return LinearSystem(
        f"block tridiagonal T={time} d={features}",
        _tridiagonal_product,
        (_float32(lower), _float32(upper)),
        _unit(rng.normal(size=(time, features))),
    )


def batch_of_dense(batch: int = 32, size: int = 100) -> LinearSystem:
    """Systems of differing difficulty: discs of radius 0.5 to 0.95."""
    rng = np.random.default_rng(2)
    radii = np.linspace(0.5, 0.95, batch)[:, None, None]
    matrices = np.eye(size) - radii * rng.normal(size=(batch, size, size)) / size**0.5
    rhs = rng.normal(size=(batch, size))
    rhs = rhs / np.linalg.norm(rhs, axis=1, keepdims=True)
    return LinearSystem(
        f"batch of {batch}, n={size}", _dense_product, (_float32(matrices),), _float32(rhs), True
    )


class Equilibrium(NamedTuple):
    """`x = tanh(W x + b)` with spectral radius 0.9 of `W`; a batch has a row of `b` per example."""

    name: str
    weights: jax.Array
    bias: jax.Array
    cotangent: jax.Array  # of the solution: the loss is the scalar product with it
    batched: bool

    def residual(self, x: jax.Array) -> float:
        """The largest `||f(x) - x|| / ||f(x)||` of the batch."""
        x = np.asarray(x, np.float64).reshape(-1, self.weights.shape[0])
        weights, bias, _ = self._rows()
        image = np.tanh(x @ weights.T + bias)
        worst = float(np.max(np.linalg.norm(image - x, axis=1) / np.linalg.norm(image, axis=1)))
        return worst if np.isfinite(worst) else float("inf")

    def evaluations(self, count: int) -> tuple[Callable, tuple]:
        """A program of so many evaluations of the map and no more, and its arguments."""

        def run(weights: jax.Array, bias: jax.Array) -> jax.Array:
            def step(_: jax.Array, x: jax.Array) -> jax.Array:
                return jnp.tanh(weights @ x + bias)

            return lax.fori_loop(0, count, step, jnp.zeros_like(bias))

        return jax.jit(jax.vmap(run, (None, 0)) if self.batched else run), (self.weights, self.bias)

    def bias_gradient(self) -> np.ndarray:
        """The exact gradient of the loss with respect to the bias, by dense solves in float64."""
        weights, bias, cotangent = self._rows()
        x = np.zeros_like(bias)
        for _ in range(2000):
            x = np.tanh(x @ weights.T + bias)
        rows = []
        for state, upstream in zip(x, cotangent, strict=True):
            slope = 1 - state**2
            jacobian = slope[:, None] * weights
            rows.append(slope * np.linalg.solve((np.eye(len(state)) - jacobian).T, upstream))
        return np.stack(rows).reshape(self.bias.shape)

    def _rows(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        weights, bias, cotangent = (
            np.asarray(array, np.float64) for array in (self.weights, self.bias, self.cotangent)
        )
        return weights, np.atleast_2d(bias), np.atleast_2d(cotangent)


def equilibrium(size: int = 500, batch: int | None = None, radius: float = 0.9) -> Equilibrium:
    """One equilibrium, or a batch that shares its weights."""
    rng = np.random.default_rng(3)
    weights = rng.normal(size=(size, size)) / size**0.5
    weights *= radius / np.abs(np.linalg.eigvals(weights)).max()
    shape = (size,) if batch is None else (batch, size)
    # A small bias keeps the states where tanh is nearly linear: the radius is then that of J.
    bias = 0.05 * rng.normal(size=shape)
    name = f"tanh n={size}" + ("" if batch is None else f", batch of {batch}")
    cotangent = rng.normal(size=shape)
    arrays = (_float32(array) for array in (weights, bias, cotangent))
    return Equilibrium(name, *arrays, batch is not None)


class HeavyTail(NamedTuple):
    """A batch in which one example in ten needs ten times the steps of the others."""

    weights: jax.Array
    rates: jax.Array  # [batch]
    inputs: jax.Array  # [batch, time, features]

    @staticmethod
    def map(theta: tuple, x: jax.Array) -> jax.Array:
        """`x = rate tanh(x Q) + input`, contracting by about `rate` a step."""
        weights, rate, inputs = theta
        return rate * jnp.tanh(x @ weights) + inputs


def heavy_tail(batch: int = 64, time: int = 40, features: int = 64) -> HeavyTail:
    rng = np.random.default_rng(4)
    orthogonal, _ = np.linalg.qr(rng.normal(size=(features, features)))
    rates = np.where(np.arange(batch) % 10 == 5, 0.9, 0.3)
    inputs = 0.02 * rng.normal(size=(batch, time, features))
    return HeavyTail(_float32(orthogonal), _float32(rates), _float32(inputs))


def _unit(array: np.ndarray) -> jax.Array:
    return _float32(array / np.linalg.norm(array))


def _float32(array: np.ndarray) -> jax.Array:
    return jnp.asarray(array, jnp.float32)
