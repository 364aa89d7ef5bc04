"""A case from a seed and a number: what is compiled (`Program`) and what it is run on (`Data`).

Compilation costs a hundred times what a run does. Cases come in blocks of 48 that share 8 programs;
matrices, scales, tolerances and NaNs are arguments of a program, drawn anew for every case.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from tests.fuzz.bad import BAD
from tests.fuzz.maps import SIZES

BLOCK, PROGRAMS = 48, 8
BATCH = 3

KINDS = {
    "fixed_point": 30,
    "root": 18,
    "linear_solve": 14,
    "implicit_diff": 8,
    "race": 7,
    "compacted": 8,
    "lockstep": 8,
    "bad_input": 7,
}
DTYPES = {"float32": 55, "float64": 25, "bfloat16": 20}
ACTS = {"affine": 45, "tanh": 35, "cos": 12, "nested": 8}
STEPS = {200: 60, 30: 15, 3: 10, 1: 8, 0: 7}
POLICIES = {"best": 60, "zero": 20, "nan": 20}
METHODS = (
    "auto", "picard", "picard:0.5", "anderson", "broyden", "newton", "newton:gmres", "newton:dense",
    "newton:neumann", "newton:cascade",
)  # fmt: skip
IN_TIME = ("banded", "banded:accelerated", "auto:bands", "recurrence")
LOCKSTEP = ("none", "none", "picard", "anderson", "broyden", "newton")
LINEAR = ("bicgstab", "gmres", "cgne", "lsqr", "cg", "richardson", "neumann", "dense", "cascade")
ADJOINTS = (
    *(f"implicit:{linear}" for linear in LINEAR if linear not in ("cg", "neumann")),
    "implicit:bicgstab", "implicit:forward", "shine", "neumann:3", "rbp:4", "rbp:rtol",
    "rbp:uniform", "cg_rbp:3", "cg_rbp:rtol", "phantom:3",
    "one_step", "tangent:bicgstab", "tangent:dense",
    "tangent:gmres", "bptt", "bptt:checkpoint", "tbptt:2", "tbptt:5",
)  # fmt: skip
TRANSFORMS = {
    "eager": 6, "jit": 14, "vmap": 6, "jit_vmap": 14, "grad": 6, "jit_grad": 18, "grad_vmap": 6,
    "jit_grad_vmap": 18, "jit_vmap_grad": 12,
}  # fmt: skip
CLOSURES = {"theta": 50, "data": 30, "all": 20}
SPECTRA = {
    "contraction": 40, "gain": 25, "expansion": 10, "zero": 5, "identity": 6, "singular": 7,
    "symmetric": 7,
}  # fmt: skip
NANS = {"none": 85, "data": 6, "theta": 4, "start": 5}


@dataclasses.dataclass(frozen=True)
class Program:
    """Everything that is compiled into a program."""

    kind: str
    act: str = "affine"
    shape: str = "vector"
    dtype: str = "float32"
    method: str = "auto"
    adjoint: str = "implicit:bicgstab"
    linear: str = "bicgstab"
    on_failure: str = "best"
    max_steps: int = 200
    transform: str = "jit"
    closure: str = "theta"
    has_rtol: bool = False
    throw: bool = False
    option: str = ""  # of the kind: of a root, or of a lockstep solve
    bad: str = ""  # what is wrong with the input

    @property
    def size(self) -> int:
        return SIZES[self.shape]

    @property
    def batched(self) -> bool:
        return "vmap" in self.transform or self.kind in ("compacted", "lockstep")

    @property
    def differentiated(self) -> bool:
        return "grad" in self.transform

    def describe(self) -> str:
        fields = ((f.name, getattr(self, f.name), f.default) for f in dataclasses.fields(self))
        return " ".join(f"{name}={value}" for name, value, default in fields if value != default)


@dataclasses.dataclass(frozen=True)
class Data:
    """What a program is run on, already rounded to the dtype of the case and kept as float64."""

    weight: np.ndarray
    bias: np.ndarray  # [batch, n]
    start: np.ndarray
    cotangent: np.ndarray
    scale: float
    units: float  # of the equation of a root, or of a matrix
    rtol: float
    spectrum: str
    nan: str

    def describe(self) -> str:
        text = f"spectrum={self.spectrum} scale={self.scale:.3g} units={self.units:.3g}"
        return f"{text} rtol={self.rtol:.3g}" + ("" if self.nan == "none" else f" nan={self.nan}")


@dataclasses.dataclass(frozen=True)
class Case:
    seed: int
    number: int
    program: Program
    data: Data

    def describe(self) -> str:
        return f"{self.program.describe()} | {self.data.describe()}"


def draw(seed: int, number: int) -> Case:
    """The case with this number."""
    slot = (number // BLOCK) * PROGRAMS + number % PROGRAMS
    program = draw_program(np.random.default_rng([seed, slot, 1]))
    return Case(seed, number, program, draw_data(np.random.default_rng([seed, number]), program))


def draw_program(rng: np.random.Generator) -> Program:
    """The static part of a case."""
    kind = _weighted(rng, KINDS)
    common: dict[str, Any] = {
        "act": _weighted(rng, ACTS),
        "shape": rng.choice(list(SIZES)).item(),
        "dtype": _weighted(rng, DTYPES),
        "adjoint": rng.choice(ADJOINTS).item(),
        "on_failure": _weighted(rng, POLICIES),
        "max_steps": _weighted(rng, STEPS),
        "transform": _weighted(rng, TRANSFORMS),
        "closure": _weighted(rng, CLOSURES),
        "has_rtol": bool(rng.random() < 0.5),
        "throw": bool(rng.random() < 0.03),
    }
    if kind == "bad_input":
        return Program(kind, bad=rng.choice(list(BAD)).item())
    if kind == "lockstep":
        common.update(shape="time", closure="theta")
    if kind in ("compacted", "lockstep"):
        common["transform"] = rng.choice(["eager", "jit", "jit_grad", "jit_grad", "grad"]).item()
    if kind == "lockstep" and common["act"] == "nested":
        common["act"] = "tanh"  # whose bands are known
    methods = METHODS
    if common["shape"] == "time" and common["act"] != "nested" and kind != "root":
        methods = METHODS + IN_TIME
    common["method"] = rng.choice(methods).item()
    if kind == "root" and common["shape"] == "scalar" and rng.random() < 0.6:
        common["method"] = "bracket"
    if kind == "lockstep":
        common["method"] = rng.choice(LOCKSTEP).item()
        common["option"] = rng.choice(["", "", "rescue", "free", "steps"]).item()
    if kind == "implicit_diff":
        common["option"] = rng.choice(["fixed_point", "root"]).item()
    if kind == "linear_solve":
        common.update(linear=rng.choice(LINEAR).item(), act="affine", adjoint="", method="")
    if common["adjoint"] in ("implicit:forward", "shine") and rng.random() < 0.8:
        common["method"] = "broyden" if kind != "lockstep" else common["method"]
    if "bptt" in common["adjoint"] and common["max_steps"] == 200:
        common["max_steps"] = 30
    return Program(kind, **common)


def draw_data(rng: np.random.Generator, program: Program) -> Data:
    """The arrays and numbers of a case."""
    n, batch = program.size, BATCH if program.batched else 1
    scale = 1.0 if rng.random() < 0.5 else 10 ** rng.uniform(-30, 30)
    spectrum = _weighted(rng, SPECTRA)
    if program.linear == "cg" and rng.random() < 0.7:
        spectrum = "symmetric"
    # An inner solve makes a finite value of a NaN, and says so to nobody.
    nan = "none" if program.act == "nested" else _weighted(rng, NANS)
    weight = _weight(rng, spectrum, n)
    bias = (
        scale * rng.standard_normal((batch, n)) * rng.choice([0.0, 0.3, 1.0], p=[0.05, 0.3, 0.65])
    )
    start = (
        scale * rng.standard_normal((batch, n)) * rng.choice([0.0, 1.0, 10.0], p=[0.4, 0.5, 0.1])
    )
    if nan == "data":
        bias[0, 0] = np.nan
    if nan == "theta":
        weight[0, 0] = np.nan
    if nan == "start":
        start[0, 0] = np.nan
    rtol = 0.0
    if program.has_rtol:
        rtol = rng.choice(
            [1e-1, 1e-2, 1e-4, 1e-6, 1e-10, 0.0], p=[0.15, 0.25, 0.3, 0.2, 0.05, 0.05]
        )
    return Data(
        _rounded(weight, program.dtype),
        _rounded(bias, program.dtype),
        _rounded(start, program.dtype),
        _rounded(rng.standard_normal((batch, n)), program.dtype),
        float(_rounded(scale, program.dtype)),
        float(_rounded(1.0 if rng.random() < 0.5 else 10 ** rng.uniform(-3, 3), program.dtype)),
        float(rtol),
        spectrum,
        nan,
    )


def _weight(rng: np.random.Generator, spectrum: str, n: int) -> np.ndarray:
    noise = rng.standard_normal((n, n))
    noise /= np.linalg.norm(noise, 2)
    if spectrum == "zero":
        return np.zeros((n, n))
    if spectrum == "identity":
        return np.eye(n)
    if spectrum == "singular":
        # I - W has a null vector.
        basis, _ = np.linalg.qr(rng.standard_normal((n, n)))
        values = rng.uniform(-0.9, 0.9, n)
        values[0] = 1.0
        return basis @ np.diag(values) @ basis.T
    if spectrum == "symmetric":
        both = noise + noise.T
        return 0.9 * both / max(np.linalg.norm(both, 2), 1e-9)
    if spectrum == "expansion":
        return rng.uniform(1.5, 20) * noise / max(np.max(np.abs(np.linalg.eigvals(noise))), 0.1)
    return (rng.uniform(0.1, 3) if spectrum == "gain" else rng.uniform(0.05, 0.9)) * noise


def _rounded(value: Any, dtype: str) -> np.ndarray:
    return np.asarray(value, np.float64).astype(jnp.dtype(dtype)).astype(np.float64)


def _weighted(rng: np.random.Generator, choices: dict) -> Any:
    weights = np.array(list(choices.values()), float)
    return list(choices)[rng.choice(len(choices), p=weights / weights.sum())]
