"""A label for every node of a graph: a gated graph network, run until it settles."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import solvers
from implicit_rnn.cells import gru
from implicit_rnn.cells.base import Cell, Params, affine, dense, product
from implicit_rnn.models.base import NO_SETTINGS, Outcome, label_sums, layer_probe, stacked
from implicit_rnn.models.readout import init_read, read
from implicit_rnn.sequence.equilibrium import learning_rule
from implicit_rnn.sequence.stack import drop
from solvers import Info

Normalise = Literal["none", "mean", "symmetric"]
_PACE = 2.0  # update gates are open at first: sigmoid(2) of the way to the candidate a step
_OWN = 0.1  # bound on what a state adds to its own candidate; at first half as much


class Settled(NamedTuple):
    """The states of all nodes at equilibrium, and what finding them took."""

    states: jax.Array  # [nodes, hidden]
    info: Info


class GraphNetwork(NamedTuple):
    """A `Model` that labels nodes.

    Attributes:
      init, loss, bounds, solves, carry: as for every `Network`; a batch has `inputs`
        `[batch, nodes, features]`, `edges` `[batch, edges, 2]` (from, to), `labels`
        `[batch, nodes]` and `mask` `[batch, nodes]`, which labels count; sums are `loss`, `error`
        (wrong labels) and `count` (labels).
      scores: `(params, inputs, edges, *, key=None, probe=None, start=None, trace=0) ->
        (scores, Settled)` of one graph, scores `[nodes, labels]`. `start` are states `[nodes,
        hidden]` to begin from in place of zeros, NaN where there are none; nodes that see their
        features as the initial state begin from these all the same. The other options are
        those of `solvers.fixed_point`. Edges to nodes that are not there are refused; inside of a
        compiled program, where nobody can tell, they carry nothing or the wrong state.
    """

    init: Callable[[jax.Array], Params]
    loss: Callable[..., tuple[jax.Array, Outcome]]
    bounds: Any
    solves: int
    scores: Callable[..., tuple[jax.Array, Settled]]
    carry: None = None
    settles: bool = True  # whether propagation is meant to end by the tolerance


class LogisticRegression(NamedTuple):
    """A `Model` that labels nodes by their own features; fields as of `GraphNetwork`."""

    init: Callable[[jax.Array], Params]
    loss: Callable[..., tuple[jax.Array, Outcome]]
    bounds: Any
    solves: int
    scores: Callable[..., jax.Array]
    carry: None = None


def graph_network(
    input_size: int,
    labels: int,
    hidden: int,
    *,
    rule: str = "neumann",
    truncation: int = 5,
    uniform: bool = False,
    steps: int = 100,
    tolerance: float = 1e-3,
    inputs: Literal["every_step", "initial"] = "every_step",
    normalise: Normalise = "symmetric",
    coupling: float = 0.95,
    dropout: float = 0.0,
) -> GraphNetwork:
    """Labels nodes by a linear read-out of the states at which messages no longer change them.

    With `m_v = sum over edges (u, v) of h_u`, all nodes update at once,

        h_v <- GRU(input [m_v, x_v], state h_v),

    until the states of the whole graph move by less than the tolerance. At equilibrium a state is
    its own candidate, so that the update gate sets nothing but the pace.

    A node without edges gets the message zero. An edge that is listed twice counts twice, and a
    self-loop is an edge (an experiment's `checked_graph` removes both).

    Args:
      input_size: features `x_v` of a node.
      labels: how many.
      hidden: width of a node's state.
      rule, truncation, uniform: how gradients pass, as for `learning_rule`.
      steps: propagation steps at most.
      tolerance: relative change of all states at which propagation ends; 0: all steps are made,
        unless the change stops falling long before.
      inputs: when a node sees its features. At `"every_step"` the equilibrium depends on them. As
        the `"initial"` state, padded with zeros to the hidden width, they are forgotten on the way
        to an equilibrium if there is only one, and no rule but `bptt` learns from what they did.
      normalise: of messages. The 2018 paper's sum is `"none"`; it is divided by the number of edges
        that end at a node (`"mean"`), or by the roots of the numbers of edges at either end
        (`"symmetric"`). Undivided, nodes with many neighbours drive gates and candidates to their
        limits, and few iterations settle.
      coupling: what a message is multiplied by in a candidate, at first; and the spectral bound of
        the matrix that is learnt in its place (`bounds`). Below 1, with normalised messages, the
        iteration contracts, and what a node says fades by about this factor with every edge.
      dropout: of inputs and of the states that are read.

    Parameters: `update`, those of `cells.gru(hidden, reset="after")` with messages for inputs;
    `features` `[input_size, 3 hidden]` beside them for `"every_step"`; and `read`.
    """
    _check_labels(labels)
    _check_messages(inputs, normalise, coupling)
    if inputs == "initial" and input_size > hidden:
        raise ValueError(
            f"{input_size} features do not fit into an initial state of {hidden}: raise hidden, "
            "or reduce the features to their principal components"
        )
    learning_rule(rule, truncation, uniform=uniform)  # refuses what it does not know
    cell = gru(hidden, reset="after", update_bias=_PACE)

    parts = _Settling(
        cell=cell,
        hidden=hidden,
        coupling=coupling,
        labels=labels,
        inputs=inputs,
        input_size=input_size,
        dropout=dropout,
        normalise=normalise,
        rule=rule,
        truncation=truncation,
        uniform=uniform,
        tolerance=tolerance,
        steps=steps,
    )
    bounds = {"update": {"input": coupling, "recurrent": _OWN}}
    return GraphNetwork(parts.init, parts.loss, bounds, 1, parts.scores, settles=tolerance > 0)


def _check_messages(inputs: str, normalise: str, coupling: float) -> None:
    if inputs not in ("every_step", "initial"):
        raise ValueError(f'inputs must be "every_step" or "initial", got {inputs!r}')
    if normalise not in ("none", "mean", "symmetric"):
        raise ValueError(f'normalise must be "none", "mean" or "symmetric", got {normalise!r}')
    if coupling <= 0:
        raise ValueError(f"coupling must be positive, got {coupling}")


@dataclasses.dataclass(frozen=True, eq=False)
class _Settling:
    """What a graph network does."""

    cell: Cell
    hidden: int
    coupling: float
    labels: int
    inputs: Literal["every_step", "initial"]
    input_size: int
    dropout: float
    normalise: Normalise
    rule: str
    truncation: int
    uniform: bool
    tolerance: float
    steps: int

    def init(self, key: jax.Array) -> Params:
        keys = jax.random.split(key, 3)
        update = self.cell.init(keys[0], self.hidden)
        # Neighbours' states are taken over unmixed: a rotation at every edge would scatter what
        # nodes of a kind have in common.
        own = self.coupling * jnp.eye(self.hidden)
        heard = jnp.concatenate([jnp.zeros((self.hidden, 2 * self.hidden)), own], axis=1)
        params = {
            "update": update | {"input": heard, "recurrent": _OWN * update["recurrent"]},
            "read": init_read(keys[1], self.hidden, self.labels),
        }
        if self.inputs == "every_step":
            params["features"] = dense(keys[2], (self.input_size, 3 * self.hidden))
        return params

    def update(self, theta: tuple, states: jax.Array) -> jax.Array:
        params, shift, ends, scales = theta
        messages = propagate(states, ends, scales)
        return self.cell.step(params, product(messages, params["input"]) + shift, states)

    def scores(
        self,
        params: Params,
        features: jax.Array,
        edges: jax.Array,
        *,
        key: jax.Array | None = None,
        probe: Info | None = None,
        start: jax.Array | None = None,
        trace: int = 0,
    ) -> tuple[jax.Array, Settled]:
        if not isinstance(edges, jax.core.Tracer):
            _check_edges(edges, len(features))
        keys = [None] * 3 if key is None else list(jax.random.split(key, 3))
        features = drop(features, self.dropout, keys[0])
        # What does not depend on the states is done once, outside the solve.
        shift = params["update"]["bias"]
        if self.inputs == "every_step":
            shift = affine(features, params["features"], shift)
            first = jnp.zeros((len(features), self.hidden), shift.dtype)
            if start is not None:
                first = jnp.where(jnp.isfinite(start), start, first)
        else:
            first = jnp.pad(features, ((0, 0), (0, self.hidden - self.input_size)))
        ends = (edges[:, 0], edges[:, 1])
        theta = (params["update"], shift, ends, message_scales(ends, first, self.normalise))
        states, info = solvers.fixed_point(
            self.update,
            theta,
            first,
            method="picard",
            adjoint=learning_rule(self.rule, self.truncation, uniform=self.uniform, key=keys[1]),
            rtol=self.tolerance,
            atol=0.0,
            max_steps=self.steps,
            probe=probe,
            trace=trace,
        )
        return read(params["read"], drop(states, self.dropout, keys[2])), Settled(states, info)

    def loss(
        self,
        params: Params,
        batch: Any,
        *,
        key: jax.Array | None = None,
        probe: Info | None = None,
        solve: Mapping[str, Any] = NO_SETTINGS,
        carry: None = None,
    ) -> tuple[jax.Array, Outcome]:
        def one(features: jax.Array, edges: jax.Array, key: Any, probe: Any, start: Any) -> Any:
            return self.scores(params, features, edges, key=key, probe=probe, start=start)

        found, settled = _each(
            one,
            batch.inputs,
            batch.edges,
            None if key is None else jax.random.split(key, len(batch.inputs)),
            layer_probe(probe, 0),
            solve["start"][0] if "start" in solve else None,
        )
        mean, sums = label_sums(found, batch.labels, batch.mask)
        states = [settled.states] if self.inputs == "every_step" else ()
        return mean, Outcome(sums, stacked([settled.info]), states=states)


def logistic_regression(
    input_size: int, labels: int, *, dropout: float = 0.0
) -> LogisticRegression:
    """Labels nodes by a linear read-out of their own features: what a graph adds is seen beside it.

    Args:
      input_size: features of a node.
      labels: how many.
      dropout: of the features.

    Parameters: `read`.
    """
    _check_labels(labels)

    def scores(params: Params, features: jax.Array, *, key: jax.Array | None = None) -> jax.Array:
        return read(params["read"], drop(features, dropout, key))

    def loss(
        params: Params,
        batch: Any,
        *,
        key: jax.Array | None = None,
        probe: Info | None = None,
        solve: Mapping[str, Any] = NO_SETTINGS,
        carry: None = None,
    ) -> tuple[jax.Array, Outcome]:
        mean, sums = label_sums(scores(params, batch.inputs, key=key), batch.labels, batch.mask)
        return mean, Outcome(sums)

    def init(key: jax.Array) -> Params:
        return {"read": init_read(key, input_size, labels)}

    return LogisticRegression(init, loss, {}, 0, scores)


def propagate(
    states: jax.Array,
    ends: tuple[jax.Array, jax.Array],
    scales: tuple[jax.Array | None, jax.Array | None] = (None, None),
) -> jax.Array:
    """What every node receives along the edges, `[nodes, hidden]`.

    Args:
      states: `[nodes, hidden]`.
      ends: where edges begin and where they end, `[edges]` each.
      scales: of what a node sends and of what it receives, `[nodes, 1]` each; None: one.
    """
    scaled = states if scales[0] is None else scales[0] * states
    total = jax.ops.segment_sum(scaled[ends[0]], ends[1], len(states))
    return total if scales[1] is None else scales[1] * total


def message_scales(
    ends: tuple[jax.Array, jax.Array], states: jax.Array, normalise: Normalise
) -> tuple[jax.Array | None, jax.Array | None]:
    """The scales of `propagate`; a node without edges has the scale one."""

    def scale(nodes: jax.Array) -> jax.Array:
        degrees = jnp.zeros((len(states), 1), states.dtype).at[nodes].add(1)
        return 1 / jnp.maximum(degrees, 1)

    if normalise == "none":
        return None, None
    if normalise == "mean":
        return None, scale(ends[1])
    return jnp.sqrt(scale(ends[0])), jnp.sqrt(scale(ends[1]))


def _each(function: Callable, *batched: Any) -> Any:
    """`jax.vmap`, but a batch of one is not mapped: its loops stay free of selections."""
    if len(batched[0]) > 1:
        return jax.vmap(function)(*batched)
    one = function(*jax.tree.map(lambda leaf: leaf[0], batched))
    return jax.tree.map(lambda leaf: leaf[None], one)


def _check_edges(edges: jax.Array, nodes: int) -> None:
    known = np.asarray(edges)
    bad = np.flatnonzero(np.any((known < 0) | (known >= nodes), axis=1))
    if bad.size:
        raise ValueError(
            f"row {bad[0]} of the edges is {known[bad[0]].tolist()}, but nodes are numbered from 0 "
            f"to {nodes - 1}"
        )


def _check_labels(labels: int) -> None:
    if labels < 2:
        raise ValueError(f"labels must be at least 2, got {labels}")
