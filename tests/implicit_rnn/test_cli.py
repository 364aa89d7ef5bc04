"""The command line: help, errors, and the demonstration on a small system."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path

import numpy as np
import pytest

import solvers
from implicit_rnn.cells import CELLS
from implicit_rnn.cli import main
from implicit_rnn.experiments import configurations, demo
from implicit_rnn.experiments.options import ConfigError
from implicit_rnn.experiments.registry import MODELS, TASKS
from implicit_rnn.training.folder import LOCKS
from implicit_rnn.training.tables import dump
from tests.implicit_rnn.experiments.problems import CONTENT


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["--version"]]
    + [
        [command, "--help"]
        for command in [
            "demo",
            "train",
            "evaluate",
            "plot",
            "report",
            "record",
            "starts",
            "tag",
            "translate",
            "list",
            "data",
        ]
    ],
)
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
        (["data", "burn"], "invalid choice: 'burn'"),
    ],
)
def test_a_wrong_argument_is_named(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "none.toml"], "no such file: none.toml"),
        (["train", "configs/biased_walk.toml", "--set", "trainig.updates=3"], "'training'"),
        (
            ["train", "configs/biased_walk.toml", "--profile", "fast"],
            "choose from depth, long, paper, quick, rotated, time",
        ),
        (["train", "configs/biased_walk.toml", "--only", "x*"], "no run fits ['x*']"),
        (["evaluate", "nowhere"], "nowhere is no run folder"),
        (["plot", "nowhere"], "nowhere is no run folder"),
        (["record", "nowhere"], "nowhere is no run folder"),
        (["data", "verify", "marbles"], "unknown data set 'marbles'"),
    ],
)
def test_bad_input_is_an_error_in_words(
    arguments: list[str],
    message: str,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    monkeypatch.chdir(root)
    assert main(arguments) == 1
    assert message in capsys.readouterr().err


def test_list_names_everything_that_a_configuration_may_choose(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(root)
    assert main(["list"]) == 0
    printed = capsys.readouterr().out
    names = [*TASKS, *CELLS, *MODELS, *(path.stem for path in (root / "configs").glob("*.toml"))]
    assert all(name in printed for name in names)


def test_an_experiment_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Two runs, a table beside the paper's numbers, figures, and nothing left unnamed."""
    content = copy.deepcopy(CONTENT)
    content["training"] |= {"updates": 8}
    content["variants"] = {"igru": {}, "gru": {"model": {"encoder": "gru"}}}
    config, output = tmp_path / "small.toml", tmp_path / "out"
    paper = '[[paper]]\nvariant = "igru"\n"task.bias" = 2.0\nerror = 0.1234\n'
    config.write_text(dump(content) + paper)
    assert main(["train", str(config), "--output", str(output)]) == 0
    printed = capsys.readouterr().out
    assert "paper's error" in printed
    assert "0.1234" in printed
    for path in output.rglob("*"):
        if path.is_file() and "checkpoints" not in path.parts and path.name not in LOCKS:
            assert path.name in printed
    figures = {path.name for path in (output / "plots").iterdir()}
    assert figures == {
        "learning_updates.png", "learning_seconds.png", "igru_residuals.png", "igru_switch.png",
        "solver_steps.png", "solver_residuals.png",
    }  # fmt: skip
    page = (output / "report.html").read_text()
    assert "0.1234" in page
    assert page.count('<img alt="test sequence') == 8
    assert not re.findall(r"""(?:src|href)=["'](?!data:)""", page)
    rows = json.loads((output / "table.json").read_text())["rows"]
    assert [row["variant"] for row in rows] == ["igru", "gru"]

    assert main(["evaluate", str(output)]) == 0
    assert f"{rows[0]['test error']:.4f}" in capsys.readouterr().out
    assert main(["record", str(output), "--output", str(tmp_path / "record.json")]) == 0
    assert "| igru | " in capsys.readouterr().out
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["rows"] == rows
    assert record["runs"]["gru"]["command"].startswith("implicit-rnn train")
    assert main(["train", str(config), "--output", str(output)]) == 1
    assert "--resume" in capsys.readouterr().err
    assert main(["train", str(config), "--output", str(output), "--resume", "--no-figures"]) == 0
    assert "is finished" in capsys.readouterr().out


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


def test_configurations_are_found_by_name_and_those_here_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert configurations.located("biased_walk").name == "biased_walk.toml"
    assert configurations.located("biased_walk").exists()
    assert configurations.located("some/own.toml") == Path("some/own.toml")
    with pytest.raises(ConfigError, match="'biased_wlk' is unknown; did you mean 'biased_walk'"):
        configurations.located("biased_wlk")
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "mine.toml").write_text('title = "Mine"')
    (tmp_path / "configs" / "biased_walk.toml").write_text('title = "Another"')
    assert configurations.located("mine") == Path("configs/mine.toml")
    assert configurations.described() | {"biased_walk": "Another", "mine": "Mine"} == (
        configurations.described()
    )
