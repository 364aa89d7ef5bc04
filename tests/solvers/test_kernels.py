"""Kernels of accelerators: interpreted beside the plain forms, and lowered for their platforms."""

from __future__ import annotations

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.experimental.pallas import triton
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import implicit_rnn
from implicit_rnn import cells
from solvers import bands, kernels, platforms
from solvers.kernels import tpu
from tests.solvers.problems import precision

CALLS = {"cpu": None, "cuda": "@__gpu$xla.gpu.triton", "tpu": "@tpu_custom_call"}
UNCHECKED = [export.DisabledSafetyCheck.custom_call("__gpu$xla.gpu.triton")]
PLATFORMS = [platform for platform, call in CALLS.items() if call]


def system(*shape: int, seed: int = 0) -> list[np.ndarray]:
    """Diagonally dominant bands and a right-hand side."""
    random = np.random.default_rng(seed)
    lower, upper, rhs = random.uniform(-1, 1, (3, *shape))
    diagonal = random.choice([-1, 1], shape) * random.uniform(2.3, 2.7, shape)
    return [lower, diagonal, upper, rhs]


def recurred(coupling: np.ndarray, rhs: np.ndarray, reverse: bool) -> np.ndarray:
    """By a loop over `[batch, time, channels]`."""
    x, result = np.zeros_like(rhs[:, 0]), np.empty_like(rhs)
    times = range(rhs.shape[1])
    for t in reversed(times) if reverse else times:
        x = result[:, t] = coupling[:, t] * x + rhs[:, t]
    return result


def remainder(lower, diagonal, upper, rhs, x) -> np.ndarray:
    product = jax.vmap(bands.tridiagonal_matvec)(lower, diagonal, upper, x)
    return np.asarray(product - rhs)


def small_memory(patch: pytest.MonkeyPatch) -> None:
    """As if vector memory held five rows of a tile, which has three of lanes."""
    patch.setattr(tpu, "SUBLANES", 3)
    patch.setattr(tpu, "LEAST", 1)
    patch.setattr(tpu, "BLOCK", 5 * 3 * tpu.LANES * 4)
    patch.setattr(tpu, "WHOLE", 0)


@pytest.mark.parametrize("platform", [*PLATFORMS, "tpu in blocks"])
@pytest.mark.parametrize("shape", [(1, 1, 3), (2, 19, 200)])
def test_kernels_solve_what_the_plain_forms_solve(platform, shape, monkeypatch):
    if platform == "tpu in blocks":
        small_memory(monkeypatch)
    options = {"platform": platform.split()[0], "interpret": True}
    lower, diagonal, upper, rhs = (np.float32(a) for a in system(*shape))
    for reverse in (False, True):
        x = kernels.recurrence(lower, rhs, reverse=reverse, **options)
        np.testing.assert_allclose(x, recurred(lower, rhs, reverse), atol=1e-5)
    x = kernels.tridiagonal(lower, diagonal, upper, rhs, **options)
    np.testing.assert_allclose(remainder(lower, diagonal, upper, rhs, x), 0, atol=1e-5)
    plain = jax.vmap(lambda *a: bands.tridiagonal_solve(*a, algorithm="thomas"))
    np.testing.assert_allclose(x, plain(lower, diagonal, upper, rhs), atol=1e-6)


def test_lanes_without_a_channel_neither_read_nor_write(monkeypatch):
    """Interpreted, what is past the end of a row is dropped; a GPU would write the next row."""
    masks = []
    for name in ("load", "store"):
        access = getattr(triton, name)

        def noted(*arguments, access=access, mask=None, **options):
            masks.append(mask)
            return access(*arguments, mask=mask, **options)

        monkeypatch.setattr(triton, name, noted)
    shape = jax.ShapeDtypeStruct((1, 9, 3), jnp.float32)
    jax.eval_shape(lambda *a: kernels.tridiagonal(*a, platform="cuda"), *[shape] * 4)
    assert len(masks) > 9
    assert all(mask is not None and mask.shape == (32,) for mask in masks)


def test_kernels_for_cuda_solve_in_float64():
    with precision("float64"):
        operands = [jnp.asarray(a) for a in system(2, 11, 5)]
        x = kernels.tridiagonal(*operands, platform="cuda", interpret=True)
        assert x.dtype == jnp.float64
        np.testing.assert_allclose(remainder(*operands, x), 0, atol=1e-14)
        x = kernels.recurrence(operands[0], operands[3], platform="cuda", interpret=True)
        expected = recurred(np.asarray(operands[0]), np.asarray(operands[3]), False)
        np.testing.assert_allclose(x, expected, atol=1e-14)


def solves(kind: str):
    """A solve by its kernel and by the plain form, and how many operands it has."""
    if kind == "tridiagonal":
        names, count, options = ("kernel", "thomas"), 4, {}
        solve = bands.tridiagonal_solve
    else:
        names, count, options = ("kernel", "sequential"), 2, {"reverse": kind == "reversed"}
        solve = bands.bidiagonal_solve
    by = [lambda *a, name=name: solve(*a, algorithm=name, **options) for name in names]
    return *by, count


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("kind", ["tridiagonal", "recurrence", "reversed"])
def test_values_tangents_and_gradients_through_a_kernel_are_those_of_the_plain_form(kind, dtype):
    with precision("float64" if dtype == "float64" else "float32"):
        kernel, plain, count = solves(kind)
        # The bfloat16 operands are those of the reference, too, which is calculated in float32.
        rounded = [jnp.asarray(a, dtype) for a in system(7, 5)[-count:]]
        exact = [a.astype(jnp.promote_types(dtype, jnp.float32)) for a in rounded]

        def everything(solve, *operands):
            x, tangent = jax.jvp(solve, operands, tuple(jnp.cos(a) for a in operands))
            weigh = lambda *a: jnp.sum(jnp.sin(solve(*a)))  # noqa: E731
            return x, tangent, jax.grad(weigh, tuple(range(count)))(*operands)

        found = jax.jit(lambda *a: everything(kernel, *a))(*rounded)
        expected = jax.jit(lambda *a: everything(plain, *a))(*exact)
        tolerance = {"float32": 1e-5, "float64": 1e-12, "bfloat16": 0.03}[dtype]
        for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            assert ours.dtype == dtype
            np.testing.assert_allclose(
                np.float64(ours), np.float64(theirs), atol=tolerance, rtol=tolerance
            )


def test_a_kernel_of_halves_calculates_in_float32():
    """A sum of many small numbers, which bfloat16 cannot add up."""
    ones, small = jnp.ones((600, 1), jnp.bfloat16), jnp.full((600, 1), 0.01, jnp.bfloat16)
    x = bands.bidiagonal_solve(ones, small, algorithm="kernel")
    assert x.dtype == jnp.bfloat16
    assert float(x[-1, 0]) == pytest.approx(600 * float(small[0, 0]), rel=2**-8)


def test_a_kernel_sees_a_batch_along_any_axis_and_bands_that_have_none():
    lower, diagonal, upper, rhs = (jnp.asarray(a, jnp.float32) for a in system(6, 3, 4, 2))
    kernel, plain, _ = solves("tridiagonal")
    alone = lower[:, 0, 0], diagonal[:, 0, 0], upper

    def batched(solve):
        inside = jax.vmap(solve, (None, None, 1, 1), 1)
        outside = jax.vmap(inside, (None, None, 2, 1), 0)
        each = jax.vmap(jax.grad(lambda *a: jnp.sum(solve(*a) ** 2)), (1, 1, 1, 1))
        return outside(*alone, jnp.swapaxes(rhs, 1, 2)), each(lower, diagonal, upper, rhs)

    found, expected = (jax.jit(batched, static_argnums=0)(solve) for solve in (kernel, plain))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), found, expected)


@pytest.mark.parametrize("disabled", [False, True])
def test_outside_of_jit_and_without_channels(disabled):
    operands = [jnp.asarray(a, jnp.float32) for a in system(5)]
    kernel, plain, _ = solves("tridiagonal")
    with jax.disable_jit(disabled):
        found = kernel(*operands)
        again = platforms.kernel_solve("tridiagonal", plain, *operands)
    np.testing.assert_allclose(found, plain(*operands), atol=1e-6)
    np.testing.assert_array_equal(again, found)


def text(program, *arguments, platform: str) -> str:
    """The program as it is lowered for a platform that need not be there."""
    return program.trace(*arguments).lower(lowering_platforms=(platform,)).as_text()


def called(program: str) -> list[str]:
    return [platform for platform in PLATFORMS if CALLS[platform] in program]


def by_default(batch: tuple[int, ...] = ()):
    """A new program, so that nothing of it is kept from before, and shapes of what it takes."""

    def program(lower, diagonal, upper, rhs):
        def both(*a):
            return bands.tridiagonal_solve(*a), bands.bidiagonal_solve(a[0], a[3], reverse=True)

        x, y = (jax.vmap(both) if batch else both)(lower, diagonal, upper, rhs)
        return jnp.sum(x**2) + jnp.sum(y**2)

    gradient = jax.jit(jax.grad(program, (0, 1, 2, 3)))
    return gradient, [jax.ShapeDtypeStruct((*batch, 16, 3), jnp.float32)] * 4


def test_programs_for_cpus_are_those_without_kernels(monkeypatch):
    """But for the numbers of source lines, which are no part of this text."""
    program, shapes = by_default((4,))
    found = text(program, *shapes, platform="cpu")
    monkeypatch.setenv("SOLVERS_KERNELS", "0")
    program, shapes = by_default((4,))
    assert found == text(program, *shapes, platform="cpu")


@pytest.mark.parametrize("batch", [(), (4,)])
@pytest.mark.parametrize("platform", CALLS)
def test_a_platform_runs_its_own_kernel_and_cpus_none(platform, batch):
    program, shapes = by_default(batch)
    found = text(program, *shapes, platform=platform)
    assert called(found) == ([platform] if CALLS[platform] else [])
    # Both solves and their transposes; cyclic reduction and Thomas' algorithm would be loops.
    if CALLS[platform]:
        assert "stablehlo.while" not in found


def test_long_time_on_a_tpu_is_two_kernels():
    for time, count in ((100, 1), (100_000, 2)):
        shapes = [jax.ShapeDtypeStruct((time, 1000), jnp.float32)] * 4
        program = jax.jit(lambda *a: bands.tridiagonal_solve(*a))
        assert text(program, *shapes, platform="tpu").count(CALLS["tpu"]) == count


def test_one_export_has_the_kernels_of_all_its_platforms(monkeypatch):
    program, shapes = by_default((4,))
    exported = export.export(program, platforms=[*CALLS])(*shapes)
    assert called(exported.mlir_module()) == ["tpu"]  # what is kept must be read by later versions
    monkeypatch.setenv("SOLVERS_KERNELS", "exported")
    program, shapes = by_default((4,))
    exported = export.export(program, platforms=[*CALLS], disabled_checks=UNCHECKED)(*shapes)
    assert called(exported.mlir_module()) == PLATFORMS
    operands = [jnp.asarray(a, jnp.float32) for a in system(4, 16, 3)]
    for ours, direct in zip(exported.call(*operands), program(*operands), strict=True):
        np.testing.assert_allclose(ours, direct, atol=1e-5)  # the branch of this platform


def test_an_implicit_layer_and_its_gradient_run_kernels(monkeypatch):
    cell = cells.igru(8)
    params = jax.eval_shape(lambda: cell.init(jax.random.key(0), 3))
    xs = jax.ShapeDtypeStruct((2, 12, 3), jnp.float32)

    def gradient():
        def loss(params, xs):
            layer = jax.vmap(lambda xs: implicit_rnn.implicit(cell, params, xs, method="banded")[0])
            return jnp.sum(layer(xs) ** 2)

        return jax.jit(jax.grad(loss))

    monkeypatch.setenv("SOLVERS_KERNELS", "exported")
    program = gradient()
    exported = export.export(program, platforms=PLATFORMS, disabled_checks=UNCHECKED)(params, xs)
    for platform in PLATFORMS:  # the sweeps of the solve, and those of its transpose
        assert exported.mlir_module().count(CALLS[platform]) >= 2
    assert not called(text(program, params, xs, platform="cpu"))
    monkeypatch.setenv("SOLVERS_KERNELS", "0")
    assert not called(text(gradient(), params, xs, platform="tpu"))


def test_the_plain_form_is_what_remains():
    """What has no kernel: float64 on TPUs, blocks, unknown shapes, arrays that XLA divides."""
    program, shapes = by_default()
    assert not called(text(program, *shapes, platform="rocm"))
    with jax.enable_x64(True):
        wide = [jax.ShapeDtypeStruct((16, 3), jnp.float64)] * 4
        assert not called(text(program, *wide, platform="tpu"))
        assert called(text(program, *wide, platform="cuda")) == ["cuda"]
    with pytest.raises(ValueError, match="algorithm must be"):
        bands.bidiagonal_solve(jnp.ones((4, 2, 2)), jnp.ones((4, 2)), algorithm="kernel")
    none = [jax.ShapeDtypeStruct((0, 16, 3), jnp.float32)] * 4
    assert not called(text(by_default((0,))[0], *none, platform="cuda"))
    (width,) = export.symbolic_shape("width")
    unknown = [jax.ShapeDtypeStruct((16, width), jnp.float32)] * 4
    assert not called(export.export(program, platforms=["tpu"])(*unknown).mlir_module())


@pytest.mark.parametrize("platform", PLATFORMS)
def test_over_several_devices_kernels_stay_inside_shard_map(platform):
    mesh = AbstractMesh((2,), ("data",), (AxisType.Auto,))
    shape = jax.ShapeDtypeStruct((4, 16, 3), jnp.float32, sharding=NamedSharding(mesh, P("data")))

    def solve(*operands):
        return jax.vmap(bands.tridiagonal_solve)(*operands)

    assert not called(text(jax.jit(solve), *[shape] * 4, platform=platform))
    inside = jax.shard_map(solve, mesh=mesh, in_specs=P("data"), out_specs=P("data"))
    found = text(jax.jit(inside), *[shape] * 4, platform=platform)
    assert called(found) == [platform]


def test_kernels_are_for_short_time_and_for_many_channels():
    assert kernels.TILE == tpu.LANES * tpu.SUBLANES
    for platform in PLATFORMS:

        def pays(time, channels, platform=platform):
            return [kernels.pays(platform, n, 1, time, channels, size=4) for n in (2, 1)]

        # The table of docs/speed.md: a tridiagonal solve, a recurrence.
        assert pays(40, 4000) == [True, True]
        assert pays(1000, 4000) == [True, True]
        assert pays(100_000, 64) == [False, False]
        assert pays(100_000, 1000) == [True, False]
        assert pays(1, 64) == [False, False]
    few = jax.ShapeDtypeStruct((100_000, 2), jnp.float32)
    program = jax.jit(lambda *a: bands.tridiagonal_solve(*a))
    assert "stablehlo.while" in text(program, *[few] * 4, platform="cuda")


def test_a_solve_on_a_cpu_loads_no_kernels():
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, jax.numpy as jnp; from solvers import bands; "
            "bands.tridiagonal_solve(*[jnp.ones((4, 2))] * 4, algorithm=None); "
            "assert 'solvers.platforms' in sys.modules and 'solvers.kernels' not in sys.modules",
        ],
        capture_output=True,
        text=True,
    )
    assert not done.returncode, done.stderr
