"""All quick benchmarks, and one table of what they found: `python -m benchmarks`.

    python -m benchmarks                # runs those in MODULES, then prints the table
    python -m benchmarks --table        # prints it from benchmarks/results/

Every number is a ratio, ours over the peer's, taken side by side in one run; below one we are
faster, but for the last row. "before" is what was measured when the aims were set; "limit" what the
ratio would be if ours were its matrix products, or evaluations of the map, alone (of the last row:
its training steps alone).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from benchmarks import report
from benchmarks.contest import ALONE

MODULES = {
    "sweep": [],
    "implicit_layer": ["--shape", "20,40,200", "--rounds", "7"],
    "recurrent": [],
    "xrnn": ["--rounds", "3"],
    "solvers": ["--quick"],
    "hyper": ["--rounds", "3"],
}
FRESH, SLOW, TRAINED = (
    f"B=20, T=40, d=200, {weights}"
    for weights in ("fresh, update bias 0", "fresh, update bias -3", "trained")
)


def loaded(name: str) -> dict[str, Any]:
    path = report.RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def over(rows: Iterable[dict[str, Any]], ours: str, peer: str) -> float:
    """Time of ours over that of the peer: the median of the ratios round by round."""
    by_name = {row["name"]: row["peer_over_ours"] for row in rows}
    return by_name[ours] / by_name[peer]


def spread(numbers: Iterable[float]) -> str:
    found = sorted(numbers)
    return f"{found[0]:.2f}" if len(found) == 1 else f"{found[0]:.2f}-{found[-1]:.2f}"


def compilation() -> str:
    found = loaded("sweep")["compilation"]
    return f"{found['seconds']:.0f} s in {found['programs_over_a_quarter_second']} programs"


def sweep() -> str:
    found = loaded("sweep")["sweep"]
    return f"{found['sweep_milliseconds'] / found['products_milliseconds']:.2f}"


def step_compilation() -> str:
    rows = {row["name"]: row["compile_seconds"] for row in loaded("implicit_layer")["step"][FRESH]}
    return f"{rows['ours, recipe'] / rows['flax bidirectional lstm']:.2f}"


def step() -> str:
    steps = loaded("implicit_layer")["step"]
    ratios = [over(steps[at], "ours, recipe", "flax bidirectional lstm") for at in (FRESH, TRAINED)]
    return " / ".join(f"{ratio:.2f}" for ratio in ratios)


def plain() -> str:
    return f"{over(loaded('sweep')['plain'], 'vmap(implicit)', 'flax bidirectional lstm'):.2f}"


def forward() -> str:
    rows = loaded("implicit_layer")["forward"][FRESH]
    peers = [row["name"] for row in rows if not row["name"].startswith("ours")]
    return f"{max(over(rows, 'ours, sweeps', peer) for peer in peers):.2f}"


def paper() -> str:
    steps = loaded("implicit_layer")["step"]
    return spread(
        over(steps[at], "ours, the paper's tolerances", "paper, newton-bicgstab")
        for at in (FRESH, SLOW, TRAINED)
    )


def core(kind: str, method: str) -> Callable[[], str]:
    """A method of `solvers` over every peer that reached the target, in one of its tables."""

    def ratios() -> str:
        return spread(
            entry["ours_over_this"]
            for entries in contests(kind, method)
            for entry in entries
            if entry.get("ours_over_this") is not None and entry["reached_target"]
        )

    return ratios


def contests(kind: str, method: str) -> list[list[dict[str, Any]]]:
    """The entries of every problem; ours come first."""
    found = loaded("solvers-quick") or loaded("solvers")
    parts = found["linear"] if kind == "linear" else found["fixed_point"]["forward"]
    return [p["entries"] for p in parts if p["entries"][0]["name"].endswith(method)]


def core_limit(kind: str, method: str) -> Callable[[], str]:
    """If ours were the evaluations alone, over the fastest peer, by problem."""

    def ratios() -> str:
        found = []
        for ours, *others in contests(kind, method):
            alone = next(e["milliseconds"] for e in others if e["name"] == ALONE)
            peers = [e["milliseconds"] for e in others if e.get("reached_target") and e != ours]
            found.append(alone / min(peers))
        return spread(found)

    return ratios


def xrnn() -> str:
    found = loaded("xrnn")
    ratios = []
    for depth in (2, 3):
        rows = found[f"depth {depth}"]
        peer = next(row["name"] for row in rows if "flax" in row["name"])
        ratios.append(over(rows, "all steps at once", peer))
    return " / ".join(f"{ratio:.2f}" for ratio in ratios)


def recurrent() -> str:
    return spread(over(rows, "ours", "flax") for rows in loaded("recurrent")["steps"].values())


def hyper() -> str:
    rows = {row["program"]: row for row in loaded("hyper")["rows"]}
    return f"{rows['neumann 100, averaged 5']['time x']:.2f}"


def limit(row: str, *weights: str) -> Callable[[], str]:
    def of_products() -> str:
        found = loaded("sweep")["limits"]
        return " / ".join(f"{found[f'{row}, {name}']['limit']:.2f}" for name in weights)

    return of_products


def recurrent_limit() -> str:
    found = loaded("recurrent")["steps"].values()
    return spread(over(rows, "products alone", "flax") for rows in found)


def hyper_limit() -> str:
    rows = {row["program"]: row for row in loaded("hyper")["rows"]}
    return f"{rows['training alone']['time x']:.2f}"


class Row(NamedTuple):
    """A line of the table; `limit` is told where there is work that none can do without."""

    what: str
    before: str
    aim: str
    now: Callable[[], str]
    limit: Callable[[], str] = str

    def cells(self) -> list[str]:
        return [self.what, self.before, self.aim, measured(self.now), measured(self.limit)]


def core_row(what: str, before: str, kind: str, method: str) -> Row:
    return Row(what, before, "1.0", core(kind, method), core_limit(kind, method))


ROWS = [
    Row("make run, implicit GRU: tracing and compilation", "30 s in 17", "8 s", compilation),
    Row("a backward sweep over its matrix products (32, 40, 200)", "3.7", "1.5", sweep),
    Row("compilation of a training step over flax's b-LSTM", "2.0-2.7", "1.3", step_compilation),
    Row(
        "training step over flax's b-LSTM, fresh / trained",
        "3 sweeps: 1.3 / 1.4",
        "1.0 / 1.2",
        step,
        limit("step", "fresh", "trained"),
    ),
    Row(
        "vmap(implicit), 1e-4, exact adjoint, over the b-LSTM's step",
        "2.2",
        "1.5",
        plain,
        limit("plain function", "fresh"),
    ),
    Row(
        "forward to 1e-4 over the best peer, fresh",
        "0.22-0.29",
        "0.17",
        forward,
        limit("forward", "fresh"),
    ),
    Row(
        "the paper's tolerances: ours over its algorithm",
        "0.11-0.5",
        "0.12",
        paper,
        limit("paper's tolerances", "fresh", "trained"),
    ),
    core_row("BiCGSTAB over jax.scipy, lineax", "1.06-1.54", "linear", "bicgstab"),
    core_row("GMRES over jax.scipy, lineax", "0.28-1.32", "linear", "gmres"),
    core_row("Picard over jaxopt, optimistix", "1.16-1.26", "fixed_point", "picard"),
    core_row("Anderson over jaxopt", "1.18-1.25", "fixed_point", "anderson"),
    Row("X-RNN, linear base, over flax's LSTM, depth 2 / 3", "0.9 / 1.1", "0.7 / 0.9", xrnn),
    Row(
        "our LSTM and GRU over flax's, long sequences", "1.2-1.3", "0.8", recurrent, recurrent_limit
    ),
    Row(
        "BPTT over Neumann-RBP (100, five averaged); higher is better",
        "2.57",
        "3.5",
        hyper,
        hyper_limit,
    ),
]


def measured(row: Callable[[], str]) -> str:
    try:
        return row()
    except (KeyError, ValueError, StopIteration, IndexError):
        return "not measured"


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--table", action="store_true", help="print what is recorded, run nothing")
    arguments = parser.parse_args(given)
    failed = []
    for name, options in {} if arguments.table else MODULES.items():
        print(f"python -m benchmarks.{name} {' '.join(options)}", flush=True)
        if subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *options]).returncode:
            failed.append(name)
    rows = [row.cells() for row in ROWS]
    columns = ["", "before", "aim", "now", "limit"]
    report.table("ours over the peer's: below one we are faster", columns, rows)
    for name in failed:
        print(f"benchmarks.{name} failed", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
