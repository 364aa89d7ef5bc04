"""The command line: help, errors, and the demonstration on a small system."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import solvers
from implicit_rnn import demo
from implicit_rnn.cli import main


@pytest.mark.parametrize("arguments", [["--help"], ["demo", "--help"], ["--version"]])
def test_help_and_version_succeed(arguments: list[str], capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0
    assert "implicit-rnn" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "required: COMMAND"),
        (["dance"], "invalid choice: 'dance'"),
        (["demo", "--width", "0"], "--width: must be at least 1, got 0"),
        (["demo", "--time", "long"], "--time: 'long' is not an integer"),
        (["demo", "--seed", "-1"], "--seed: must be at least 0, got -1"),
        (["demo", "--colour"], "unrecognized arguments: --colour"),
    ],
)
def test_a_wrong_argument_is_named(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_an_output_that_cannot_be_made_is_an_error_not_a_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "file").touch()
    assert main(["demo", "--output", str(tmp_path / "file")]) == 1
    assert "file" in capsys.readouterr().err


@pytest.mark.slow
def test_the_demonstration_agrees_with_the_dense_gradient_and_writes_its_files(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    output = tmp_path / "new" / "demo"
    command = ["demo", "--time", "6", "--width", "3", "--seed", "2", "--output", str(output)]
    assert main(command) == 0

    printed = capsys.readouterr().out
    files = {"convergence_methods.png", "convergence_linear.png", "result.json"}
    assert {path.name for path in output.iterdir()} == files
    assert all(f"wrote {output / name}" in printed for name in files)

    result = json.loads((output / "result.json").read_text())
    assert result["seed"] == 2
    assert result["versions"]["jax"]
    assert set(solvers.METHODS) | {"banded"} <= set(result["methods"])
    assert set(solvers.linear.SOLVERS) <= set(result["linear"])
    assert {name.split("(")[0] for name in result["adjoints"]} >= set(solvers.adjoint.ADJOINTS)
    assert all(row["status"] == "CONVERGED" for row in result["methods"].values())
    for name in ("implicit", "implicit, bands", "tangent", "bptt"):
        assert result["adjoints"][name]["gradient_error"] < 1e-4, name


def test_the_bands_of_the_demonstration_are_diagonals_of_its_jacobian() -> None:
    import jax

    system = demo.build(seed=0, time=4, width=3)
    h = jax.random.normal(jax.random.key(1), system.start.shape)
    jacobian = np.asarray(jax.jacobian(system.f, argnums=1)(system.theta, h))
    bands = system.bands(system.theta, h)
    channel = np.arange(3)
    for t in range(1, 4):
        np.testing.assert_allclose(bands.lower[t], jacobian[t, channel, t - 1, channel], rtol=1e-5)
        np.testing.assert_allclose(
            bands.upper[t - 1], jacobian[t - 1, channel, t, channel], rtol=1e-5
        )
