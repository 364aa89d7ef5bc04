"""Records of settings: equal and hashed by value, so that eager calls compile once."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import solvers
from solvers import adjoint, linear

FACTORIES = {
    **{name: make for name, make in solvers.METHODS.items()},
    **{f"linear.{name}": make for name, make in linear.SOLVERS.items() if name != "neumann"},
    "linear.neumann": lambda: linear.neumann(3),
    "linear.cascade": lambda: linear.cascade(linear.cg(), linear.bicgstab()),
    "implicit": adjoint.implicit,
    "tangent": adjoint.tangent,
    "bptt": adjoint.bptt,
    "one_step": adjoint.one_step,
    "neumann": lambda: adjoint.neumann(3),
    "rbp": lambda: adjoint.rbp(3, start="uniform"),
    "phantom": lambda: adjoint.phantom(3),
    "sweeps": solvers.Sweeps,
    "bracket": lambda: solvers.bracket(0.0, 1.0),
}


@pytest.mark.parametrize("name", FACTORIES)
def test_equal_settings_are_equal_and_hash_alike(name):
    first, second = FACTORIES[name](), FACTORIES[name]()
    assert first == second
    assert hash(first) == hash(second)
    with pytest.raises(dataclasses.FrozenInstanceError):
        first.name = "other"  # type: ignore[misc]


def test_other_settings_are_not():
    assert solvers.anderson(3) != solvers.anderson(4)
    assert linear.gmres(restart=5) != linear.gmres(restart=6)
    assert adjoint.neumann(2) != adjoint.neumann(3)
    assert solvers.picard() != solvers.anderson()


def test_a_fresh_method_as_static_argument_compiles_once():
    traced = []

    def solve(x, method):
        traced.append(method)
        return solvers.fixed_point(lambda _, x: jnp.cos(x), None, x, method=method)[0]

    run = jax.jit(solve, static_argnames="method")
    for _ in range(3):
        run(jnp.zeros(()), method=solvers.anderson())
    assert len(traced) == 1


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: solvers.anderson(depht=3), "depht"),
        (lambda: solvers.newton(precond=3), "precond must be a function"),
        (lambda: adjoint.implicit(precond=3), "precond must be a function"),
        (lambda: solvers.bracket(0.0, "a"), "upper must be a number"),
        (lambda: solvers.Stage("picard"), "takes a method"),
        (lambda: solvers.Cascade(()), "at least one Stage"),
        (lambda: linear.cascade("gmres"), "records of solvers.linear"),
    ],
)
def test_unknown_and_unfit_settings_are_refused(make, word):
    with pytest.raises(TypeError, match=word):
        make()


def test_callbacks_that_close_over_equal_objects_are_not_confused():
    def solve(settings):
        def f(_, x):
            return jax.pure_callback(
                lambda v: np.float32(0.5 * np.cos(v) * settings["gain"]),
                jax.ShapeDtypeStruct((), jnp.float32),
                x,
            )

        return float(solvers.fixed_point(f, None, jnp.zeros(()), method="picard")[0])

    first = {"gain": 1.0}
    value = solve(first)
    first["gain"] = 0.5
    assert solve({"gain": 1.0}) == pytest.approx(value)
    assert solve(first) != pytest.approx(value)


class Slope:
    """A rule of differentiation that reads an attribute."""

    factor = 1.0

    def map(self):
        @jax.custom_vjp
        def h(w, x):
            return 0.5 * jnp.cos(w * x)

        def forward(w, x):
            return 0.5 * jnp.cos(w * x), None

        h.defvjp(forward, lambda _, c: (self.factor * c, 0 * c))
        return h


def test_a_rule_that_reads_what_has_changed_is_read_again():
    slope = Slope()

    def gradient():
        return jax.grad(
            lambda w: solvers.fixed_point(slope.map(), w, jnp.zeros(()), method="picard")[0]
        )(1.0)

    assert gradient() == 1.0
    slope.factor = 2.0
    assert gradient() == 2.0


PROGRAM = """
import resource, jax, jax.numpy as jnp, solvers

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20

def f(w, x):
    return jnp.tanh(w @ x + 1)

def call():
    w = 0.5 * jnp.eye(8)
    solvers.fixed_point(f, w, jnp.zeros(8), method=solvers.anderson())
    jax.grad(lambda w: solvers.fixed_point(lambda w, x: f(w, x) + c, w, jnp.zeros(8))[0].sum())(w)
    solvers.linear_solve(lambda v: v - 0.5 * (w @ v), jnp.ones(8), solver=solvers.linear.gmres())

c = jnp.ones(8)
for _ in range(5):
    call()
before = resident()
for _ in range(200):
    call()
print(resident() - before)
"""


def test_two_hundred_eager_calls_do_not_make_the_process_grow():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    assert float(done.stdout) < 20
