"""The maps of the campaign, twice: for `jax`, and in float64 numpy with bounds on rounding.

All are `f(x) = s act((W x + c) / s)` on the ravelled state, so that `df/dx = diag(slope) W`. Linear
contractions, expansions, the zero map, `x + c` and singular `I - J` differ in `W` alone. `nested`
is `y = s tanh((W x + c + 0.3 y) / s)`, solved for `y` inside of the map.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from solvers import Bands, fixed_point

SHAPES: dict[str, Any] = {
    "scalar": (),
    "vector": (4,),
    "tree": {"a": (3,), "b": ()},
    "time": (3, 2),
}
SIZES = {"scalar": 1, "vector": 4, "tree": 4, "time": 6}
TIME, CHANNELS = SHAPES["time"]
INNER = 0.3  # coupling of the inner solve


def shaped(shape: str, vector: Any) -> Any:
    """A vector as a state; `numpy` or `jax`."""
    if shape == "tree":
        return {"a": vector[..., :3], "b": vector[..., 3]}
    return vector.reshape(*vector.shape[:-1], *SHAPES[shape])


def flat(shape: str, x: Any) -> jax.Array:
    """A state as a vector."""
    if shape == "tree":
        return jnp.concatenate([x["a"], x["b"][..., None]], axis=-1)
    batch = x.ndim - len(SHAPES[shape])
    return x.reshape(*x.shape[:batch], SIZES[shape])


def apply(act: str, weight: Any, bias: Any, scale: Any, v: jax.Array) -> jax.Array:
    """The map on vectors `[..., n]`."""
    sums = v @ weight.T + bias
    if act == "affine":
        return sums
    if act == "nested":
        y, _ = fixed_point(
            lambda z, y: scale * jnp.tanh((z + INNER * y) / scale),
            sums,
            jnp.zeros_like(sums),
            method="newton",
            adjoint="tangent",
        )
        return y
    return scale * {"tanh": jnp.tanh, "cos": jnp.cos}[act](sums / scale)


def slopes(act: str, weight: Any, bias: Any, scale: Any, v: jax.Array) -> jax.Array:
    """`d f_i / d sums_i` (not for `nested`)."""
    sums = v @ weight.T + bias
    if act == "affine":
        return jnp.ones_like(sums)
    if act == "tanh":
        return 1 - jnp.tanh(sums / scale) ** 2
    return -jnp.sin(sums / scale)


def bands(act: str, weight: Any, bias: Any, scale: Any, v: jax.Array) -> Bands:
    """The bands in time of the Jacobian, `[..., time, channels]`, for flat states."""
    slope = slopes(act, weight, bias, scale, v).reshape(*v.shape[:-1], TIME, CHANNELS)
    blocks = weight.reshape(TIME, CHANNELS, TIME, CHANNELS)
    nothing = jnp.zeros((1, CHANNELS), weight.dtype)
    own = jnp.einsum("tctc->tc", blocks)
    lower = jnp.concatenate([nothing, jnp.einsum("tctc->tc", blocks[1:, :, :-1])])
    upper = jnp.concatenate([jnp.einsum("tctc->tc", blocks[:-1, :, 1:]), nothing])
    return Bands(slope * lower, slope * upper, slope * own)


def couplings(act: str, weight: Any, bias: Any, scale: Any, v: jax.Array) -> jax.Array:
    """The derivative of row t with respect to row t - 1: `[time, channels, channels]`."""
    slope = slopes(act, weight, bias, scale, v).reshape(TIME, CHANNELS)
    blocks = weight.reshape(TIME, CHANNELS, TIME, CHANNELS)
    rows = [jnp.zeros((CHANNELS, CHANNELS), weight.dtype)]
    rows += [blocks[t, :, t - 1, :] for t in range(1, TIME)]
    return slope[:, :, None] * jnp.stack(rows)


@dataclasses.dataclass(frozen=True)
class Exact:
    """The map at one point in float64, and how far the program's own arithmetic may be from it.

    `error` bounds the norm of what rounding does to the image: `n + 3` roundings of the sums, of
    size `eps (|W| |x| + |c|)`, times the steepest slope; a few roundings of the activation; what
    underflows; and for `nested` the tolerance of the inner solve.
    """

    image: np.ndarray
    slope: np.ndarray
    error: float
    slope_error: float  # of a single slope
    magnitude: float  # norm of |W| |x|, times the steepest slope
    jacobian: np.ndarray


def exact(
    act: str, weight: np.ndarray, bias: np.ndarray, scale: float, v: np.ndarray, dtype: str
) -> Exact:
    """All arguments are the rounded values that the program got, as float64."""
    eps, tiny = limits(dtype)
    n = v.size
    sums = weight @ v + bias
    terms = np.abs(weight) @ np.abs(v) + np.abs(bias)
    steepest, bend, inner = 1.0, 1.0, 0.0
    if act == "affine":
        image, slope, bend = sums, np.ones(n), 0.0
    elif act == "tanh":
        image = scale * np.tanh(sums / scale)
        slope = 1 - np.tanh(sums / scale) ** 2
    elif act == "cos":
        image, slope = scale * np.cos(sums / scale), -np.sin(sums / scale)
    else:
        y = inner_solution(sums / scale)
        own = 1 - y**2
        image, slope = scale * y, own / (1 - INNER * own)
        steepest, bend, inner = 1 / (1 - INNER), 4.0, 2 * working_eps(dtype) ** (2 / 3)
    rounding = (n + 3) * eps * terms + 4 * tiny
    activation = 0.0 if act == "affine" else (8 * eps + inner) * scale * np.sqrt(n)
    error = steepest * np.linalg.norm(rounding) + activation + 4 * n * tiny
    slope_error = 0.0
    if bend:
        slope_error = bend * (float(np.max(rounding / scale, initial=0)) + 8 * eps + inner)
    magnitude = steepest * float(np.linalg.norm(np.abs(weight) @ np.abs(v)))
    return Exact(image, slope, float(error), slope_error, magnitude, slope[:, None] * weight)


def inner_solution(sums: np.ndarray) -> np.ndarray:
    """`y = tanh(sums + 0.3 y)` by Newton's method."""
    y = np.tanh(sums)
    for _ in range(60):
        value = np.tanh(sums + INNER * y)
        y = y - (y - value) / (1 - INNER * (1 - value**2))
    return y


def limits(dtype: str) -> tuple[float, float]:
    """Rounding unit and smallest normal number."""
    info = jnp.finfo(dtype)
    return float(info.eps), float(info.tiny)


def working_eps(dtype: str) -> float:
    """Rounding unit of the precision that solves work in."""
    return limits("float32" if dtype == "bfloat16" else dtype)[0]
