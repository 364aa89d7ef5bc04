"""Records of settings: equal and hashed by value, so that eager calls compile once."""

from __future__ import annotations

import dataclasses
import gc
import subprocess
import sys
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import solvers
from solvers import adjoint, linear, programs
from solvers.settings import Settings

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

def call(number):
    w = 0.5 * jnp.eye(8)
    solvers.fixed_point(f, w, jnp.zeros(8), method=solvers.anderson())
    g = lambda w, x: (1 - number) * f(w, x) + c
    jax.grad(lambda w: solvers.fixed_point(g, w, jnp.zeros(8))[0].sum())(w)
    a = lambda v: v - number / 3 * (w @ v)
    solvers.linear_solve(a, jnp.ones(8), solver=solvers.linear.gmres())

c = jnp.ones(8)
for step in range(5):
    call(0.1 + 0.01 * step)
before = resident()
for step in range(200):
    call(0.2 + 0.001 * step)
print(resident() - before)
"""


def test_two_hundred_eager_calls_do_not_make_the_process_grow():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    assert float(done.stdout) < 20


def number_of_programs(run):
    """How many programs calls of `run` compile."""
    compiled = []

    def note(event, *_, **__):
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        run()
    finally:
        jax.monitoring.unregister_event_duration_listener(note)
    return len(compiled)


class Shifted:
    def __init__(self, shift):
        self.shift = shift

    def __call__(self, w, x):
        return self.shift * jnp.tanh(w * x) / 3 + (1 - self.shift)


@pytest.mark.parametrize("kind", [float, np.float64, np.float32])
def test_numbers_that_a_map_closes_over_are_no_part_of_its_program(kind):
    def solve(shift, w=0.8):
        f = Shifted(kind(shift))
        x, _ = solvers.fixed_point(f, w, jnp.zeros(2), method="picard")
        y, _ = solvers.linear_solve(lambda v: v + kind(shift) * jnp.roll(v, 1), x, solver="cgne")
        return jnp.sum(y)

    gradient = jax.grad(lambda w, shift: solve(shift, w))
    first = gradient(0.8, 0.15), solve(0.15)
    shifts = [0.2, 0.5, 1 / 3, 0.7]
    assert number_of_programs(lambda: [(gradient(0.8, s), solve(s)) for s in shifts]) == 0
    again = gradient(0.8, 0.15), solve(0.15)
    np.testing.assert_allclose(again, first, rtol=1e-6)
    x = 0.0
    for _ in range(60):
        x = 0.7 * np.tanh(0.8 * x) / 3 + 0.3
    np.testing.assert_allclose(solve(0.7), 2 * x / 1.7, rtol=1e-4)


def test_the_number_in_a_map_stays_what_it_is_where_every_example_fails():
    """Data of failed examples are cleared before a gradient passes; the 3 of `x / 3` is none."""

    def loss(w):
        x, info = solvers.compacted(
            lambda theta, x: theta[0] * x / 3 + theta[1], (w, jnp.full((2, 1), jnp.nan)),
            jnp.zeros((2, 1)), in_axes=(None, 0), method="picard",
            adjoint=solvers.adjoint.implicit(on_failure="zero"),
        )  # fmt: skip
        return jnp.sum(x), info

    slope, info = jax.grad(loss, has_aux=True)(0.5)
    assert not np.any(info.converged)
    assert slope == 0


@dataclasses.dataclass(frozen=True, eq=False)
class Power(Settings):
    exponent: int


def test_programs_used_longest_ago_are_dropped(monkeypatch):
    monkeypatch.setattr(programs, "MOST_PROGRAMS", 2)
    run = programs.compiled(lambda spec, x: x**spec.exponent)
    specs = [Power(n) for n in range(4)]
    alive = [weakref.ref(spec) for spec in specs]
    while specs:
        run(specs.pop(0), jnp.ones(3))
    gc.collect()
    assert [spec() is not None for spec in alive] == [False, False, True, True]
    assert number_of_programs(lambda: run(Power(3), jnp.ones(3))) == 0
    assert number_of_programs(lambda: run(Power(0), jnp.ones(3))) == 1


def test_a_damping_may_be_traced():
    def solve(damping, theta=0.8):
        method = solvers.picard(damping)
        return solvers.fixed_point(lambda t, x: jnp.cos(t * x), theta, jnp.ones(2), method=method)

    dampings = jnp.array([0.5, 1.0])
    for found in (jax.jit(jax.vmap(solve))(dampings), jax.vmap(jax.jit(solve))(dampings)):
        for row, damping in enumerate((0.5, 1.0)):
            expected, info = solve(damping)
            np.testing.assert_allclose(found[0][row], expected, rtol=1e-6)
            assert found[1].steps[row] == info.steps
