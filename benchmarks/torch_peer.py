"""torchdeq as a peer, in an interpreter of its own: answers requests on stdin with JSON lines.

Started by `benchmarks.solvers`; it imports nothing of this repository, so that the interpreter
needs only torch, torchdeq and numpy. Two frameworks in one process would share a thread pool.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
import time
from typing import Any

import numpy as np
import torch
import torchdeq


def prepare(request: dict[str, Any], problem: dict[str, np.ndarray]) -> Any:
    """A function that solves, and if wanted differentiates, the problem once."""
    weights = torch.tensor(problem["weights"], requires_grad=True)
    bias = torch.tensor(problem["bias"], requires_grad=True)
    cotangent = torch.tensor(problem["cotangent"])
    start = torch.zeros_like(cotangent)
    settings = {"max_iter": request["max_steps"], "tol": request["tolerance"]}
    deq = torchdeq.get_deq(
        ift=True,
        f_solver=request["solver"],
        b_solver="fixed_point_iter",  # of its solvers the faster one for these adjoints
        f_stop_mode="rel",
        b_stop_mode="rel",
        **{f"{side}_{name}": value for side in "fb" for name, value in settings.items()},
    )
    deq.train(request["gradient"])
    steps = [0]

    def solve() -> tuple[torch.Tensor, torch.Tensor | None]:
        outputs, info = deq(
            lambda z: torch.tanh(z @ weights.T + bias), start, solver_kwargs=request["options"]
        )
        x = outputs[-1]
        steps[0] = int(info["nstep"].max())
        if not request["gradient"]:
            return x, None
        _, gradient = torch.autograd.grad((x * cotangent).sum(), (weights, bias))
        return x, gradient

    def quiet() -> tuple[torch.Tensor, torch.Tensor | None]:
        if request["gradient"]:
            return solve()
        with torch.no_grad():
            return solve()

    return quiet, steps


def main(path: str) -> None:
    arrays = np.load(path)
    problems: dict[str, dict[str, np.ndarray]] = {}
    for key in arrays.files:
        name, part = key.rsplit("/", 1)
        problems.setdefault(name, {})[part] = arrays[key]
    versions = {name: importlib.metadata.version(name) for name in ("torch", "torchdeq")}
    print(json.dumps({"versions": versions, "threads": torch.get_num_threads()}), flush=True)
    prepared: dict[str, Any] = {}
    for line in sys.stdin:
        request = json.loads(line)
        calls, threads = request.pop("calls", 0), request.pop("threads", None)
        key = json.dumps(request, sort_keys=True)
        if key not in prepared:
            prepared[key] = prepare(request, problems[request["problem"]])
        solve, steps = prepared[key]
        if threads is not None:
            torch.set_num_threads(threads)
        if calls:
            begin = time.perf_counter()
            for _ in range(calls):
                solve()
            answer: dict[str, Any] = {"seconds": (time.perf_counter() - begin) / calls}
        else:
            x, gradient = solve()
            answer = {"x": x.detach().tolist(), "steps": steps[0]}
            if gradient is not None:
                answer["gradient"] = gradient.tolist()
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
