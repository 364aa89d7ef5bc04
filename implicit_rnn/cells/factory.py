"""What all factories of cells share: cells equal by settings, types of numbers, initialisers."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from implicit_rnn.cells.base import Cell, Params, cast, common_dtype
from solvers.settings import comparable

Initialiser = Callable[..., jax.Array]  # `(key, shape, dtype) -> array`, as those of jax.nn
# What every factory takes beside its own settings, and what computes in the type of a cell.
_COMMON = {
    "dtype": Any, "param_dtype": Any, "kernel_init": Initialiser | None,
    "recurrent_kernel_init": Initialiser | None, "bias_init": Initialiser | None,
}  # fmt: skip
_TYPED = (
    "project", "step", "initial_state", "final_state", "sweep", "bands", "split_step", "at_rest",
    "causal_step", "switch", "run", "step_with",
)  # fmt: skip


class _Part:
    """A function of a cell; equal to that of a cell with the same settings."""

    def __init__(self, function: Callable, settings: Any) -> None:
        self._function, self._settings = function, settings

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self._function(*args, **options)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Part) and self._settings == other._settings

    def __hash__(self) -> int:
        return hash(self._settings)


def comparable_cell(make: Callable[..., Cell]) -> Callable[..., Cell]:
    """A factory whose cells are equal, and hash alike, where their settings are equal."""
    signature = inspect.signature(make)

    @functools.wraps(make)
    def made(*args: Any, **options: Any) -> Cell:
        cell = make(*args, **options)
        bound = signature.bind(*args, **options)
        bound.apply_defaults()
        settings = make.__qualname__, comparable(dict(bound.arguments))
        parts: dict[str, Any] = {
            name: _Part(function, (name, settings))
            for name, function in cell._asdict().items()
            if callable(function)
        }
        return cell._replace(**parts)

    return made


def cell_factory(make: Callable[..., Cell]) -> Callable[..., Cell]:
    """A factory of cells that are equal by settings and take what flax's cells take.

    Beside its own settings it takes

    * `dtype`: what is computed in; by default what parameters, inputs and states promote to;
    * `param_dtype`: of parameters, by default float32 (float64 in 64-bit mode);
    * `kernel_init`: of matrices on the input; `recurrent_kernel_init`: of all other matrices;
      `bias_init`: each `(key, shape, dtype) -> array`, as `jax.nn.initializers` make them, in place
      of the cell's own. A matrix `[n, k d]` of a cell of width d is drawn as k matrices `[n, d]`.
    """
    own = inspect.signature(make)
    common = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in _COMMON
    ]

    @functools.wraps(make)
    def made(*args: Any, **options: Any) -> Cell:
        given = {name: options.pop(name, None) for name in _COMMON}
        for name, value in given.items():
            if name.endswith("_init") and not (value is None or callable(value)):
                raise ValueError(
                    f"{name} must be an initialiser, (key, shape, dtype) -> array, got {value!r}"
                )
        cell = make(*args, **options)
        initialisers = given["kernel_init"], given["recurrent_kernel_init"], given["bias_init"]
        if any(initialisers):
            cell = cell._replace(init=_redrawn(cell, *initialisers))
        return typed(cell, given["dtype"], given["param_dtype"])

    made.__signature__ = own.replace(  # type: ignore[attr-defined]
        parameters=[*own.parameters.values(), *common]
    )
    made.__annotations__ = {**make.__annotations__, **_COMMON}
    return comparable_cell(made)


def typed(cell: Cell, dtype: Any = None, param_dtype: Any = None) -> Cell:
    """The cell with every function computing, and giving, in one type.

    That is `dtype`, or what parameters, inputs and states promote to.
    """
    dtype = _floating("dtype", dtype)
    param_dtype = _floating("param_dtype", param_dtype)

    def one_type(function: Callable) -> Callable:
        def computed(*args: Any) -> Any:
            used = dtype or common_dtype(*args)
            return cast(function(*cast(args, used)), used)

        return computed

    def init(key: jax.Array, input_size: int) -> Params:
        return cast(cell.init(key, input_size), param_dtype)

    functions: dict[str, Any] = {
        name: one_type(function) for name in _TYPED if (function := getattr(cell, name)) is not None
    }
    return cell._replace(
        init=init if param_dtype else cell.init, dtype=dtype, param_dtype=param_dtype, **functions
    )


def _floating(name: str, value: Any) -> Any:
    if value is None:
        return None
    try:
        found = jnp.dtype(value)
    except TypeError:
        found = None
    if found is None or not jnp.issubdtype(found, jnp.floating):
        raise ValueError(f"{name} must be a floating type such as bfloat16, got {value!r}")
    return found


def _redrawn(
    cell: Cell, kernel: Initialiser | None, recurrent: Initialiser | None, bias: Initialiser | None
) -> Callable[[jax.Array, int], Params]:
    """`init` with some of the parameters drawn by others than the cell's own initialisers."""

    def init(key: jax.Array, input_size: int) -> Params:
        params = cell.init(key, input_size)
        # What changes with the width of the input is a matrix on the input.
        other = jax.eval_shape(lambda key: cell.init(key, input_size + cell.hidden_size + 1), key)
        shapes = {
            jax.tree_util.keystr(path): leaf.shape
            for path, leaf in jax.tree_util.tree_leaves_with_path(other)
        }

        def draw(path: Any, leaf: jax.Array) -> jax.Array:
            name = jax.tree_util.keystr(path)
            if leaf.ndim == 1:
                chosen = bias if name.endswith("bias']") else None
            else:
                chosen = recurrent if shapes.get(name) == leaf.shape else kernel
            if chosen is None:
                return leaf
            own = jax.random.fold_in(key, list(shapes).index(name))
            if leaf.ndim == 1 or leaf.shape[-1] % cell.hidden_size:
                return chosen(own, leaf.shape, leaf.dtype)
            keys = jax.random.split(own, leaf.shape[-1] // cell.hidden_size)
            block = (*leaf.shape[:-1], cell.hidden_size)
            return jnp.concatenate([chosen(k, block, leaf.dtype) for k in keys], axis=-1)

        return jax.tree_util.tree_map_with_path(draw, params)

    return init
