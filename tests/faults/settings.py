"""Mutated configurations and command lines: `python -m tests.faults.settings --cases 2000`.

The command's own entry point runs in this process, up to the point where a run would compile its
first program: the configuration is read and checked, task and model are built, batches of every
split are planned and made, and the program is traced. `--children N` sends so many of the cases
through real child processes as well, and compares how they end.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import inspect
import io
import os
import random
import resource
import signal
import sys
import tempfile
import time
import tomllib
import traceback
import typing
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import tests.conftest  # noqa: F401  (quick compilation, for the children as well)

import jax  # isort: skip
import numpy as np

from implicit_rnn.cells import CELLS
from implicit_rnn.cli import main as command
from implicit_rnn.experiments import figures
from implicit_rnn.experiments import train as experiments
from implicit_rnn.experiments.networks import ENCODERS
from implicit_rnn.experiments.registry import MODELS, TASKS
from implicit_rnn.models.encoder import encoder
from implicit_rnn.training import OptimiserSettings, Recipe, SettingsError, TrainingSettings
from implicit_rnn.training import trainer as trainer_of
from implicit_rnn.training.tables import dump
from tests.faults.child import ROOT, run

SECONDS = 60
MEMORY = 3 * 2**30  # beyond what this process has when it begins
ENDED, REFUSED, LONG, FAILED = "would train", "refused", "asks for much", "FAILED"

SMALL = {"train": 40, "valid": 20, "test": 20}
# Of every task that needs no file: sizes that take no time.
TASK_SIZES: dict[str, dict[str, Any]] = {
    "associative_memory": {"count": 4}, "biased_walk": {**SMALL, "max_length": 5}, "citation": {},
    "hyper": {"steps": 8, "minibatch": 10, "train": 40, "held_out": 10}, "ice_cream": SMALL,
    "music": {}, "parsing": {**SMALL, "depth": 2}, "pixels": {"train": 40, "test": 20, "pool": 4},
    "sorting": SMALL, "translation": {**SMALL, "merges": 10},
    "tree_traversal": {**SMALL, "depth": 3},
}  # fmt: skip
ODD: list[Any] = [
    float("nan"), float("inf"), float("-inf"), -1, 0, 1, 2, 0.5, -0.5, 1e-30, 1e38, 1e300, 10**6,
    2**31, 10**30, 10**400, True, "", "x", "none", "auto", "../../evil", "a/b", "\\", "\x00", "\n",
    "[bold]", "[/]", ":smile:", "\u202e", "\U0001f600" * 50, "x" * 5000, [], [1, 2], [[]], ["x"],
    [float("nan")], {}, {"name": "x"}, {"a": {"b": []}},
]  # fmt: skip
WORDS = [
    "--set", "--only", "--output", "--profile", "--resume", "--no-figures", "train", "evaluate",
    "plot", "tag", "translate", "record", "list", "data", "fetch", "verify",
    "--average", "-1", "nan", "",
    "--beam", "0", "--length-penalty", "x", "=", "task.bias", "task.bias=", "task.bias=[",
    "a.b.c=3",
    ".=1", "--", "-x", "\U0001f600", "biased_walk", "nowhere", "..", "/", "/dev/null", "--help",
]  # fmt: skip


class Case(NamedTuple):
    """A configuration as text, and the words of the command; `CONFIG` and `OUT` are its paths."""

    content: bytes
    words: list[str]


def bases() -> list[dict[str, Any]]:
    """Configurations of the library that need no file, made small."""
    found = []
    for path in sorted((ROOT / "configs").glob("*.toml")):
        content = tomllib.loads(path.read_text())
        quick = content.get("profiles", {}).get("quick", {})
        if {**content["task"], **quick.get("task", {})}["name"] not in TASK_SIZES:
            continue
        merged = {
            name: {**content.get(name, {}), **quick.get(name, {})}
            for name in ("task", "model", "solver", "optimiser", "training")
        }
        merged["task"] |= TASK_SIZES[merged["task"]["name"]]
        for key in ("hidden", "width"):
            if isinstance(merged["model"].get(key), int):
                merged["model"][key] = 4
        merged["training"] |= {"batch": 1 if merged["task"]["name"] == "citation" else 2}
        found.append(merged | {"variants": quick.get("variants", content.get("variants", {}))})
    return found


BASES = bases()


def options(content: dict[str, Any], table: str) -> dict[str, Any]:
    """Keys that a table may have, with the types of their values."""
    own = content.get(table)
    name = str(own.get("name", "")) if isinstance(own, dict) else ""
    takes: list[Any] = {
        "task": [TASKS.get(name, dict)],
        "model": [encoder, *CELLS.values(), *ENCODERS.values(), MODELS.get(name, dict)],
        "solver": [Recipe], "optimiser": [OptimiserSettings], "training": [TrainingSettings],
    }[table]  # fmt: skip
    found: dict[str, Any] = {}
    for made in takes:
        if made is not dict:
            found |= typing.get_type_hints(made.__init__ if inspect.isclass(made) else made)
    return {key: hint for key, hint in sorted(found.items()) if key != "return"}


def value(hint: Any, rng: random.Random) -> Any:
    """A value for an option: one that fits its type more often than not."""
    words = [word for word in typing.get_args(hint) if isinstance(word, str)]
    if words and rng.random() < 0.7:
        return rng.choice(words)
    if hint is bool and rng.random() < 0.7:
        return rng.random() < 0.5
    if rng.random() < 0.6:
        return rng.choice(
            [1, 2, 3, 4, 5, 7] if "int" in str(hint) else [0.0, 0.1, 0.5, 0.9, 1, 3.0]
        )
    return rng.choice(ODD)


def mutate(content: dict[str, Any], rng: random.Random) -> None:
    """Changes one thing in a configuration."""
    table = rng.choice(["task", "model", "model", "solver", "optimiser", "training"])
    own = content.get(table)
    how = rng.choice(
        ["value", "value", "near", "near", "near", "known", "known", "known", "known", "delete",
         "typo", "table", "top",
         "variant", "grid", "paper"]
    )  # fmt: skip
    if how in ("value", "known", "near", "delete", "typo") and not isinstance(own, dict):
        return
    if how == "value" and own:
        own[rng.choice(sorted(own))] = rng.choice(ODD)
    elif how == "known":
        key, hint = rng.choice([*options(content, table).items()])
        own[key] = value(hint, rng)
    elif how == "near" and own:
        key = rng.choice(sorted(own))
        if isinstance(own[key], int | float):
            own[key] = own[key] * rng.choice([-1, 0, 2, 3]) + rng.choice([-1, 0, 1, 0.5])
        else:
            names = [*CELLS, *ENCODERS, *TASKS, *MODELS, "bigru", "biigru", "neumann", "picard"]
            own[key] = rng.choice(names)
    elif how == "delete" and own:
        del own[rng.choice(sorted(own))]
    elif how == "typo" and own:
        key = rng.choice(sorted(own))
        own[key[:-1] if rng.random() < 0.5 else key + "x"] = own.pop(key)
    elif how == "table":
        content[table] = rng.choice(ODD)
    elif how == "top":
        name = rng.choice(["title", "paper", "grid", "variants", "profiles", "x"])
        content[name] = rng.choice(ODD)
    elif how == "variant":
        name = rng.choice([value for value in ODD if isinstance(value, str)])
        content["variants"] = {name: rng.choice([{}, 3, {"model": {"hidden": 3}}, {"x": 1}])}
    elif how == "grid":
        key = rng.choice(["task.seed", "model.hidden", "optimiser.rate", "x", "task", ".", "x.y"])
        content["grid"] = {key: rng.choice([[1, 2], [1, 1], rng.choice(ODD), [rng.choice(ODD)]])}
    elif how == "paper":
        content["paper"] = [{"variant": rng.choice(ODD), "error": rng.choice(ODD)}]


def drawn(seed: int, number: int) -> Case:
    """A case by its number."""
    rng = random.Random(f"settings {seed} {number}")
    content = copy.deepcopy(rng.choice(BASES))
    words = ["train", "CONFIG", "--output", "OUT", "--no-figures"]
    kind = rng.choice(["table", "table", "table", "table", "text", "words", "set", "set"])
    if kind == "table":
        for _ in range(rng.randint(1, 3)):
            mutate(content, rng)
    try:
        text = dump(content).encode("utf-8", "surrogatepass")
    except (TypeError, ValueError, AttributeError):
        text = b"title = 3"
    if kind == "text":
        found = bytearray(text)
        for _ in range(rng.randint(1, 5)):
            place = rng.randrange(len(found))
            found[place : place + rng.choice([0, 1, 10])] = rng.choice(
                [b"", b"\xff", b"[", b'"', b"\n", b"=", b"{", b"]]", b"'''", b"1979-05-27",
                 b"0x", b"\x00"]
            )  # fmt: skip
        text = bytes(found)
    if kind == "words":
        count = rng.randint(1, 6)
        words = [*(words if rng.random() < 0.5 else []), *rng.choices(WORDS, k=count)]
    if kind == "set":
        table = rng.choice(["task", "model", "solver", "optimiser", "training"])
        for _ in range(rng.randint(1, 2)):
            key, hint = rng.choice([*options(content, table).items()])
            given = value(hint, rng)
            words += ["--set", f"{table}.{key}={given if isinstance(given, str) else toml(given)}"]
    return Case(text, [word.replace("\x00", "\\u0000") for word in words])


def toml(value: Any) -> str:
    return dump({"x": value}).strip().removeprefix("x = ")


def as_far_as_the_first_program(task: Any, model: Any, **how: Any) -> dict[str, Any]:
    """In place of training: everything that comes before a program is compiled."""
    given = {key: how[key] for key in ("recipe", "optimiser", "settings")}
    try:
        parts = trainer_of(task, model, **given)
        jax.eval_shape(parts.init)
    except ValueError as error:  # as the loop has it
        raise SettingsError(str(error)) from error
    settings = given["settings"]
    carries = bool(getattr(model, "carry", None))
    for name, split in task.splits.items():
        rng = np.random.default_rng(0) if name == "train" else None
        size = settings.batch if carries or name == "train" else settings.evaluate_batch
        try:
            plan = split.plan(size, settings.buckets, rng)
        except ValueError as error:
            raise SettingsError(str(error)) from error
        split.batch(plan[0])
    raise Reached


class Reached(Exception):
    """The first program would be compiled now."""


class TooLong(BaseException):
    """What is asked for takes long."""


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """Ends what takes more than `SECONDS`, or more memory than there is to give."""

    def late(number: int, frame: object) -> None:
        raise TooLong

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def placed(case: Case, folder: Path) -> list[str]:
    """The words of a case, its configuration written."""
    (folder / "case.toml").write_bytes(case.content)
    paths = {"CONFIG": str(folder / "case.toml"), "OUT": str(folder / "deep" / "er" / "out")}
    return [paths.get(word, word) for word in case.words]


def one(seed: int, number: int) -> tuple[str, str]:
    """A verdict on a case, with what was said."""
    out, err = io.StringIO(), io.StringIO()
    with tempfile.TemporaryDirectory() as name:
        folder, here = Path(name), os.getcwd()
        words = placed(drawn(seed, number), folder)
        (folder / "here").mkdir()
        os.chdir(folder / "here")
        try:
            with (
                bounded(), warnings.catch_warnings(), contextlib.redirect_stdout(out),
                contextlib.redirect_stderr(err), mock.patch("sys.stdin", io.StringIO("")),
                mock.patch.object(experiments, "train_model", as_far_as_the_first_program),
                mock.patch.object(figures, "draw", return_value=[]),
                mock.patch("urllib.request.urlopen", side_effect=ConnectionError("no network")),
            ):  # fmt: skip
                warnings.simplefilter("ignore")
                code = command(words)
            verdict = ENDED if code == 0 else REFUSED
        except Reached:
            verdict = ENDED
        except SystemExit as ended:
            verdict = ENDED if not ended.code else REFUSED
        except TooLong:
            verdict = LONG
        except BaseException:
            return FAILED, f"{words[-6:]}\n{traceback.format_exc()[-1800:]}"
        finally:
            os.chdir(here)
        strange = [path for path in folder.rglob("*") if path.is_file() and path.suffix == ""
                   and "out" not in path.parts and "runs" not in path.parts]  # fmt: skip
        if strange:
            return FAILED, f"{words[-6:]} wrote {strange}"
    if verdict == REFUSED and not err.getvalue().strip():
        return FAILED, f"{words[-6:]}: refused, and nothing said on stderr: {out.getvalue()[-300:]}"
    return verdict, err.getvalue()


def compared(seed: int, number: int) -> str:
    """What is wrong with a case in a child process, where this process refuses it; or nothing."""
    verdict, words = one(seed, number)
    if verdict != REFUSED:
        return ""
    with tempfile.TemporaryDirectory() as name:
        ended = run(*placed(drawn(seed, number), Path(name)))
    if ended.code not in (1, 2) or "Traceback" in ended.err:
        return f"{number}: {ended}"
    return "" if ended.err.strip() else f"{number}: nothing said: {words}"


def limit_memory() -> None:
    """A request for more memory than there is must not disturb others on this machine."""
    with open("/proc/self/statm") as file:
        own = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (own + MEMORY, own + MEMORY))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.settings", description=__doc__)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--children", type=int, default=20)
    chosen = parser.parse_args(argv)
    jax.devices()
    wrong = [compared(chosen.seed, number) for number in range(chosen.children)]
    limit_memory()
    counts: Counter[str] = Counter()
    failed, shown = [word for word in wrong if word], time.monotonic()
    for number in range(chosen.cases):
        verdict, words = one(chosen.seed, number)
        counts[verdict] += 1
        if verdict == FAILED:
            failed.append(f"{number}: {words}")
        if number % 50 == 49:
            jax.clear_caches()
        if time.monotonic() - shown > 60:
            shown = time.monotonic()
            print(number + 1, dict(counts), flush=True)
    print(f"{sum(counts.values())} cases: {dict(counts)}; {chosen.children} in children")
    print("\n".join(failed[:40]))
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
