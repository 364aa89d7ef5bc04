"""The campaign: `python -m tests.fuzz --cases 10000 --seconds 3600 --out runs/fuzz.jsonl`."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path

import tests.conftest  # noqa: F401  (quick compilation, before jax starts)

import jax  # isort: skip

from tests.fuzz.cases import BLOCK, draw
from tests.fuzz.check import OK, REFUSED, Verdict, check
from tests.fuzz.programs import build


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=10000, help="numbers 0 to CASES - 1")
    parser.add_argument("--seconds", type=float, default=3600, help="stop after so long")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/fuzz.jsonl"))
    parser.add_argument("--only", type=int, help="run this one case and print all about it")
    options = parser.parse_args(argv)
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_traceback_filtering", "off")
    if options.only is not None:
        return reproduce(options.seed, options.only)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    lines = previous(options.out, options.seed)
    campaign(options, lines)
    print(table(lines))
    failed = [line for line in lines if line["verdict"] not in (OK, REFUSED)]
    for line in failed[:20]:
        print(f"seed {line['seed']} number {line['number']} {line['verdict']}: {line['case']}")
    return 1 if failed else 0


def campaign(options: argparse.Namespace, lines: list[dict]) -> None:
    """Runs the cases that are not there yet; appends a line for each to `lines` and the file."""
    begin = shown = time.monotonic()
    first = len(lines)
    with options.out.open("a") as out:
        for number in range(first, options.cases):
            if time.monotonic() - begin > options.seconds:
                break
            if number % BLOCK == 0:
                forget()
            line, _ = run_one(options.seed, number)
            lines.append(line)
            out.write(json.dumps(line) + "\n")
            out.flush()
            if time.monotonic() - shown > 10:
                shown = time.monotonic()
                failed = sum(line["verdict"] not in (OK, REFUSED) for line in lines)
                speed = (len(lines) - first) / (shown - begin)
                print(f"{len(lines)} cases, {failed} failed, {speed:.1f} a second", flush=True)


def run_one(seed: int, number: int) -> tuple[dict, Verdict]:
    """A case as a line of the report, and its verdict."""
    began = time.monotonic()
    case = draw(seed, number)
    verdict = check(case)
    line = {
        "seed": seed,
        "number": number,
        "kind": case.program.kind,
        "verdict": verdict.name,
        "statuses": verdict.statuses,
        "seconds": round(time.monotonic() - began, 3),
    }
    if verdict.name != OK:
        line |= {"case": case.describe(), "details": verdict.details}
    return line, verdict


def forget() -> None:
    """Programs of earlier blocks do not come back."""
    build.cache_clear()
    jax.clear_caches()


def previous(path: Path, seed: int) -> list[dict]:
    """What an earlier run has written; a last line that was cut off is taken away."""
    if not path.exists():
        return []
    whole = [text for text in path.read_text().splitlines(keepends=True) if text.endswith("\n")]
    path.write_text("".join(whole))
    lines = [json.loads(text) for text in whole]
    if any(line["seed"] != seed for line in lines):
        raise SystemExit(f"{path} holds cases of another seed: choose another --out")
    return lines


def table(lines: list[dict]) -> str:
    """Counts by kind and verdict, and by kind and status."""
    text = []
    for field in ("verdict", "status"):
        counts: Counter = Counter()
        for line in lines:
            values = [line["verdict"]] if field == "verdict" else line["statuses"]
            counts.update((line["kind"], value) for value in values)
        columns = sorted({value for _, value in counts})
        text.append(" ".join([f"{field:14}", *(f"{c:>18}" for c in columns)]))
        for kind in sorted({kind for kind, _ in counts}):
            text.append(" ".join([f"{kind:14}", *(f"{counts[kind, c]:18}" for c in columns)]))
        totals = [sum(n for (_, value), n in counts.items() if value == c) for c in columns]
        text.append(" ".join([f"{'all':14}", *(f"{total:18}" for total in totals)]) + "\n")
    return "\n".join(text)


def reproduce(seed: int, number: int) -> int:
    """One case, with everything that is known about it."""
    case = draw(seed, number)
    print(case.describe())
    for name, value in vars(case.data).items():
        print(f"{name} = {value!r}")
    _, verdict = run_one(seed, number)
    print(f"statuses {verdict.statuses}\n{verdict.name}: {verdict.details}")
    return int(verdict.failed)


if __name__ == "__main__":
    sys.exit(main())
