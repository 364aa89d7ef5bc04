"""Over which devices an update is spread, and how: meshes, partition rules, gradients.

Every device solves and differentiates its own examples, in loops that end by themselves; what the
devices have found is then added up by one all-reduce. The update of the parameters follows for all
of them at once, by the partitioner of the compiler.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec

from implicit_rnn.training.dealing import common_size
from implicit_rnn.training.settings import SettingsError
from solvers.mesh import varying


@dataclasses.dataclass(frozen=True)
class ParallelSettings:
    """The `parallel` table of a configuration.

    Examples are dealt over all axes of the mesh, parameters over those that a rule names.

    Attributes:
      axes: names of the mesh's axes.
      shape: how many devices along each; -1, once: all that are left. By default as many along the
        first axis as the batch can be dealt over, and one along the others.
      rules: `{pattern: axes}` for parameters and their averages and moments: a parameter whose path
        (`embedding/table`) the regular expression is found in is sharded, dimension by dimension,
        along the axes named ("" for none). The first that fits counts; what none fits is
        replicated.
    """

    axes: tuple[str, ...] = ("data",)
    shape: tuple[int, ...] = ()
    rules: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.axes or len(set(self.axes)) != len(self.axes):
            raise ValueError(f"axes must be different names, got {list(self.axes)}")
        if self.shape and len(self.shape) != len(self.axes):
            raise ValueError(
                f"shape has {len(self.shape)} entries for the {len(self.axes)} axes "
                f"{list(self.axes)}"
            )
        if any(size < 1 and size != -1 for size in self.shape) or self.shape.count(-1) > 1:
            raise ValueError(
                f"shape holds numbers of devices, and -1 at most once; got {list(self.shape)}"
            )
        for pattern, names in self.rules.items():
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"rules: {pattern!r} is no regular expression: {error}") from None
            unknown = [name for name in names if name and name not in self.axes]
            if isinstance(names, str) or unknown:
                raise ValueError(
                    f"rules: {pattern!r} takes a list of axes out of {list(self.axes)}, or '', one "
                    f"for each dimension; got {names!r}"
                )


ONE_DEVICE = ParallelSettings(shape=(1,))
NO_RULES: Mapping[str, Sequence[str]] = {}


class Layout(NamedTuple):
    """A mesh of devices, and what of a run is on which of them.

    Attributes:
      mesh: of any axis types.
      rules: as in `ParallelSettings`.
    """

    mesh: Mesh
    rules: Mapping[str, Sequence[str]] = NO_RULES

    @property
    def axes(self) -> tuple[str, ...]:
        return self.mesh.axis_names

    @property
    def rows(self) -> NamedSharding:
        """Of what has the examples first."""
        return NamedSharding(self.mesh, Spec(self.axes))

    @property
    def everywhere(self) -> NamedSharding:
        """Of what every device has."""
        return NamedSharding(self.mesh, Spec())

    def specs(self, params: Any) -> Any:
        """Partition specs of parameters, by the rules."""
        return jax.tree_util.tree_map_with_path(self._spec, params)

    def _spec(self, path: Any, leaf: Any) -> Spec:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        for pattern, names in self.rules.items():
            if not re.search(pattern, name):
                continue
            sizes = [self.mesh.shape[axis] if axis else 1 for axis in names]
            if len(names) > leaf.ndim or any(
                length % size for length, size in zip(leaf.shape, sizes, strict=False)
            ):
                raise SettingsError(
                    f"parallel.rules: {pattern!r} shards {name} of shape {tuple(leaf.shape)} along "
                    f"{list(names)}, of {sizes} devices: give an axis for each of its "
                    "dimensions, of devices that divide it"
                )
            return Spec(*(axis or None for axis in names))
        return Spec()

    def shardings(self, state: Any) -> Any:
        """Of a whole training state: what mirrors a parameter is where the parameter is."""
        own = {
            _path(path): (leaf.shape, spec)
            for (path, leaf), spec in zip(
                jax.tree_util.tree_leaves_with_path(state.params),
                jax.tree.leaves(self.specs(state.params), is_leaf=_is_spec),
                strict=True,
            )
        }

        def sharding(path: Any, leaf: Any) -> NamedSharding:
            names = _path(path)
            for first in range(len(names)):
                shape, spec = own.get(names[first:], (None, None))
                if spec is not None and shape == leaf.shape:
                    return NamedSharding(self.mesh, spec)
            return self.everywhere

        for pattern in self.rules:
            if not any(re.search(pattern, "/".join(path)) for path in own):
                paths = ", ".join("/".join(path) for path in own)
                raise SettingsError(f"parallel.rules: {pattern!r} fits no parameter of {paths}")
        placed = jax.tree_util.tree_map_with_path(sharding, state)
        return placed._replace(carry=jax.tree.map(lambda _: self.rows, state.carry))

    def spread(self, graded: Callable, params: Any) -> Callable:
        """`graded`, each device on its own examples, and the sums of what they found.

        Args:
          graded: `(params, whole, batch, carry, key, loss) -> Graded` for the examples of one
            device; `whole` makes its parameters, which may be sharded, those of the model.
          params: shapes of the parameters.

        Returns:
          `(params, batch, carry, key, loss) -> Graded` for a batch over all devices.
        """
        specs = self.specs(params)

        def local(params: Any, batch: Any, carry: Any, key: jax.Array, loss: jax.Array) -> Graded:
            # Of its own on every device, or each use of a parameter would add up its gradient.
            params, loss = _own((params, loss), self.axes)
            key = jax.random.fold_in(key, lax.axis_index(self.axes))
            found = graded(params, lambda own: _gathered(own, specs), batch, carry, key, loss)
            return self._summed(found._replace(states=None), specs)

        return jax.shard_map(
            local,
            mesh=self.mesh,
            in_specs=(specs, Spec(self.axes), Spec(self.axes), Spec(), Spec()),
            out_specs=Graded(Spec(), specs, Spec(), Spec(self.axes), Spec()),
        )

    def judged(self, judge: Callable) -> Callable:
        """`judge(params, batch, carry) -> (sums, carry)` of batches that are dealt, or are not."""
        together = jax.jit(judge)
        copied = jax.jit(lambda params: params, out_shardings=self.everywhere)

        def dealt(params: Any, batch: Any, carry: Any) -> tuple[dict, Any]:
            specs = self.specs(params)

            def local(params: Any, batch: Any, carry: Any) -> tuple[dict, Any]:
                params = _own(_gathered(params, specs), self.axes)
                sums, carry = judge(params, batch, carry)
                return self._summed(Graded(jnp.zeros(()), (), sums, carry), ()).sums, carry

            rows = Spec(self.axes)
            return jax.shard_map(
                local, mesh=self.mesh, in_specs=(specs, rows, rows), out_specs=(Spec(), rows)
            )(params, batch, carry)

        apart = jax.jit(dealt)

        def run(params: Any, batch: Any, carry: Any) -> tuple[dict, Any]:
            first = jax.tree.leaves(batch)[0]
            if first.sharding.is_equivalent_to(self.rows, first.ndim):
                return apart(params, batch, carry)
            return together(copied(params), batch, carry)

        return run

    def _summed(self, found: Graded, specs: Any) -> Graded:
        """Gradients and sums over all devices, by one all-reduce for each way to be sharded."""
        sums = {name: value for name, value in found.sums.items() if not name.endswith("_most")}
        most = {name: value for name, value in found.sums.items() if name.endswith("_most")}
        # The largest of a few numbers as a sum, each device with a place of its own: no round more.
        place = jnp.arange(self.mesh.size) == lax.axis_index(self.axes)
        places = {name: jnp.where(place, value, 0) for name, value in most.items()}
        leaves, structure = jax.tree.flatten(found.gradient)
        kinds = [_named(spec) for spec in jax.tree.leaves(specs, is_leaf=_is_spec)]
        for kind in sorted({*kinds, ()}):
            chosen = [number for number, other in enumerate(kinds) if other == kind]
            rest = (found.loss, sums, places) if not kind else ()
            flat, undo = ravel_pytree(([leaves[number] for number in chosen], rest))
            over = tuple(axis for axis in self.axes if axis not in kind)
            total, rest = undo(lax.psum(flat, over) if over else flat)
            for number, leaf in zip(chosen, total, strict=True):
                leaves[number] = leaf
            if not kind:
                loss, sums, places = rest
        sums |= {name: jnp.max(value) for name, value in places.items()}
        return found._replace(gradient=jax.tree.unflatten(structure, leaves), loss=loss, sums=sums)


class Graded(NamedTuple):
    """What a batch says of the parameters.

    Attributes:
      loss: the loss, times what it is a mean over.
      gradient: of that.
      sums: by name.
      carry: what the next batch starts from.
      states: of layers that are solved, on one device.
    """

    loss: Any
    gradient: Any
    sums: Any
    carry: Any
    states: Any = None


def layout_of(
    parallel: ParallelSettings | Layout | None, split: Any, batch: int, buckets: int
) -> Layout | None:
    """The layout of a run; None on one device, which needs none.

    Args:
      parallel: as for `train`.
      split: of the training set.
      batch, buckets: of the settings of the training.
    """
    parts = _most_parts(split, batch, buckets)
    if isinstance(parallel, Layout):
        found = parallel
    else:
        parallel = parallel or ParallelSettings()
        sizes = _sizes(parallel, parts)
        if sizes is None:
            return None
        count = math.prod(sizes)
        if jax.process_count() > 1 and count != jax.device_count():
            raise SettingsError(
                f"a mesh of {sizes} leaves out some of the {jax.device_count()} devices of "
                f"{jax.process_count()} processes: choose training.batch and parallel.shape such "
                "that all have a part"
            )
        mesh = jax.make_mesh(
            sizes, parallel.axes, (AxisType.Auto,) * len(sizes), devices=jax.devices()[:count]
        )
        found = Layout(mesh, parallel.rules)
    if found.mesh.size == 1 and jax.process_count() == 1:
        return None
    if parts % found.mesh.size:
        what = (
            f"a batch of {batch} cannot be dealt"
            if parts > 1
            else "the batches of this task are no separate examples and cannot be dealt"
        )
        raise SettingsError(
            f"{what} over {found.mesh.size} devices: set training.batch, or parallel.shape, so "
            "that one divides the other"
        )
    return found


def _sizes(parallel: ParallelSettings, parts: int) -> tuple[int, ...] | None:
    """Devices along each axis; None where one does everything."""
    there = jax.device_count()
    if not parallel.shape:
        most = max(n for n in range(1, there + 1) if parts % n == 0)
        if jax.process_count() > 1:  # where all have to take part
            most = there
        return None if most == 1 else (most, *[1] * (len(parallel.axes) - 1))
    known = math.prod(size for size in parallel.shape if size > 0)
    sizes = tuple(there // known if size == -1 else size for size in parallel.shape)
    if not math.prod(sizes) or math.prod(sizes) > there:
        raise SettingsError(
            f"parallel.shape = {list(parallel.shape)} needs {max(known, math.prod(sizes))} "
            f"devices; there are {there}"
        )
    return sizes


def _most_parts(split: Any, batch: int, buckets: int) -> int:
    """Into how many parts a batch can be dealt: its examples, or 1 where it has none of its own."""
    try:
        first = split.plan(batch, buckets, np.random.default_rng(0))[0]
    except ValueError as error:
        raise SettingsError(str(error)) from error
    return batch if common_size(split.batch(first)) == batch else 1


def _own(tree: Any, axes: tuple[str, ...]) -> Any:
    """The tree as one that every device has its own of."""

    def own(leaf: jax.Array) -> jax.Array:
        missing = tuple(axis for axis in axes if axis not in varying(leaf))
        return lax.pcast(leaf, missing, to="varying") if missing else leaf

    return jax.tree.map(own, tree)


def _gathered(params: Any, specs: Any) -> Any:
    """Whole parameters from shards; the gradient of a shard is summed up where the shard is."""

    def whole(leaf: jax.Array, spec: Spec) -> jax.Array:
        for dimension, axis in enumerate(spec):
            if axis is not None:
                leaf = lax.all_gather(leaf, axis, axis=dimension, tiled=True)
        return leaf

    return jax.tree.map(whole, params, specs)


def _path(path: Any) -> tuple[str, ...]:
    return tuple(jax.tree_util.keystr((key,), simple=True) for key in path)


def _named(spec: Spec) -> tuple[str, ...]:
    return tuple(axis for axis in spec if axis is not None)


def _is_spec(leaf: Any) -> bool:
    return isinstance(leaf, Spec)
