"""Problems with known answers, made by numpy alone, for the solver tests."""

from __future__ import annotations

import contextlib

import jax
import numpy as np

SIZE = 12


def precision(dtype: str) -> contextlib.AbstractContextManager:
    """The context in which arrays of `dtype` can be made."""
    return jax.enable_x64(dtype == "float64")


def matrices() -> dict[str, np.ndarray]:
    """Square systems of one size: easy, skewed, ill-conditioned, structured, singular."""
    rng = np.random.default_rng(7)
    n = SIZE
    noise = rng.standard_normal((n, n)) / np.sqrt(n)
    left, _ = np.linalg.qr(rng.standard_normal((n, n)))
    right, _ = np.linalg.qr(rng.standard_normal((n, n)))
    singular_values = np.logspace(0, -1, n)
    singular_values[-1] = 0
    blocks = np.eye(n)
    for t in range(n // 3):
        for other in (t - 1, t + 1):
            if 0 <= other < n // 3:
                part = 0.25 * rng.standard_normal((3, 3))
                blocks[3 * t : 3 * t + 3, 3 * other : 3 * other + 3] = -part
    return {
        "well_conditioned": np.eye(n) + 0.3 * noise,
        "nonsymmetric": np.eye(n) + 1.5 * np.triu(noise, 1) + 0.8 * (noise - noise.T),
        "ill_conditioned": left @ np.diag(np.logspace(0, -4, n)) @ right,
        "block_tridiagonal": blocks,
        "singular": left @ np.diag(singular_values) @ right,
    }


def right_hand_side() -> np.ndarray:
    return np.random.default_rng(11).standard_normal(SIZE)


def tanh_map(theta: tuple, x: jax.Array) -> jax.Array:
    """`tanh(W x + b)`: the smallest network with a fixed point."""
    weight, bias = theta
    return jax.numpy.tanh(weight @ x + bias)


def tanh_theta(radius: float = 0.6, size: int = 6, seed: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Weights with the given spectral norm, and a bias."""
    rng = np.random.default_rng(seed)
    weight = rng.standard_normal((size, size))
    return radius * weight / np.linalg.norm(weight, 2), rng.standard_normal(size)


def tanh_solution(weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """The fixed point by dense Newton in float64."""
    x = np.zeros_like(bias)
    for _ in range(100):
        image = np.tanh(weight @ x + bias)
        jacobian = (1 - image**2)[:, None] * weight
        x = x + np.linalg.solve(np.eye(x.size) - jacobian, image - x)
    return x


def tanh_gradient(
    weight: np.ndarray, bias: np.ndarray, cotangent: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Gradient of `<cotangent, x*>` by the implicit function theorem, dense."""
    x = tanh_solution(weight, bias)
    slope = 1 - x**2
    jacobian = slope[:, None] * weight
    w = slope * np.linalg.solve(np.eye(x.size) - jacobian.T, cotangent)
    return np.outer(w, x), w
