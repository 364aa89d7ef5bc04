"""Our solvers against their peers: time ratios at equal accuracy, in one run.

    python -m benchmarks.solvers [--quick]

Every solver's tolerance is set so that the error it really reaches, judged in float64, lies just
below the target; the table shows what was reached. Beside them, alone, the evaluations of the map
or matrix that ours take: nobody who takes as many takes less time. torchdeq takes part where it is
installed, or where IMPLICIT_RNN_TORCH_PYTHON names an interpreter that has it.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import solvers
from benchmarks import peers, problems, report, torch_bridge
from benchmarks.contest import ALONE, Entry, contest
from benchmarks.timing import Sampler, interleaved, stopwatch
from solvers.batch.compaction import _sizes

RESIDUAL = 1e-5
GRADIENT_ERROR = 1e-4
# The evaluations are those of the forward solve: few peers tell of the backward one.
COLUMNS = ("problem", "solver", "ms", "ours / this", "reached", "evaluations")
PACKAGES = ("jax", "jaxlib", "numpy", "jaxopt", "lineax", "optimistix", "equinox")


def linear(rounds: int, quick: bool) -> list[dict[str, Any]]:
    """bicgstab and gmres against jax.scipy and lineax."""
    systems = [problems.dense(200), problems.block_tridiagonal(), problems.batch_of_dense()]
    if not quick:
        systems.insert(1, problems.dense(1000))
    found = []
    for method in ("bicgstab", "gmres"):
        for system in systems:
            contenders = peers.linear_contenders(method, system)
            alone = _alone(system.products)
            entries = contest(contenders, system.residual, RESIDUAL, rounds, alone)
            found.append(_record(system.name, entries, RESIDUAL))
    _show(f"linear systems, float32, relative residual {RESIDUAL:g}", found)
    return found


def fixed_points(
    rounds: int,
    family: dict[str, problems.Equilibrium],
    torch: torch_bridge.TorchPeer | None,
) -> dict[str, list[dict[str, Any]]]:
    """picard and anderson against jaxopt, optimistix and torchdeq, without and with gradient."""
    results = {}
    for gradient in (False, True):
        found = []
        for method in ("picard", "anderson"):
            for key, problem in family.items():
                contenders = peers.fixed_point_contenders(method, problem, gradient)
                if torch is not None:
                    contenders += _torch_contenders(torch, method, key, gradient)
                error, target = problem.residual, RESIDUAL
                if gradient:
                    error, target = _gradient_error(problem), GRADIENT_ERROR
                alone = None if gradient else _alone(problem.evaluations)
                entries = contest(contenders, error, target, rounds, alone)
                record = _record(problem.name, entries, target)
                if torch is None:
                    record["entries"].append({"name": "torchdeq", "note": "not installed"})
                found.append(record)
        goal = f"gradient error {GRADIENT_ERROR:g}" if gradient else f"residual {RESIDUAL:g}"
        name = "forward and gradient" if gradient else "forward"
        _show(f"fixed points, {name}, float32, relative {goal}", found)
        results[name] = found
    return results


def _alone(program: Callable[[int], tuple[Callable, tuple]]) -> Callable[[int], Sampler]:
    def sampler(count: int) -> Sampler:
        run, arguments = program(count)
        return stopwatch(run, *arguments)

    return sampler


def _torch_contenders(
    torch: torch_bridge.TorchPeer, method: str, problem: str, gradient: bool
) -> list:
    settings = {"problem": problem, "gradient": gradient, "max_steps": peers.MAX_STEPS}
    if method == "picard":
        return [torch.contender("torchdeq", "fixed_point_iter", **settings)]
    found = [torch.contender("torchdeq", "anderson", **settings, m=peers.DEPTH)]
    weak = torch.contender("torchdeq, lam 1e-12", "anderson", **settings, m=peers.DEPTH, lam=1e-12)
    return [*found, weak]


def _gradient_error(problem: problems.Equilibrium) -> Callable[[tuple], float]:
    exact = problem.bias_gradient()

    def error(bars: tuple) -> float:
        found = np.asarray(bars[1], np.float64)
        worst = np.linalg.norm(found - exact) / np.linalg.norm(exact)
        return float(worst) if np.isfinite(worst) else float("inf")

    return error


def compaction(rounds: int) -> list[dict[str, Any]]:
    """`batch.compacted` against plain `vmap` where one example in ten needs ten times the steps."""
    problem = problems.heavy_tail()
    theta = (problem.weights, problem.rates, problem.inputs)
    axes, start = (None, 0, 0), jnp.zeros_like(problem.inputs)
    settings = {"method": solvers.picard(), "rtol": RESIDUAL, "atol": 0.0}

    def plain(theta: tuple, start: jax.Array) -> tuple:
        def one(theta: tuple, start: jax.Array) -> tuple:
            return solvers.fixed_point(problem.map, theta, start, **settings)

        return jax.vmap(one, in_axes=(axes, 0))(theta, start)

    def compacted(theta: tuple, start: jax.Array) -> tuple:
        return solvers.batch.compacted(problem.map, theta, start, in_axes=axes, **settings)

    def differentiated(solve: Callable) -> Callable:
        def loss(theta: tuple, start: jax.Array) -> jax.Array:
            return jnp.sum(jnp.square(solve(theta, start)[0]))

        return jax.grad(loss)

    found = []
    for name, wrap in (("forward", lambda solve: solve), ("forward and gradient", differentiated)):
        programs = {"vmap": jax.jit(wrap(plain)), "compacted": jax.jit(wrap(compacted))}
        samplers = {key: stopwatch(program, theta, start) for key, program in programs.items()}
        timings = interleaved(samplers, rounds)
        row: dict[str, Any] = {
            "problem": f"heavy tail, batch of {len(start)}, {name}",
            "vmap_milliseconds": 1e3 * timings["vmap"].median,
            "compacted_milliseconds": 1e3 * timings["compacted"].median,
            "compacted_over_vmap": timings["compacted"].over(timings["vmap"]),
        }
        if name == "forward":
            results = {key: program(theta, start) for key, program in programs.items()}
            steps = np.asarray(results["compacted"][1].steps)
            assert np.array_equal(steps, np.asarray(results["vmap"][1].steps))
            row |= {
                "largest_residual": float(np.max(results["compacted"][1].residual)),
                "all_converged": bool(np.all(results["compacted"][1].converged)),
                "median_steps": int(np.median(steps)),
                "most_steps": int(steps.max()),
                "vmap_work": float(steps.max() * len(steps) / steps.sum()),
                "compacted_work": _rows_evaluated(steps) / float(steps.sum()),
            }
        found.append(row)
    report.table(
        "compaction: time, and rows evaluated over the sum of every example's own steps",
        ("problem", "vmap ms", "compacted ms", "compacted / vmap", "vmap work", "compacted work"),
        [
            (
                row["problem"],
                row["vmap_milliseconds"],
                row["compacted_milliseconds"],
                report.ratio(row["compacted_over_vmap"]),
                row.get("vmap_work"),
                row.get("compacted_work"),
            )
            for row in found
        ],
    )
    return found


def _rows_evaluated(steps: np.ndarray) -> int:
    """Batch rows that `compacted` evaluates: in each stage its size times the steps it lasts."""
    longest_first, sizes = np.sort(steps)[::-1], _sizes(len(steps), 5)
    done = rows = 0
    for size, smaller in zip(sizes, [*sizes[1:], 0], strict=True):
        # The stage ends when at most `smaller` examples are left running.
        until = int(longest_first[smaller]) if smaller < len(steps) else 0
        rows += size * max(until - done, 0)
        done = max(until, done)
    return rows


def _record(problem: str, entries: list[Entry], target: float) -> dict[str, Any]:
    ours = entries[0]
    return {
        "problem": problem,
        "target": target,
        "entries": [entry.record(ours) for entry in entries],
    }


def _show(title: str, records: list[dict[str, Any]]) -> None:
    rows = []
    for record in records:
        for index, entry in enumerate(record["entries"]):
            silent = index == 0 or entry["name"] == ALONE
            why_not = entry.get("note", "" if silent else "not reached")
            rows.append(
                (
                    record["problem"] if index == 0 else "",
                    entry["name"],
                    entry.get("milliseconds"),
                    report.ratio(entry.get("ours_over_this"), why_not),
                    entry.get("reached"),
                    entry.get("evaluations"),
                )
            )
    report.table(title, COLUMNS, rows)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.solvers", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, no large problem")
    options = parser.parse_args(arguments)
    rounds = 5 if options.quick else 21
    command = "python -m benchmarks.solvers" + (" --quick" if options.quick else "")
    content = report.environment(command, PACKAGES)
    content["rounds"] = rounds

    family = {"one": problems.equilibrium(), "batch": problems.equilibrium(batch=32)}
    python = torch_bridge.interpreter()
    with contextlib.ExitStack() as stack:
        torch = None
        if python is not None:
            torch = stack.enter_context(torch_bridge.TorchPeer(python, family))
            content["versions"] |= torch.greeting["versions"]
        content["linear"] = linear(rounds, options.quick)
        content["fixed_point"] = fixed_points(rounds, family, torch)
    content["compaction"] = compaction(rounds)
    if peers.missing:
        report.console().print(f"not installed: {', '.join(peers.missing)}")
    report.write("solvers-quick" if options.quick else "solvers", content)


if __name__ == "__main__":
    main()
