"""Compiled programs: they lower for accelerators, and memory does not grow with iterations."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

import solvers
from solvers import adjoint, bands, linear
from solvers.space import Space
from tests.solvers.problems import tanh_map


def value(method="auto", how="implicit", **settings):
    def run(weight, bias):
        x, info = solvers.fixed_point(
            tanh_map, (weight, bias), jnp.zeros_like(bias), method=method, adjoint=how, **settings
        )
        return jnp.sum(x), info

    return run


def gradient(*args, **settings):
    return jax.grad(value(*args, **settings), argnums=(0, 1), has_aux=True)


def compacted(weight, bias):
    x, info = solvers.compacted(
        tanh_map, (weight, bias), jnp.zeros_like(bias), in_axes=(None, 0), levels=2
    )
    return jnp.sum(x), info


def linear_program(name):
    solver = linear.neumann(5) if name == "neumann" else linear.SOLVERS[name]()
    return lambda weight, b: solvers.linear_solve(lambda v: v - weight @ v, b, solver=solver)


PROGRAMS = {
    **{f"solve_{name}": (value(name), ()) for name in solvers.METHODS},
    **{f"linear_{name}": (linear_program(name), ()) for name in linear.SOLVERS},
    "grad_implicit": (gradient(), ()),
    "grad_neumann": (gradient("anderson", adjoint.neumann(3)), ()),
    "grad_cg_rbp": (gradient("picard", adjoint.cg_rbp(3)), ()),
    "grad_tbptt": (gradient("picard", adjoint.tbptt(3)), ()),
    "grad_tangent": (gradient("newton", "tangent"), ()),
    "vmap_grad": (jax.vmap(gradient("newton"), in_axes=(None, 0)), (4,)),
    "compacted_grad": (jax.grad(compacted, has_aux=True), (4,)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_lowers_for_cuda_and_tpu(name):
    program, batch = PROGRAMS[name]
    weight = jax.ShapeDtypeStruct((6, 6), jnp.float32)
    bias = jax.ShapeDtypeStruct((*batch, 6), jnp.float32)
    exported = export.export(jax.jit(program), platforms=["cuda", "tpu"])(weight, bias)
    assert exported.platforms == ("cuda", "tpu")
    assert "stablehlo.while" in exported.mlir_module() or name == "linear_dense"


DISTANCE = "stablehlo.shift_left"  # of the rows that a level of the reduction couples


@pytest.mark.parametrize("batched", [False, True])
def test_band_solve_without_kernels_is_cyclic_reduction_on_accelerators(batched, monkeypatch):
    monkeypatch.setenv("SOLVERS_KERNELS", "0")
    solve = jax.vmap(bands.tridiagonal_solve) if batched else bands.tridiagonal_solve
    shape = jax.ShapeDtypeStruct((4, 16, 3) if batched else (16, 3), jnp.float32)
    program = jax.jit(jax.grad(lambda *a: jnp.sum(solve(*a)), argnums=(0, 3)))
    for platform in ("cuda", "tpu"):
        text = export.export(program, platforms=[platform])(*[shape] * 4).mlir_module()
        assert DISTANCE in text
    assert DISTANCE not in export.export(program, platforms=["cpu"])(*[shape] * 4).mlir_module()


def peak(program, size=64):
    weight = jax.ShapeDtypeStruct((size, size), jnp.float32)
    bias = jax.ShapeDtypeStruct((size,), jnp.float32)
    return jax.jit(program).lower(weight, bias).compile().memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize(
    "method", ["picard", "anderson", pytest.param("newton", marks=pytest.mark.slow)]
)
def test_memory_of_a_solve_and_its_exact_gradient_does_not_depend_on_the_iterations(method):
    few = peak(gradient(method, max_steps=10))
    many = peak(gradient(method, max_steps=1000))
    assert many == few


def test_memory_of_neumann_is_constant_where_that_of_bptt_grows():
    neumann = [peak(gradient("picard", adjoint.neumann(k), max_steps=k + 1)) for k in (10, 100)]
    unrolled = [peak(gradient("picard", adjoint.tbptt(k), max_steps=k + 1)) for k in (10, 100)]
    assert neumann[0] == neumann[1]
    assert unrolled[1] > 3 * unrolled[0]
    assert unrolled[1] > 5 * neumann[1]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("platform", ["cpu", "cuda"])
def test_norms_of_any_size_are_right_on_every_platform(platform, dtype, monkeypatch):
    """On CUDA without a loop, whose condition the host would wait for."""
    with jax.enable_x64(dtype == "float64"):
        v = np.random.default_rng(0).normal(size=(7, 50)).astype(dtype)
        least, most = (np.log10(getattr(np.finfo(dtype), name)) for name in ("tiny", "max"))
        sizes = (0.9 * least, 0.6 * least, 0, 0.6 * most, 0.9 * most)
        rows = [10.0**size * v[0] for size in sizes] + [0 * v[5], np.inf * v[6]]
        found = jax.jit(jax.vmap(lambda row: Space().norms(row, 2 * row)))
        text = export.export(found, platforms=[platform])(jnp.stack(rows)).mlir_module()
        assert ("stablehlo.while" in text) == (platform == "cpu")
        if platform == "cuda":
            branch = lambda operand, *, cuda, **_: cuda(operand)  # noqa: E731
            monkeypatch.setattr(jax.lax, "platform_dependent", branch)
            found = jax.jit(jax.vmap(lambda row: Space().norms(row, 2 * row)))
        norms = np.stack(found(jnp.stack(rows)))
        exact = [10.0**size * np.linalg.norm(v[0].astype(np.float64)) for size in sizes]
        np.testing.assert_allclose(norms[0], [*exact, 0, np.inf], rtol=1e-5)
        np.testing.assert_allclose(norms[1], 2 * norms[0], rtol=1e-5)
