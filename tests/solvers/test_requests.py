"""What users ask of a solve beside its value: roots, given solutions, aux, records, errors."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

import solvers
from solvers import Status, adjoint, linear
from tests.solvers.problems import tanh_gradient, tanh_map, tanh_solution, tanh_theta


def rosenbrock_like(theta, x):
    """A square system with one root, `(theta, theta^2)`, and a Jacobian far from the identity."""
    return {"a": 10 * (x["b"] - x["a"] ** 2), "b": 3 * (theta - x["a"])}


def test_a_root_of_a_tree_and_its_gradient():
    def loss(theta):
        start = {"a": jnp.float32(-1.2), "b": jnp.float32(1.0)}
        x, info = solvers.root(rosenbrock_like, theta, start)
        return x["a"] + 2 * x["b"], (x, info)

    (_, (x, info)), slope = jax.jit(jax.value_and_grad(loss, has_aux=True))(1.5)
    assert info.converged
    np.testing.assert_allclose([x["a"], x["b"]], [1.5, 2.25], rtol=1e-4)
    np.testing.assert_allclose(slope, 1 + 2 * 2 * 1.5, rtol=1e-3)


@pytest.mark.parametrize(
    ("g", "ends"),
    [
        (lambda a, x: x**3 - a, (0.0, 4.0)),
        (lambda a, x: jnp.exp(x) - 1e3 * a, (-50.0, 20.0)),
        (lambda a, x: jnp.where(x < a, -1e-3, 1e3 * (x - a)), (-7.0, 9.0)),
    ],
    ids=["cube", "steep", "one-sided"],
)
def test_a_bracket_finds_what_scipy_finds(g, ends):
    with jax.enable_x64(True):
        x, info = solvers.root(g, 2.0, jnp.float64(1.0), method=solvers.bracket(*ends))
        expected = scipy.optimize.brentq(lambda x: float(g(2.0, x)), *ends, xtol=1e-14)
        np.testing.assert_allclose(x, expected, rtol=1e-8, atol=1e-12)
        assert info.steps < 110  # twice bisection


def test_a_bracket_without_a_change_of_sign_says_so():
    _, info = solvers.root(
        lambda a, x: x**2 + a, 1.0, jnp.float32(0.5), method=solvers.bracket(-1.0, 2.0)
    )
    assert info.status == Status.BREAKDOWN


@pytest.mark.parametrize("how", [adjoint.implicit(), adjoint.tangent(), adjoint.neumann(60)])
def test_a_solution_found_elsewhere_has_the_derivative_of_a_solution(how):
    weight, bias = tanh_theta()
    found = tanh_solution(weight, bias)
    cotangent = np.cos(np.arange(bias.size))

    def loss(theta):
        x, info = solvers.implicit_diff(tanh_map, theta, jnp.float32(found), adjoint=how)
        return jnp.vdot(jnp.float32(cotangent), x), info

    theta = jnp.float32(weight), jnp.float32(bias)
    gradient, info = jax.grad(loss, has_aux=True)(theta)
    assert info.converged
    for got, want in zip(gradient, tanh_gradient(weight, bias, cotangent), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)


def test_a_root_of_truncated_iterations_is_judged_as_any_root():
    """`g` has units of its own: small beside `x` is not small beside `g(x0)`."""
    far, near = (
        solvers.root(
            lambda a, x: 1e-3 * (x - jnp.cos(a * x)), 1.0, jnp.float32(5.0),
            method=solvers.picard(damping), adjoint=adjoint.tbptt(3), max_steps=200, rtol=1e-3,
        )[1]
        for damping in (1.0, 800.0)
    )  # fmt: skip
    assert not far.converged
    assert far.residual > 0.5
    assert near.converged


def test_a_norm_of_ones_own_judges_roots_and_truncated_iterations_too():
    def f(_, x):
        return jnp.array([0.5, 0.99]) * x + 1

    settings = {"rtol": 1e-3, "norm": lambda x: jnp.abs(x[0]), "method": "picard"}
    for how in ("implicit", adjoint.tbptt(4)):
        _, info = solvers.fixed_point(f, None, jnp.zeros(2), adjoint=how, **settings)
        assert info.converged
        assert info.residual <= 1e-3
        # The first row of g is 10,000 times smaller than the second.
        _, info = solvers.root(
            lambda _, x: jnp.array([1e-4, 1.0]) * (x - f(None, x)), None, jnp.zeros(2),
            adjoint=how, **{**settings, "method": solvers.picard(1e-2)}, max_steps=40,
        )  # fmt: skip
        assert not info.converged
        assert info.residual > 0.9


def test_a_given_solution_that_is_none_is_called_so():
    _, info = solvers.implicit_diff(lambda a, x: jnp.cos(a * x), 1.0, jnp.float32(0.2))
    assert not info.converged
    with pytest.raises(solvers.SolveError, match="given solutions"):
        solvers.implicit_diff(lambda a, x: jnp.cos(a * x), 1.0, jnp.float32(0.2), throw=True)


def test_a_given_solution_reports_its_backward_solve_to_the_probe():
    def loss(a, probe):
        return solvers.implicit_diff(lambda a, x: jnp.cos(a * x), a, 0.7390851, probe=probe)[0]

    _, seen = jax.grad(loss, (0, 1))(1.0, solvers.adjoint_probe())
    assert solvers.read_probe(seen).converged
    assert seen.steps > 0


def diverging(_, x):
    return 3 * x + 1


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_throw_raises_out_of_jit_and_vmap_and_says_which_and_what(wrap):
    def solve(c):
        return solvers.fixed_point(
            lambda _, x: c * x + 1, None, jnp.zeros(()), method="picard", throw=True
        )[0]

    gains = jnp.array([0.5, 3.0, 0.1])
    with pytest.raises(Exception, match="did not converge") as caught:
        jax.block_until_ready(wrap(jax.vmap(solve))(gains))
    text = str(caught.value)
    assert "DIVERGED" in text
    assert "index 1" in text
    assert "Use newton or auto" in text


@pytest.mark.parametrize(
    ("kind", "mode"), [("implicit", jax.grad), ("tangent", jax.grad), ("tangent", jax.jacfwd)]
)
def test_throw_raises_from_the_solve_of_a_derivative(kind, mode):
    def loss(w):
        x, _ = solvers.fixed_point(
            lambda w, x: jnp.tanh(w @ x),
            w,
            jnp.ones(3),
            rtol=1e-2,
            adjoint=getattr(adjoint, kind)(linear.bicgstab(max_steps=0)),
            throw=True,
        )
        return jnp.sum(x)

    with pytest.raises(Exception, match=r"(backward solves|of a derivative) did not converge"):
        jax.block_until_ready(jax.jit(mode(loss))(0.5 * jnp.eye(3)))


def test_throw_raises_from_the_gradient_of_a_linear_solve():
    def loss(b, scale):
        # A start at the solution spares the solve, but not that of the gradient, its steps.
        x, _ = solvers.linear_solve(
            lambda v: scale * v, b, solver=linear.gmres(max_steps=0), x0=b / 3, throw=True
        )
        return jnp.sum(jnp.sin(x))

    assert float(loss(jnp.ones(3), 3.0)) > 0
    with pytest.raises(Exception, match="of a derivative did not converge"):
        jax.block_until_ready(jax.grad(loss)(jnp.ones(3), 3.0))


@pytest.mark.parametrize("how", [adjoint.one_step(), adjoint.neumann(2), adjoint.rbp(3)])
def test_throw_takes_a_truncated_series_as_it_was_asked_for(how):
    def loss(w):
        x, _ = solvers.fixed_point(
            lambda w, x: 0.5 * jnp.cos(w * x), w, jnp.zeros(()), adjoint=how, throw=True
        )
        return x

    assert np.isfinite(jax.grad(loss)(1.0))


def test_throw_raises_also_where_only_the_info_is_used():
    run = jax.jit(
        lambda x: solvers.fixed_point(diverging, None, x, method="picard", throw=True)[1].steps
    )
    with pytest.raises(Exception, match="did not converge"):
        jax.block_until_ready(run(jnp.zeros(())))


def test_throw_is_silent_where_all_is_well():
    value, info = jax.jit(
        lambda a: solvers.fixed_point(lambda a, x: jnp.cos(a * x), a, jnp.zeros(()), throw=True)
    )(1.0)
    assert info.converged
    np.testing.assert_allclose(value, 0.7390851, rtol=1e-4)


def test_auxiliary_results_come_from_the_solution_and_are_differentiated():
    def loss(a):
        (x, aux), _ = solvers.fixed_point(
            lambda a, x: (jnp.cos(a * x), {"square": a * x**2}), a, jnp.zeros(()), has_aux=True
        )
        return aux["square"], x

    (square, x), slope = jax.value_and_grad(loss, has_aux=True)(1.0)
    np.testing.assert_allclose(square, x**2, rtol=1e-6)
    sine = np.sin(float(x))
    dx = -float(x) * sine / (1 + sine)  # dx/da of x = cos(a x) at a = 1
    np.testing.assert_allclose(slope, float(x) ** 2 + 2 * float(x) * dx, rtol=1e-3)


def test_leaves_of_theta_that_are_no_arrays_reach_the_map():
    def f(theta, x):
        assert theta["name"] == "cosine"
        assert theta["flag"] is True
        return getattr(jnp, "cos" if theta["flag"] else "sin")(theta["a"] * x)

    x, info = solvers.fixed_point(f, {"name": "cosine", "flag": True, "a": 1.0}, jnp.zeros(()))
    assert info.converged
    np.testing.assert_allclose(x, 0.7390851, rtol=1e-4)


def test_batches_and_reports_take_such_leaves_too():
    def f(theta, x):
        return 0.5 * getattr(jnp, theta["name"])(x) + theta["c"]

    c = jnp.array([0.1, 0.2])
    x, info = solvers.compacted(f, {"name": "tanh", "c": c}, jnp.zeros((2, 1)), method="picard")
    assert np.all(info.converged)
    np.testing.assert_allclose(x[:, 0], 0.5 * np.tanh(x[:, 0]) + c, atol=1e-4)
    single = {"name": "tanh", "c": c[0]}
    winner, _ = solvers.race(f, single, jnp.zeros((2, 1)), method="picard")
    np.testing.assert_allclose(winner, x[0], rtol=1e-4)
    assert "CONVERGED" in solvers.diagnose.report(f, single, jnp.zeros(1))


def test_iterates_on_the_way_can_be_recorded_and_differentiated():
    def f(a, x):
        return 0.5 * jnp.cos(a * x) + 0.1

    def loss(a):
        _, info = solvers.fixed_point(f, a, jnp.zeros(()), method="picard", record=(0, 2, 500))
        return jnp.sum(info.iterates), info.iterates

    slope, states = jax.grad(loss, has_aux=True)(1.0)
    path = [0.0]
    for _ in range(60):
        path.append(0.5 * np.cos(path[-1]) + 0.1)
    # Each after one more evaluation; beyond the end of the solve, the last one.
    np.testing.assert_allclose(states, [path[1], path[3], path[-1]], rtol=1e-4)
    through = sum(-0.5 * x * np.sin(x) for x in (path[0], path[2], path[-1]))
    np.testing.assert_allclose(slope, through, rtol=1e-3)


def test_a_norm_of_ones_own_decides():
    def f(_, x):
        return jnp.array([0.5, 0.99]) * x + 1

    start = jnp.zeros(2)
    _, strict = solvers.fixed_point(f, None, start, method="picard", rtol=1e-3, max_steps=2000)
    _, first = solvers.fixed_point(
        f, None, start, method="picard", rtol=1e-3, norm=lambda x: jnp.abs(x[0])
    )
    assert first.converged
    assert first.steps < 15 < strict.steps


def test_patience_and_blowup_end_a_solve_when_they_say():
    _, stalled = solvers.fixed_point(
        lambda _, x: -x + 1, None, jnp.zeros(()), method="picard", patience=5
    )
    assert stalled.status == Status.STALLED
    assert stalled.steps <= 8
    _, diverged = solvers.fixed_point(diverging, None, jnp.zeros(()), method="picard", blowup=10.0)
    assert diverged.status == Status.DIVERGED
    assert diverged.steps <= 5


@pytest.mark.parametrize("make", [adjoint.bptt, lambda **kw: adjoint.tbptt(20, **kw)])
def test_checkpointed_unrolling_gives_the_same_gradient_and_keeps_less(make):
    def loss(w, checkpoint):
        x, _ = solvers.fixed_point(
            lambda w, x: jnp.tanh(w @ x + 1),
            w,
            jnp.zeros(32),
            method="picard",
            max_steps=64,
            adjoint=make(checkpoint=checkpoint),
            rtol=0.0,
            patience=None,
        )
        return jnp.sum(x)

    w = 0.5 * jnp.eye(32)
    plain, saving = (jax.jit(jax.grad(lambda w, c=c: loss(w, c))) for c in (None, 8))
    np.testing.assert_allclose(plain(w), saving(w), rtol=1e-5, atol=1e-6)
    if make is adjoint.bptt:
        sizes = [f.lower(w).compile().memory_analysis().temp_size_in_bytes for f in (plain, saving)]
        assert sizes[1] < 0.6 * sizes[0]


def test_the_gradient_through_iterations_is_that_of_the_iterations():
    """`bptt` of `picard`: the derivative of a few steps, not of the solution."""

    def unrolled(w):
        x = jnp.zeros(3)
        for _ in range(4):
            x = jnp.tanh(w @ x + 1)
        return jnp.sum(x)

    def loss(w):
        x, _ = solvers.fixed_point(
            lambda w, x: jnp.tanh(w @ x + 1),
            w,
            jnp.zeros(3),
            method="picard",
            max_steps=4,
            adjoint="bptt",
            rtol=0.0,
        )
        return jnp.sum(x)

    w = 0.8 * jnp.eye(3) + 0.1
    np.testing.assert_allclose(jax.grad(loss)(w), jax.grad(unrolled)(w), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("method", ["anderson", "broyden", "auto"])
def test_coefficients_chosen_on_the_way_are_constants_of_bptt(method):
    """Of a linear map the iterations with these coefficients end at its derivative."""
    matrix = jnp.array([[0.3, 0.2], [-0.1, 0.5]])

    def loss(b):
        x, _ = solvers.fixed_point(
            lambda b, x: matrix @ x + b,
            b,
            jnp.zeros(2),
            method=method,
            adjoint="bptt",
            max_steps=12,
            rtol=1e-6,
        )
        return jnp.vdot(jnp.array([1.0, -2.0]), x)

    expected = np.linalg.solve(np.eye(2) - np.asarray(matrix).T, [1.0, -2.0])
    np.testing.assert_allclose(jax.grad(loss)(jnp.ones(2)), expected, rtol=1e-2)


@pytest.mark.parametrize("algorithm", ["lu", "qr"])
def test_dense_solves_trees(algorithm):
    matrix = np.random.default_rng(0).standard_normal((4, 4)) + 3 * np.eye(4)
    b = {"a": jnp.arange(3.0), "b": jnp.float32(2.0)}

    def matvec(v):
        image = jnp.float32(matrix) @ jnp.append(v["a"], v["b"])
        return {"a": image[:3], "b": image[3]}

    x, info = linear.dense(algorithm)(matvec, b)
    assert info.converged
    expected = np.linalg.solve(matrix, [0.0, 1.0, 2.0, 2.0])
    np.testing.assert_allclose(np.append(x["a"], x["b"]), expected, rtol=1e-4, atol=1e-5)


def test_cg_solves_positive_definite_systems_and_reports_the_others():
    factor = np.random.default_rng(1).standard_normal((6, 6))
    spd = jnp.float32(factor @ factor.T + np.eye(6))
    b = jnp.arange(6.0)
    x, info = linear.cg()(lambda v: spd @ v, b)
    assert info.converged
    np.testing.assert_allclose(x, np.linalg.solve(spd, b), rtol=1e-3, atol=1e-4)
    x, info = linear.cg()(lambda v: 5 * v - spd @ v, b)
    residual = np.linalg.norm(b - 5 * x + spd @ x) / np.linalg.norm(b)
    assert bool(info.converged) == bool(residual < 3e-5)


@pytest.mark.parametrize("shape", [(7, 3), (3, 7)])
def test_lsqr_takes_rectangular_systems(shape):
    matrix = np.random.default_rng(2).standard_normal(shape)
    b, start = np.arange(1.0, 1 + shape[0]), 0.1 * np.arange(shape[1])

    def solve(matrix, b):
        x, info = solvers.linear_solve(
            lambda v: matrix @ v, b, solver=linear.lsqr(), x0=jnp.asarray(start)
        )
        return jnp.sum(jnp.sin(x)), (x, info)

    with jax.enable_x64(True):
        run = jax.value_and_grad(solve, (0, 1), has_aux=True)
        (_, (x, info)), (by_matrix, by_b) = run(jnp.asarray(matrix), jnp.asarray(b))
        assert info.converged
        nearest = start + np.linalg.lstsq(matrix, b - matrix @ start, rcond=None)[0]
        np.testing.assert_allclose(x, nearest, rtol=1e-6, atol=1e-9)

        def dense(m, b):
            if shape[0] > shape[1]:
                return jnp.sum(jnp.sin(jnp.linalg.solve(m.T @ m, m.T @ b)))
            return jnp.sum(jnp.sin(start + m.T @ jnp.linalg.solve(m @ m.T, b - m @ start)))

        oracle = jax.grad(dense, (0, 1))(jnp.asarray(matrix), jnp.asarray(b))
        np.testing.assert_allclose(by_matrix, oracle[0], rtol=1e-5, atol=1e-8)
        np.testing.assert_allclose(by_b, oracle[1], rtol=1e-5, atol=1e-8)


def test_damped_least_squares_has_one_solution_and_the_whole_gradient():
    matrix, b, damp = np.array([[2.0, 1.0], [0.0, 0.5]]), np.array([1.0, -1.0]), 0.7

    def solve(matrix, x0):
        solver = linear.lsqr(damp=damp)
        return solvers.linear_solve(lambda v: matrix @ v, jnp.asarray(b), solver=solver, x0=x0)[0]

    with jax.enable_x64(True):
        m = jnp.asarray(matrix)
        expected = np.linalg.solve(matrix.T @ matrix + damp**2 * np.eye(2), matrix.T @ b)
        for start in (None, jnp.array([5.0, -3.0])):
            np.testing.assert_allclose(solve(m, start), expected, rtol=1e-6)
        got = jax.grad(lambda m: jnp.sum(solve(m, None) ** 2))(m)
        want = jax.grad(
            lambda m: jnp.sum(jnp.linalg.solve(m.T @ m + damp**2 * jnp.eye(2), m.T @ b) ** 2)
        )(m)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-9)


def test_several_right_hand_sides_share_one_linearisation():
    matrix = jnp.float32(np.random.default_rng(3).standard_normal((5, 5)) + 4 * np.eye(5))
    rhs = jnp.float32(np.random.default_rng(4).standard_normal((3, 5)))
    _, push = jax.linearize(lambda x: matrix @ x, rhs[0])
    x, info = jax.vmap(lambda b: solvers.linear_solve(push, b))(rhs)
    assert np.all(info.converged)
    np.testing.assert_allclose(x, np.linalg.solve(matrix, rhs.T).T, rtol=1e-3, atol=1e-4)


def test_the_inverse_of_broyden_preconditions_its_backward_solve():
    weight, bias = tanh_theta(radius=0.98, size=24)
    theta = jnp.float32(weight), jnp.float32(bias)
    cotangent = np.cos(np.arange(24))

    def linear_map(theta, x):
        return theta[0] @ x + theta[1]

    def run(how):
        def loss(theta, probe):
            x, _ = solvers.fixed_point(
                linear_map,
                theta,
                jnp.zeros(24),
                method=solvers.broyden(40),
                adjoint=how,
                probe=probe,
            )
            return jnp.vdot(jnp.float32(cotangent), x)

        return jax.jit(jax.grad(loss, (0, 1)))(theta, solvers.adjoint_probe())

    _, plain = run(adjoint.implicit())
    gradient, helped = run(adjoint.implicit(precond="forward"))
    expected = np.linalg.solve(np.eye(24) - weight.T, cotangent)
    np.testing.assert_allclose(gradient[1], expected, rtol=5e-3, atol=5e-3)
    assert helped.steps < plain.steps
    with pytest.raises(ValueError, match="broyden"):
        solvers.fixed_point(tanh_map, theta, jnp.zeros(24), adjoint=adjoint.shine())
