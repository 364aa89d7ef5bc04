"""What functions close over, made explicit: traced values, integers, keys, all of it.

`close(f, *args)` traces `f` and returns its program, from which everything it closed over has been
taken out, beside those values. A differentiation rule can then keep the program, and call it when
the trace that the values belonged to is over; and two traces of one function are equal, so that an
eager call compiles once.
"""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core, linear_util

from solvers.mesh import vary_with, varying
from solvers.programs import lifted
from solvers.settings import Same, Settings, comparable
from solvers.space import Tree, subtract


class Frame:
    """A pytree without its arrays: the structure, and the leaves that are no numbers."""

    closed = True

    def __init__(self, tree: Tree) -> None:
        leaves, structure = jax.tree.flatten(tree)
        self.structure: Any = structure
        self.others = tuple(None if is_number(leaf) else (leaf,) for leaf in leaves)
        self._key = (self.structure, comparable(self.others))

    def arrays(self, tree: Tree) -> list:
        """The leaves of `tree` that are numbers or arrays of them."""
        leaves = self.structure.flatten_up_to(tree)
        return [leaf for leaf, other in zip(leaves, self.others, strict=True) if other is None]

    def join(self, arrays: list) -> Tree:
        """The tree with these arrays."""
        given = iter(arrays)
        leaves = [next(given) if other is None else other[0] for other in self.others]
        return jax.tree.unflatten(self.structure, leaves)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Frame) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


def is_number(leaf: Any) -> bool:
    """Whether a leaf is traced. Truth values are not: a map may branch on them."""
    if isinstance(leaf, bool | np.bool_):
        return False
    return isinstance(leaf, jax.Array | np.ndarray | np.generic | int | float | complex)


class Closed:
    """The program of a function that closes over nothing: `closed(constants, *args)`."""

    closed = True

    def __init__(self, jaxpr: core.Jaxpr, frame: Frame, structure: Any, fixed: int = 0) -> None:
        self.jaxpr, self.frame, self.structure = jaxpr, frame, structure
        self.fixed = fixed  # so many of the constants, the last ones, stood as numbers in it

    def __call__(self, constants: list, *args: Any) -> Tree:
        arrays = self.frame.arrays(args)
        first = len(constants) - self.fixed
        constants = [*constants[:first], *jax.lax.stop_gradient(constants[first:])]
        if jax.sharding.get_abstract_mesh().manual_axes:
            leaves = _evaluate(self.jaxpr, constants, arrays)
        else:
            leaves = core.jaxpr_as_fun(core.ClosedJaxpr(self.jaxpr, constants))(*arrays)
        return jax.tree.unflatten(self.structure, leaves)

    @functools.cached_property
    def _key(self) -> tuple:
        return _Signature().jaxpr(self.jaxpr), self.frame, self.structure, self.fixed

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Closed) and self._key == other._key)

    def __hash__(self) -> int:
        return hash(self._key)


def close(function: Callable, *args: Any) -> tuple[Closed, list]:
    """The program of `function(*args)`, and the values it closes over."""
    frame = Frame(args)
    structure = None

    def flat(*arrays: Any) -> list:
        nonlocal structure
        leaves, structure = jax.tree.flatten(function(*frame.join(list(arrays))))
        return leaves

    traced = jax.make_jaxpr(flat)(*frame.arrays(args))
    jaxpr, numbers = traced.jaxpr, list[np.ndarray]()
    if not jax.sharding.get_abstract_mesh().manual_axes:
        jaxpr, numbers = lifted(jaxpr)
    return Closed(jaxpr, frame, structure, len(numbers)), [*traced.consts, *numbers]


def _evaluate(jaxpr: core.Jaxpr, constants: list, args: list) -> list:
    """The program on values that vary along more mesh axes than those it was traced with.

    So it happens inside `shard_map`, where what a backward pass has kept varies along all of them.
    """
    values = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*constants, *args), strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, core.Literal) else values[atom]

    for equation in jaxpr.eqns:
        given, name = [read(atom) for atom in equation.invars], equation.primitive.name
        if name == "pvary":
            types = [variable.aval for variable in equation.outvars]
            found = [vary_with(*pair) for pair in zip(given, types, strict=True)]
        elif name in ("jit", "pjit"):
            inner = equation.params["jaxpr"]
            found = _evaluate(inner.jaxpr, inner.consts, given)
        else:
            if any(varying(jnp.asarray(leaf)) != varying(v.aval)
                   for leaf, v in zip(given, equation.invars, strict=True)):  # fmt: skip
                given = [vary_with(jnp.asarray(leaf), *given) for leaf in given]
            parameters = equation.primitive.get_bind_params(equation.params)
            found = equation.primitive.bind(*given, **parameters)
            found = found if equation.primitive.multiple_results else [found]
        values.update(zip(equation.outvars, found, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


@dataclasses.dataclass(frozen=True, eq=False)
class Direct(Settings):
    """A record that closes over nothing by itself, called like a `Closed`."""

    record: Any

    def __call__(self, constants: list, *args: Any) -> Tree:
        return self.record(*args)


def seal(record: Settings, *args: Any) -> tuple[Closed | Direct, list]:
    """A callable record without what it closes over, which is held constant, and that.

    A record of plain settings is its own program; one with functions in it is traced.
    """
    if record.closed:
        return Direct(record), []
    closed, constants = close(record, *args)  # type: ignore[arg-type]
    return closed, jax.lax.stop_gradient(constants)


class Equation(Protocol):
    """`x = f(theta, x)` for one problem or for a batch of them, as a function of operands."""

    @property
    def root(self) -> bool:
        """Whether it was given as `g(theta, x) = 0`."""
        ...

    def __call__(self, operands: tuple, x: Tree) -> Tree: ...

    def defect(self, operands: tuple, x: Tree) -> Tree:
        """`f(theta, x) - x`."""
        ...

    def theta(self, operands: tuple) -> Any:
        """The parameters as the user wrote them."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class Map(Settings):
    """The map of `x = f(theta, x)` on operands: the arrays of `theta`, and what `f` closed over.

    Of an equation `g(theta, x) = 0` (a `root`) it is `x - g(theta, x)`.
    """

    program: Closed
    frame: Frame
    root: bool = False

    def __call__(self, operands: tuple[list, list], x: Tree) -> Tree:
        value = self.program(operands[1], operands[0], x)
        return subtract(x, value) if self.root else value

    def defect(self, operands: tuple[list, list], x: Tree) -> Tree:
        """`f(theta, x) - x`, or `-g(theta, x)` without the rounding of `x`."""
        value = self.program(operands[1], operands[0], x)
        return jax.tree.map(jnp.negative, value) if self.root else subtract(value, x)

    def theta(self, operands: tuple[list, list]) -> Any:
        """The parameters as the user wrote them."""
        return self.frame.join(operands[0])


def close_map(
    f: Callable[[Any, Tree], Tree], theta: Any, x: Tree, root: bool = False
) -> tuple[Map, tuple]:
    """`f` as a `Map`, and its operands."""
    frame = Frame(theta)
    arrays = frame.arrays(theta)
    program, constants = close(lambda arrays, x: f(frame.join(arrays), x), arrays, x)
    return Map(program, frame, root), (arrays, constants)


def shape_of(f: Callable[[Any, Tree], Tree], theta: Any, x: Tree) -> Tree:
    """The shapes of `f(theta, x)`, whatever the leaves of `theta` are."""
    frame = Frame(theta)
    return jax.eval_shape(lambda arrays, x: f(frame.join(arrays), x), frame.arrays(theta), x)


# Places for results, filled later; the trace that was; names for messages; sentinels.
_IRRELEVANT = ("Store", "EqualStore", "DynamicJaxprTrace", "DebugInfo", "TraceTag", "object")


_LIBRARIES = ("jax", "solvers", "flax", "optax", "equinox")
_STABLE = (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, type)


class _Signature:
    """A program as nested tuples that are equal exactly where the programs are.

    Rules of custom derivatives are functions, made anew with every trace: they are compared by
    their code and by what it closes over and, for those of users, reads from their module. What
    can change is equal only to itself as it is now; what cannot be compared, to itself alone.
    """

    def __init__(self) -> None:
        self._open: dict[int, int] = {}  # functions that are being looked at

    def jaxpr(self, jaxpr: core.Jaxpr) -> tuple:
        numbers: dict[core.Var, int] = {}

        def atom(atom: Any) -> Any:
            if isinstance(atom, core.Literal):
                return "literal", str(atom.aval), comparable(np.asarray(atom.val))
            return numbers.setdefault(atom, len(numbers))

        inputs = tuple((atom(v), v.aval) for v in (*jaxpr.constvars, *jaxpr.invars))
        equations = tuple(
            (
                equation.primitive,
                tuple(atom(v) for v in equation.invars),
                tuple((name, self.value(p)) for name, p in sorted(equation.params.items())),
                tuple((atom(v), v.aval) for v in equation.outvars),
            )
            for equation in jaxpr.eqns
        )
        return inputs, equations, tuple(atom(v) for v in jaxpr.outvars)

    def value(self, value: Any) -> Any:
        """A parameter of an equation, or what a function closes over."""
        if isinstance(value, core.Jaxpr):
            return self.jaxpr(value)
        if isinstance(value, core.ClosedJaxpr):
            return self.jaxpr(value.jaxpr), tuple(self.value(c) for c in value.consts)
        if isinstance(value, linear_util.WrappedFun):
            chain = tuple((self.value(step), self.value(args)) for step, args in value.transforms)
            return self.value(value.f), chain, self.value(value.params)
        if type(value).__name__ in _IRRELEVANT:
            return type(value)
        if isinstance(value, functools.partial):
            return self.value(value.func), self.value(value.args), self.value(value.keywords)
        if isinstance(value, types.MethodType):
            return self.value(value.__func__), self.value(value.__self__)
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, tuple):
            return type(value), tuple(self.value(item) for item in value)
        if isinstance(value, list):
            return self._mutable(value, enumerate(value))
        if isinstance(value, dict):
            return self._mutable(value, value.items())
        if isinstance(value, np.ndarray):
            return Same(value), comparable(value)
        if type(value).__name__ == "_FlatCallback":
            return self.value(value.callback_func), value.in_tree
        return comparable(value)

    def _mutable(self, value: Any, items: Iterable[tuple[Any, Any]]) -> tuple:
        return Same(value), tuple((key, self.value(item)) for key, item in items)

    def _global_values(self, code: types.CodeType, table: dict) -> tuple:
        """What code reads from its module, but for functions, classes and modules."""
        named = [(name, table[name]) for name in code.co_names if name in table]
        here = tuple((n, self._state(v)) for n, v in named if not isinstance(v, _STABLE))
        inner = [part for part in code.co_consts if isinstance(part, types.CodeType)]
        return here, tuple(self._global_values(part, table) for part in inner)

    def _state(self, value: Any) -> Any:
        """An object of a user, with its attributes as they are now."""
        seen = self.value(value)
        rule: Any = type(value).__eq__
        if isinstance(value, _STABLE) or rule is not object.__eq__:
            return seen  # compared by its own rule, not as the same object alone
        return seen, tuple((k, comparable(v)) for k, v in getattr(value, "__dict__", {}).items())

    def _function(self, function: types.FunctionType) -> Any:
        if id(function) in self._open:
            return "recursion", self._open[id(function)]
        self._open[id(function)] = len(self._open)
        try:
            users = (function.__module__ or "").split(".")[0] not in _LIBRARIES
            look = self._state if users else self.value
            cells = tuple(
                look(cell.cell_contents) if _is_filled(cell) else "empty"
                for cell in function.__closure__ or ()
            )
            rest = self.value(function.__defaults__), self.value(function.__kwdefaults__)
            code = function.__code__
            read = self._global_values(code, function.__globals__) if users else ()
            return code, cells, rest, read
        finally:
            del self._open[id(function)]


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
