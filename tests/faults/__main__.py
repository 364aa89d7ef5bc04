"""The campaign: `python -m tests.faults --cases 200 --seconds 7200 --out runs/faults.jsonl`."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import tests.conftest  # noqa: F401  (quick compilation, for the children as well)
from implicit_rnn.training.tables import dump
from tests.faults.cases import WEIGHTS, Bench, drawn, mountable, tried
from tests.faults.child import Forked, end, strike
from tests.implicit_rnn.experiments.problems import CONTENT

FAILED = "FAILED"
SMALL = CONTENT | {"model": {"name": "tagger", "encoder": "gru", "hidden": 3}}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--cases", type=int, default=200, help="numbers 0 to CASES - 1")
    parser.add_argument("--seconds", type=float, default=7200, help="stop after so long")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/faults.jsonl"))
    parser.add_argument("--kind", nargs="+", choices=WEIGHTS, help="pass over cases of other kinds")
    parser.add_argument("--only", type=int, help="try this one case and print all about it")
    options = parser.parse_args(argv)
    # So that disks of a campaign that is ended are taken away.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    lines = previous(options.out, options.seed)
    began, done = time.monotonic(), {line["number"] for line in lines}
    numbers = [number for number in range(options.cases) if number not in done]
    if options.kind:
        disks = mountable()
        numbers = [n for n in numbers if drawn(options.seed, n, disks)[0] in options.kind]
    with own_folder() as folder, options.out.open("a") as out:
        bench = prepared(folder, forks=hasattr(os, "fork"))
        for number in numbers if options.only is None else [options.only]:
            if time.monotonic() - began > options.seconds:
                break
            line = one(bench, folder, options.seed, number)
            print(json.dumps(line), flush=True)
            if options.only is None:
                lines.append(line)
                out.write(json.dumps(line) + "\n")
                out.flush()
    print(table(lines))
    return int(any(line["verdict"] == FAILED for line in lines))


@contextlib.contextmanager
def own_folder() -> Iterator[Path]:
    """A temporary one; `TemporaryDirectory` would remove it at the end of every fork, too."""
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def prepared(folder: Path, forks: bool = False) -> Bench:
    """A run that nothing happens to, one that is ended half-way, and how long it takes to begin."""
    config = folder / "small.toml"
    config.write_text(dump(SMALL))
    bench = Bench(config, folder / "whole", folder / "half")
    ended = end(bench.start(bench.whole))
    assert ended.code == 0, ended
    child = bench.start(bench.half)
    # It is sealed by the time that the next one is written.
    assert strike(child, signal.SIGTERM, (bench.half / "checkpoints" / "000007.json").exists)
    end(child)
    assert not (bench.half / "result.json").exists()
    first, _ = timed(bench, folder / "again")
    if not forks:
        return bench._replace(seconds=first)
    Forked.import_all()
    bench = bench._replace(seconds=first, forks=True)
    begins, lasts = timed(bench, folder / "forked")
    return bench._replace(share=lasts / begins)


def timed(bench: Bench, folder: Path) -> tuple[float, float]:
    """Seconds that a run takes to begin, and from there to its end."""
    began = time.monotonic()
    child = bench.start(folder)
    while not (folder / "config.toml").exists():
        time.sleep(0.001)
    begins = time.monotonic() - began
    ended = end(child)
    assert bench.same(folder), ended
    return begins, time.monotonic() - began - begins


def one(bench: Bench, folder: Path, seed: int, number: int) -> dict:
    """A case as a line of the report."""
    kind, rng = drawn(seed, number, mountable())
    own, began = folder / f"case-{number}", time.monotonic()
    line = {"seed": seed, "number": number, "kind": kind}
    try:
        verdict, what = tried(kind, bench, own, rng)
        line |= {"verdict": verdict, "what": what}
    except Exception:
        line |= {"verdict": FAILED, "what": traceback.format_exc()[-3000:]}
    shutil.rmtree(own, ignore_errors=True)
    return line | {"seconds": round(time.monotonic() - began, 1)}


def previous(path: Path, seed: int) -> list[dict]:
    """What an earlier campaign has written, to be gone on with."""
    if not path.exists():
        return []
    lines = [json.loads(text) for text in path.read_text().splitlines()]
    if any(line["seed"] != seed for line in lines):
        raise SystemExit(f"{path} holds cases of another seed: choose another --out")
    return lines


def table(lines: list[dict]) -> str:
    """Counts by kind and verdict."""
    counts = Counter((line["kind"], line["verdict"]) for line in lines)
    kinds, verdicts = (sorted({key[side] for key in counts}) for side in (0, 1))
    rows = [["kind", *verdicts, "all"]]
    for kind in kinds:
        own = [counts[kind, verdict] for verdict in verdicts]
        rows.append([kind, *map(str, own), str(sum(own))])
    sums = [sum(counts[kind, verdict] for kind in kinds) for verdict in verdicts]
    rows.append(["all", *map(str, sums), str(sum(sums))])
    rows.insert(1, ["---"] * len(rows[0]))
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


if __name__ == "__main__":
    sys.exit(main())
