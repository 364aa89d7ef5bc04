"""The graph network: a dense oracle for states and gradients, and what every model must hold to."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import solvers
from implicit_rnn.experiments.graph.graphs import GraphBatch, checked_graph
from implicit_rnn.models import graph_network, logistic_regression
from implicit_rnn.sequence.equilibrium import RULES
from tests.implicit_rnn.models.checks import assert_learns, begin, log_softmax, sigmoid

NODES, FEATURES, HIDDEN, LABELS = 6, 2, 3, 3
# Node 5 is isolated, node 2 has a self-loop, and the edge from 0 to 1 is there twice.
EDGES = np.array([[0, 1], [0, 1], [1, 0], [2, 2], [3, 2], [2, 4], [4, 3], [1, 4], [4, 1]])
SENT = np.array([2, 2, 2, 1, 2])  # edges that begin at nodes 0 to 4
RECEIVED = np.array([1, 3, 2, 1, 2])  # and that end there


def adjacency(normalise):
    """What node v hears of node u, `[v, u]`."""
    dense = np.zeros((NODES, NODES))
    for sender, receiver in EDGES:
        dense[receiver, sender] += 1
    if normalise == "mean":
        dense[:5] /= RECEIVED[:, None]
    if normalise == "symmetric":
        dense[:5] /= np.sqrt(RECEIVED)[:, None]
        dense[:, :5] /= np.sqrt(SENT)
    return dense


def step_by_hand(params, features, dense, h, lib=np, squash=sigmoid):
    """One update of all nodes by a dense adjacency, for numpy or for jax."""
    update, d = params["update"], HIDDEN
    given = (dense @ h) @ update["input"] + update["bias"] + features @ params["features"]
    own = h @ update["recurrent"]
    z, r = squash(given[:, :d] + own[:, :d]), squash(given[:, d : 2 * d] + own[:, d : 2 * d])
    own = r * (own[:, 2 * d :] + update["candidate_bias"])
    return (1 - z) * h + z * lib.tanh(given[:, 2 * d :] + own)


def model_of(**options):
    settings = {"tolerance": 1e-14, "steps": 400, "normalise": "symmetric"} | options
    return graph_network(FEATURES, LABELS, HIDDEN, **settings)


def parameters(model, scale=0.5):
    """Some for which the iteration contracts, with no bias zero."""
    params = begin(model)
    return params | {"update": jax.tree.map(lambda leaf: scale * leaf, params["update"])}


def example():
    rng = np.random.default_rng(1)
    return GraphBatch(
        jnp.asarray(rng.normal(size=(1, NODES, FEATURES))),
        jnp.asarray(EDGES[None]),
        jnp.array([[0, 2, 1, 1, 0, 2]]),
        jnp.array([[True, True, False, True, True, True]]),
    )


def plain(tree):
    return jax.tree.map(np.asarray, tree)


@pytest.mark.parametrize("normalise", ["none", "mean", "symmetric"])
def test_states_and_loss_are_those_of_a_dense_adjacency(normalise):
    model = model_of(normalise=normalise)
    with jax.enable_x64(True):
        params, batch = parameters(model), example()
        loss, outcome = jax.jit(model.loss)(params, batch)
        assert outcome.info.converged.all()
        params, batch, outcome = plain(params), plain(batch), plain(outcome)
    h = np.zeros((NODES, HIDDEN))
    for _ in range(400):
        h = step_by_hand(params, batch.inputs[0], adjacency(normalise), h)
    np.testing.assert_allclose(outcome.states[0][0], h, rtol=1e-9, atol=1e-12)
    scores = h @ params["read"]["weights"] + params["read"]["bias"]
    mask, right = batch.mask[0], batch.labels[0]
    terms = -log_softmax(scores)[np.arange(NODES), right]
    np.testing.assert_allclose(loss, terms[mask].mean(), rtol=1e-9)
    assert outcome.sums["count"] == 5
    assert outcome.sums["error"] == np.sum((scores.argmax(axis=1) != right) & mask)


@pytest.fixture(scope="module")
def dense_gradient():
    """The implicit gradient by dense matrices, and what Proposition 2 needs of them."""
    with jax.enable_x64(True):
        model = model_of()
        params, batch = parameters(model), example()
        dense = adjacency("symmetric")
        flat, restore = ravel_pytree(params)

        def step(flat, h):
            h = h.reshape(NODES, HIDDEN)
            features = batch.inputs[0]
            return step_by_hand(restore(flat), features, dense, h, jnp, jax.nn.sigmoid).ravel()

        def loss(flat, h):
            read = restore(flat)["read"]
            scores = h.reshape(NODES, HIDDEN) @ read["weights"] + read["bias"]
            terms = -jax.nn.log_softmax(scores)[jnp.arange(NODES), batch.labels[0]]
            return jnp.sum(jnp.where(batch.mask[0], terms, 0)) / 5

        h = jax.jit(step)(flat, jnp.zeros(NODES * HIDDEN))
        for _ in range(400):
            h = jax.jit(step)(flat, h)
        by_params, by_state = plain(jax.jit(jax.jacrev(step, (0, 1)))(flat, h))
        direct, cotangent = plain(jax.jit(jax.grad(loss, (0, 1)))(flat, h))
    inverse = np.linalg.inv(np.eye(len(by_state)) - by_state)
    exact = direct + cotangent @ inverse @ by_params
    norms = [np.linalg.norm(part, 2) for part in (inverse, by_state, cotangent, by_params)]
    return {"gradient": exact, "norms": norms}


def gradient_by(rule, truncation):
    model = model_of(rule=rule, truncation=truncation)
    with jax.enable_x64(True):
        run = jax.jit(jax.grad(lambda params, batch: model.loss(params, batch)[0]))
        return np.asarray(ravel_pytree(run(parameters(model), example()))[0])


@pytest.mark.parametrize("rule", RULES)
def test_gradient_of_every_rule_is_the_implicit_one(dense_gradient, rule):
    steps = 120 if rule in ("tbptt", "rbp", "neumann") else 40
    exact = dense_gradient["gradient"]
    error = np.linalg.norm(gradient_by(rule, steps) - exact)
    assert error <= 1e-8 * np.linalg.norm(exact)


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule != "bptt"])
def test_a_truncated_gradient_keeps_to_proposition_2(dense_gradient, rule):
    terms = 4  # of the series; by Propositions 1 and 3 the other rules take a step more
    inverse, jacobian, cotangent, by_params = dense_gradient["norms"]
    assert jacobian < 1
    bound = by_params * inverse * jacobian**terms * cotangent
    error = gradient_by(rule, terms - (rule == "neumann")) - dense_gradient["gradient"]
    assert 1e-4 * bound < np.linalg.norm(error) < bound


def test_order_of_nodes_and_edges_does_not_matter():
    model = model_of(tolerance=1e-6)
    params, batch = parameters(model), example()
    run = jax.jit(lambda inputs, edges: model.scores(params, inputs, edges)[0])
    order = np.random.default_rng(3).permutation(NODES)
    renumbered = np.argsort(order)[EDGES][::-1]
    np.testing.assert_allclose(
        run(batch.inputs[0][order], renumbered), run(batch.inputs[0], EDGES)[order], atol=1e-5
    )


def test_only_features_at_every_step_reach_the_equilibrium():
    differences = {}
    for inputs in ("every_step", "initial"):
        model = model_of(tolerance=1e-7, inputs=inputs)
        params = parameters(model)
        run = jax.jit(lambda features: model.scores(params, features, EDGES)[1])  # noqa: B023
        features = example().inputs[0].astype(jnp.float32)
        one, other = run(features), run(2 - features)
        assert one.info.steps > 1
        differences[inputs] = float(jnp.max(jnp.abs(one.states - other.states)))
    assert differences["every_step"] > 0.1
    assert differences["initial"] < 1e-5


def test_nodes_without_edges_stand_alone_and_a_graph_may_have_none():
    model = model_of(tolerance=1e-6)
    params, features = parameters(model), example().inputs[0]
    alone, _ = jax.jit(lambda x: model.scores(params, x, np.zeros((0, 2), np.int32)))(features)
    together, _ = jax.jit(lambda x: model.scores(params, x, EDGES))(features)
    np.testing.assert_allclose(together[5], alone[5], atol=1e-5)
    assert jnp.abs(together[0] - alone[0]).max() > 1e-2


def test_a_batch_of_graphs_is_each_of_them_and_solves_are_reported():
    model = model_of(tolerance=1e-5, rule="neumann", truncation=7)
    batch, params = example(), parameters(model)
    other = batch._replace(inputs=2 - batch.inputs, mask=~batch.mask)
    both = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), batch, other)

    def loss(params, batch, probe):
        return model.loss(params, batch, probe=probe)

    run = jax.jit(jax.value_and_grad(loss, (0, 2), has_aux=True))
    (_, outcome), (gradient, seen) = run(params, both, solvers.adjoint_probe((1, 2)))
    sums, total = [], jax.tree.map(jnp.zeros_like, gradient)
    for number, one in enumerate((batch, other)):
        (_, own), (part, report) = run(params, one, solvers.adjoint_probe((1, 1)))
        share = own.sums["count"] / outcome.sums["count"]
        total = jax.tree.map(lambda a, b: a + share * b, total, part)  # noqa: B023
        sums.append(own.sums)
        assert own.info.steps[0, 0] == outcome.info.steps[0, number]
        assert report.steps[0, 0] == seen.steps[0, number] == 7
    chex.assert_trees_all_close(outcome.sums, jax.tree.map(jnp.add, *sums), rtol=1e-4)
    chex.assert_trees_all_close(gradient, total, rtol=1e-3, atol=1e-5)


def test_a_warm_start_saves_steps_and_changes_nothing():
    model = model_of(tolerance=1e-5)
    params, batch = parameters(model), example()
    run = jax.jit(lambda start: model.loss(params, batch, solve={"start": [start]}))
    cold = jnp.full((1, NODES, HIDDEN), jnp.nan)
    loss, outcome = run(cold)
    again, warm = run(outcome.states[0])
    assert warm.info.steps[0, 0] < outcome.info.steps[0, 0]
    np.testing.assert_allclose(again, loss, rtol=1e-4)
    # Where features are the initial state there is no other one to begin from.
    other = model_of(inputs="initial")
    told = jax.eval_shape(lambda params: other.loss(params, batch)[1], parameters(other))
    assert told.states == ()


@pytest.mark.parametrize("rule", ["neumann", "bptt"])
def test_a_few_updates_lower_the_loss(rule):
    batch = jax.tree.map(
        lambda leaf: leaf.astype(jnp.float32) if leaf.dtype == jnp.float64 else leaf, example()
    )
    assert_learns(graph_network(FEATURES, LABELS, 8, rule=rule, steps=20), batch)


def test_logistic_regression_reads_features_alone():
    model = logistic_regression(FEATURES, LABELS)
    params, batch = begin(model), example()
    loss, outcome = model.loss(params, batch)
    scores = np.asarray(batch.inputs[0]) @ params["read"]["weights"] + params["read"]["bias"]
    terms = -log_softmax(scores)[np.arange(NODES), batch.labels[0]]
    np.testing.assert_allclose(loss, terms[np.asarray(batch.mask[0])].mean(), rtol=1e-5)
    assert outcome.info is None
    assert_learns(model, batch)


def test_bad_arguments_are_named():
    for wrong, message in (
        ({"rule": "hebb"}, "unknown rule 'hebb'"),
        ({"inputs": "never"}, '"every_step" or "initial", got \'never\''),
        ({"normalise": "max"}, '"none", "mean" or "symmetric", got \'max\''),
        ({"coupling": 0.0}, "coupling must be positive"),
        ({"rule": "neumann", "uniform": True}, 'only "rbp" starts from draws'),
    ):
        with pytest.raises(ValueError, match=message):
            model_of(**wrong)
    with pytest.raises(ValueError, match="4 features do not fit into an initial state of 3"):
        graph_network(4, LABELS, 3, inputs="initial")
    model, features = model_of(), example().inputs[0]
    edges = np.concatenate([EDGES, [[0, NODES]]])
    message = rf"row {len(EDGES)} of the edges is \[0, {NODES}\], but .* 0 to {NODES - 1}"
    with pytest.raises(ValueError, match=message):
        model.scores(parameters(model), features, edges)
    with pytest.raises(ValueError, match="labels must be at least 2"):
        logistic_regression(FEATURES, 1)


def test_first_parameters_are_within_their_bounds_and_settle_on_a_star():
    # The most lopsided graph there is: one node in the middle of all others.
    spokes = np.stack([np.zeros(40, int), np.arange(1, 41)], axis=1)
    graph = checked_graph(np.eye(41), spokes, np.zeros(41, int), 2)
    model = graph_network(41, 2, 8, rule="rbp", uniform=True)
    params = jax.jit(model.init)(jax.random.key(0))
    for name, bound in model.bounds["update"].items():
        for block in np.split(np.asarray(params["update"][name]), 3, axis=1):
            assert np.linalg.norm(block, 2) <= bound * (1 + 1e-5)
    _, settled = jax.jit(model.scores)(params, graph.inputs, graph.edges, key=jax.random.key(1))
    assert settled.info.converged
