"""Two processes of one machine train together over loopback, and none outlives the other."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from implicit_rnn.cli import main
from implicit_rnn.experiments.runs import configuration
from implicit_rnn.experiments.train import restored
from implicit_rnn.training import processes
from implicit_rnn.training.tables import dump
from tests.devices.pair import everything

CONTENT = {
    "task": {
        "name": "biased_walk", "train": 64, "valid": 16, "test": 16, "max_length": 6,
        "dimension": 2, "bias": 2.0,
    },
    "model": {"name": "tagger", "encoder": "igru", "hidden": 3},
    "optimiser": {"rate": 0.02},
    "training": {
        "updates": 120, "batch": 8, "buckets": 1, "log_every": 5, "evaluate_every": 5,
        "evaluate_batch": 16,
    },
}  # fmt: skip


def command(
    folder: Path, name: str, devices: int, *options: str, **environment: str
) -> subprocess.Popen:
    """`implicit-rnn train` in a process of its own, with so many virtual devices."""
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={devices}"
    arguments = ["train", str(folder / "small.toml"), "--output", str(folder / name), *options]
    return subprocess.Popen(
        [sys.executable, "-m", "implicit_rnn.cli", *arguments, "--no-figures"],
        env=os.environ | {"XLA_FLAGS": flags} | environment, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )  # fmt: skip


def sealed(folder: Path, update: int, process: subprocess.Popen) -> None:
    """Waits until there is a checkpoint."""
    path, until = folder / "checkpoints" / f"{update:06d}.json", time.monotonic() + 300
    while not path.exists() and time.monotonic() < until:
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)


def finished(process: subprocess.Popen, seconds: float = 600) -> tuple[str, str]:
    out, err = process.communicate(timeout=seconds)
    assert process.returncode == 0, err[-3000:]
    return out, err


def learnt(folder: Path) -> list[np.ndarray]:
    return jax.tree.leaves(restored(configuration(folder), folder).params)


def port() -> str:
    """One that nobody listens at."""
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        return str(place.getsockname()[1])


def said(folder: Path, name: str, other: str = "") -> list[subprocess.Popen]:
    """Two processes that are told on the command line who they are, and where to write."""
    shared = ("--distributed", "--coordinator", f"127.0.0.1:{port()}", "--processes", "2")
    return [
        command(folder, output, 2, *shared, "--process", str(number))
        for number, output in enumerate((name, other or name))
    ]


def under_slurm(folder: Path, name: str, *options: str) -> list[subprocess.Popen]:
    """Two processes that find each other by what SLURM sets for the tasks of a step."""
    shared = {
        "SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "localhost", "SLURM_NTASKS": "2",
        "JAX_COORDINATOR_PORT": port(),  # else one that the number of the job gives
    }  # fmt: skip
    return [
        command(
            folder, name, 2, "--distributed", *options,
            **shared, SLURM_PROCID=str(number), SLURM_LOCALID=str(number),
        )
        for number in range(2)
    ]  # fmt: skip


@pytest.mark.slow
def test_a_process_that_dies_ends_the_other_and_the_run_goes_on_without(tmp_path: Path):
    (tmp_path / "small.toml").write_text(dump(CONTENT))
    finished(command(tmp_path, "whole", 1))
    one, other = said(tmp_path, "killed")
    sealed(tmp_path / "killed", 5, one)
    other.send_signal(signal.SIGKILL)
    died = time.monotonic()
    _, err = one.communicate(timeout=60)
    assert time.monotonic() - died < 60
    assert one.returncode not in (0, None)
    assert "process 0 of 2: another process of this run has ended" in err
    assert "--resume goes on from the last checkpoint" in err
    assert not (tmp_path / "killed" / "result.json").exists()
    other.communicate()

    expected = json.loads((tmp_path / "whole" / "result.json").read_text())
    shutil.copytree(tmp_path / "killed", tmp_path / "four")
    shutil.copytree(tmp_path / "killed", tmp_path / "two")
    out, _ = finished(command(tmp_path, "killed", 1, "--resume"))
    assert "going on from update" in out
    finished(command(tmp_path, "four", 4, "--resume"))
    first, second = under_slurm(tmp_path, "two", "--resume")
    assert "valid loss" in finished(first)[0]
    assert "valid" not in finished(second)[0]  # one of them prints
    for name in ("killed", "four", "two"):
        found = json.loads((tmp_path / name / "result.json").read_text())
        assert found["updates"] == 120
        assert found["test"]["loss"] == pytest.approx(expected["test"]["loss"], rel=5e-3)
        for a, b in zip(learnt(tmp_path / name), learnt(tmp_path / "whole"), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-2, atol=5e-3)
        lines = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        updates = [json.loads(line)["update"] for line in lines]
        assert updates == sorted(updates)
        assert len(updates) == 48  # 24 about training, 24 about the validation set


@pytest.mark.slow
def test_two_processes_find_what_one_device_does(root: Path, tmp_path: Path):
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=2"
    address, path = f"127.0.0.1:{port()}", tmp_path / "found.npz"
    pair = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.devices.pair", address, str(number), str(path)],
            env=os.environ | {"XLA_FLAGS": flags}, cwd=root, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for number in range(2)
    ]  # fmt: skip
    expected = everything()
    for process in pair:
        finished(process)
    with np.load(path) as file:
        together = dict(file)
    assert set(together) == set(expected)
    for name, value in expected.items():
        if "totals" in name or "steps" in name:
            np.testing.assert_array_equal(together[name], value, err_msg=name)
        elif "params" in name or "table" in name:
            np.testing.assert_allclose(together[name], value, rtol=2e-5, atol=2e-6, err_msg=name)
        else:
            np.testing.assert_allclose(together[name], value, rtol=1e-3, atol=3e-4, err_msg=name)


@pytest.mark.slow
def test_processes_agree_on_the_folder_and_on_when_to_end(tmp_path: Path):
    content = CONTENT | {"training": CONTENT["training"] | {"updates": 10**6}}
    (tmp_path / "small.toml").write_text(dump(content))
    for process in said(tmp_path, "here", "elsewhere"):
        _, err = process.communicate(timeout=300)
        assert process.returncode == 1
        assert "of process 1 is not the folder that process 0 writes to" in err
    one, other = said(tmp_path, "asked")
    sealed(tmp_path / "asked", 5, one)
    other.send_signal(signal.SIGTERM)  # to one of them
    outs = []
    for process in (one, other):
        out, err = process.communicate(timeout=60)
        assert process.returncode == 128 + signal.SIGTERM, err[-3000:]
        assert "ended by SIGTERM" in err
        outs.append(out)
    update = re.search(r"ended by SIGTERM at update (\d+); --resume goes on", outs[0])
    assert (tmp_path / "asked" / "checkpoints" / f"{int(update[1]):06d}.json").exists()
    assert "update" not in outs[1]  # one of them prints


def test_what_processes_lack_is_said(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    assert main(["train", "ice_cream", "--processes", "2"]) == 1
    assert "belong to --distributed" in capsys.readouterr().err
    for wrong in ("here", ":1234", "here:0", "here:65536"):
        assert main(["train", "ice_cream", "--distributed", "--coordinator", wrong]) == 1
        assert f"HOST:PORT; got {wrong}" in capsys.readouterr().err
    for alone in ([], ["--coordinator", "127.0.0.1:1"]):  # and no cluster that tells the rest
        assert main(["train", "ice_cream", "--distributed", *alone]) == 1
        assert "elsewhere --coordinator HOST:PORT, --processes N" in capsys.readouterr().err
    given = ["train", "ice_cream", "--distributed", "--processes", "2", "--process"]
    assert main([*given, "2", "--coordinator", "127.0.0.1:1"]) == 1
    assert "process 2 is none of the 2" in capsys.readouterr().err
    with socket.create_server(("", 0)) as other:
        taken = other.getsockname()[1]
        assert main([*given, "0", "--coordinator", f"127.0.0.1:{taken}"]) == 1
    assert f"process 0 cannot listen at port {taken} (" in capsys.readouterr().err
    monkeypatch.setattr(processes, "PATIENCE", 0)
    assert main([*given, "1", "--coordinator", f"127.0.0.1:{port()}"]) == 1
    assert "start process 0 there, or give all processes the address" in capsys.readouterr().err
