"""Contenders that live in another interpreter: `benchmarks.torch_peer` started and asked."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from benchmarks.contest import Contender
from benchmarks.problems import Equilibrium
from benchmarks.timing import Sampler

VARIABLE = "IMPLICIT_RNN_TORCH_PYTHON"
_SHORTEST_SAMPLE = 5e-3
# Idle OpenMP threads spin for a while before they sleep, at the cost of whoever is measured next.
_SPINNING = 0.05


def interpreter() -> str | None:
    """Where torch and torchdeq are: `$IMPLICIT_RNN_TORCH_PYTHON`, this interpreter, or nowhere."""
    if os.environ.get(VARIABLE):
        return os.environ[VARIABLE]
    here = all(importlib.util.find_spec(name) for name in ("torch", "torchdeq"))
    return sys.executable if here else None


class TorchPeer:
    """The other process, as a context manager."""

    def __init__(self, python: str, problems: Mapping[str, Equilibrium]):
        self._python, self._problems = python, problems

    def __enter__(self) -> TorchPeer:
        arrays = {}
        for name, problem in self._problems.items():
            # torchdeq wants a batch axis always.
            arrays[f"{name}/weights"] = np.asarray(problem.weights)
            arrays[f"{name}/bias"] = np.atleast_2d(problem.bias)
            arrays[f"{name}/cotangent"] = np.atleast_2d(problem.cotangent)
        self._folder = tempfile.TemporaryDirectory()
        path = Path(self._folder.name) / "problems.npz"
        np.savez(path, **arrays)
        script = Path(__file__).with_name("torch_peer.py")
        self._process = subprocess.Popen(
            [self._python, "-W", "ignore", str(script), str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.greeting = self._read()
        return self

    def __exit__(
        self, kind: type | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._folder.cleanup()

    def contender(
        self, name: str, solver: str, problem: str, gradient: bool, max_steps: int, **options: Any
    ) -> Contender:
        """A torchdeq solver; `options` go to its forward solver."""

        def request(tolerance: float) -> dict[str, Any]:
            return {
                "solver": solver,
                "problem": problem,
                "gradient": gradient,
                "tolerance": tolerance,
                "max_steps": max_steps,
                "options": options,
            }

        def solve(tolerance: float) -> tuple[Any, int]:
            answer = self._ask(request(tolerance))
            shape = self._problems[problem].bias.shape
            if gradient:
                return (None, np.asarray(answer["gradient"]).reshape(shape)), answer["steps"]
            return np.asarray(answer["x"]), answer["steps"]

        def sampler(tolerance: float) -> Sampler:
            def seconds(calls: int, threads: int) -> float:
                ask = {**request(tolerance), "calls": calls, "threads": threads}
                answer = self._ask(ask)
                time.sleep(_SPINNING)
                return answer["seconds"]

            # One thread or all: on a busy machine waiting for the others can cost more than
            # they bring, and the peer shall have its better choice.
            choices = {1, self.greeting["threads"]}
            best = {threads: min(seconds(1, threads) for _ in range(3)) for threads in choices}
            threads = min(best, key=best.__getitem__)
            calls = max(1, round(_SHORTEST_SAMPLE / best[threads]))
            return lambda: seconds(calls, threads)

        return Contender(name, solve, sampler)

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the torch interpreter ended; can it import torch and torchdeq?")
        return json.loads(line)
