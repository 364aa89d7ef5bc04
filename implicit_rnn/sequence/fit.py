"""Errors of shapes, explained: which argument of a run over time does not fit, and what would."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax

from implicit_rnn.cells.base import Cell

Function = TypeVar("Function", bound=Callable[..., Any])

# What JAX and Python say where arrays or trees do not fit.
_CONFUSED = (TypeError, ValueError, KeyError, IndexError, AttributeError)


def explains_misfits(function: Function) -> Function:
    """`function(cell, params, xs, ...)` whose errors of shapes name the argument and the widths.

    Arguments are looked at only after something has failed: nothing is paid for where all is well.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except _CONFUSED as error:
            if _refused(error):
                raise
            problem = _misfit(signature.bind(*args, **kwargs).arguments)
            if problem is None or problem == str(error):
                raise
            raise ValueError(problem) from error

    return call  # type: ignore[return-value]


def _refused(error: Exception) -> bool:
    """Whether it is a sentence of this package, which says what is wrong already."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = "" if trace is None else trace.tb_frame.f_globals.get("__name__", "")
    # What JAX raises has a cause, the frames that it hides.
    return error.__cause__ is None and where.startswith(__package__) and type(error) is ValueError


def _misfit(given: Mapping[str, Any]) -> str | None:
    """What is wrong with arguments, if it is their shapes."""
    cell, params, xs = given["cell"], given["params"], given.get("xs", given.get("x"))
    width = jax.numpy.shape(xs)[-1]
    want, wider, got = _init(cell, width), _init(cell, width + 1), _shapes(params)
    title = f"{cell.name} of hidden size {cell.hidden_size}"
    missing = sorted(set(want) - set(got))
    if missing:
        return f"params have no {', '.join(missing)}: they are not those of {title}"
    wrong = [name for name in want if got[name] != want[name]]
    by_width = [name for name in wrong if wider[name] != want[name]]
    if wrong and wrong == by_width:
        name = wrong[0]
        axis = next(
            i for i, (a, b) in enumerate(zip(want[name], wider[name], strict=True)) if a != b
        )
        own = got[name][axis] if len(got[name]) > axis else "other"
        return (
            f"xs has {width} features, but params of {cell.name} are for {own}: give xs "
            f"[..., {own}], or make params with cell.init(key, {width})"
        )
    if wrong:
        name = next(name for name in wrong if name not in by_width)
        return f"params{name} has shape {got[name]}, but that of {title} has {want[name]}"
    return _misfitting_state(cell, params, given)


def _misfitting_state(cell: Cell, params: Any, given: Mapping[str, Any]) -> str | None:
    own = _shapes(jax.eval_shape(cell.initial_state, params))
    batch = jax.numpy.shape(given.get("xs", given.get("x")))[:-1]
    for name in ("state", "initial_state", "final_state", "start"):
        state = given.get(name)
        several = isinstance(state, list | tuple) and not hasattr(state, "_fields")
        if state is None or isinstance(state, str) or (name == "start" and several):
            continue
        lead = batch if name == "start" else ()
        want = {part: (*lead, *shape) for part, shape in own.items()}
        if _shapes(state) != want:
            return f"{name} must be {_told(want)} for {cell.name}, got {_told(_shapes(state))}"
    return None


def _init(cell: Cell, width: int) -> dict[str, tuple[int, ...]]:
    return _shapes(jax.eval_shape(lambda key: cell.init(key, width), jax.random.key(0)))


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    """The shape of every leaf by its path."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path): jax.numpy.shape(leaf) for path, leaf in leaves}


def _told(shapes: Mapping[str, tuple[int, ...]]) -> str:
    if list(shapes) == [""]:
        return f"an array of shape {shapes['']}"
    return "a tree with " + ", ".join(f"{name} {shape}" for name, shape in shapes.items())
