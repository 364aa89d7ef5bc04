"""What each command of `implicit-rnn` does with its parsed options; returns the exit code."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from implicit_rnn.experiments.options import ConfigError, named


def demo(options: argparse.Namespace) -> int:
    """Runs the demonstration."""
    from implicit_rnn.experiments.demo import run  # here and below: a command loads what it needs

    run(options.output, options.seed, options.time, options.width, options.command_line)
    return 0


def train(options: argparse.Namespace) -> int:
    """Trains every run of a configuration, alone or with other processes."""
    given = (options.coordinator, options.processes, options.process)
    if not options.distributed:
        if given != (None, None, None):
            raise ConfigError("--coordinator, --processes and --process belong to --distributed")
        return _train(options)
    from implicit_rnn.training.processes import together

    options.no_figures = True  # a process alone cannot restore what all have written
    with together(*given):
        return _train(options)


def _train(options: argparse.Namespace) -> int:
    """Trains every run of a configuration."""
    from implicit_rnn.experiments import figures, report_page
    from implicit_rnn.experiments import train as training
    from implicit_rnn.experiments.config import load
    from implicit_rnn.experiments.configurations import located
    from implicit_rnn.experiments.registry import Tasks
    from implicit_rnn.training.processes import first

    path = located(options.config)
    found = load(path, options.profile, options.settings)
    output = options.output
    if output is None:
        stem = named(path.stem, f"{path}: what comes before .toml")
        output = Path("runs") / (f"{stem}-{options.profile}" if options.profile else stem)
    tasks = Tasks()
    training.train(
        found,
        output,
        resume=options.resume,
        only=options.only,
        profile_trace=options.profile_trace,
        command=options.command_line,
        tasks=tasks,
    )
    gallery = figures.Gallery(tasks)
    files = [] if options.no_figures else figures.draw(output, gallery)
    page = None if options.no_figures else report_page.write(output, files, gallery)
    if first():
        _name_files(output, files)
    if page:
        print(f"\nopen {page.resolve().as_uri()} to see them together")
    return 0


def evaluate(options: argparse.Namespace) -> int:
    """Prints metrics of trained runs, or translates with them."""
    from implicit_rnn.experiments import runs
    from implicit_rnn.experiments.train import restored
    from implicit_rnn.training import CheckpointError

    if options.beam is not None:
        return _judge(options)
    rows, split = [], options.split or "test"
    folders = runs.run_folders(options.run)
    for folder in folders:
        try:
            found = restored(runs.configuration(folder), folder, options.average)
        except CheckpointError as error:
            _leave_out(error, folders)
            continue
        numbers = found.evaluate(split)
        rows.append({"run": folder.name, "update": found.record["update"], **numbers})
    return _tabled(f"{split} set", rows, options.run)


def _judge(options: argparse.Namespace) -> int:
    """Translates the test sets of every run; of other sequences, how many a search finds."""
    from implicit_rnn.experiments import report, runs, search
    from implicit_rnn.experiments.translation import use
    from implicit_rnn.training import CheckpointError

    rows, how = [], _search(options)
    folders = runs.run_folders(options.run)
    for folder in folders:
        judge = use.judge if use.translates(folder) else search.judge
        try:
            records = judge(folder, how, options.split)
        except CheckpointError as error:
            _leave_out(error, folders)
            continue
        rows += [{"run": folder.name, **record} for record in records]
    code = _tabled("found by search", rows, options.run)
    if rows and (options.run / runs.MARK).exists():
        report.tabulate(options.run, report.printer())
    return code


def _leave_out(error: Exception, folders: Sequence[Path]) -> None:
    """Says which of several runs cannot be used; of a single one that is the end."""
    if len(folders) == 1:
        raise error
    print(f"left out: {error}", file=sys.stderr)


def _tabled(title: str, rows: list[dict[str, Any]], output: Path) -> int:
    """Prints rows; without any there is nothing that a folder can be used for."""
    from implicit_rnn.experiments import report
    from implicit_rnn.training import FolderError

    if not rows:
        raise FolderError(f"{output} has no run that can be evaluated")
    report.printer().print(report.table(title, rows))
    return 0


def plot(options: argparse.Namespace) -> int:
    """Draws figures."""
    from implicit_rnn.experiments import figures, recorded

    if options.run.suffix == ".json":
        for path in recorded.draw(options.run, options.output or options.run.parent):
            print(f"wrote {path}")
        return 0
    if options.output:
        raise ConfigError("--output is for recorded results; figures of runs go in their plots/")
    _name_files(options.run, figures.draw(options.run))
    return 0


def report(options: argparse.Namespace) -> int:
    """Collects a run or an experiment in one HTML file."""
    from implicit_rnn.experiments import report_page

    print(f"wrote {report_page.write(options.run)}")
    return 0


def starts(options: argparse.Namespace) -> int:
    """Compares where solves end from several starts."""
    from implicit_rnn.experiments import runs, starts
    from implicit_rnn.training.files import write_json

    rows = [
        {"run": folder.name, **row}
        for folder in runs.run_folders(options.run)
        for row in starts.compare(folder, options.split, options.draws)
    ]
    if not rows:
        raise ConfigError(f"{options.run} holds no tagger with solved layers: nothing to start")
    title = f"Where solves end, {options.split} set"
    if options.output:
        write_json(options.output, {"title": title, "rows": rows})
    return _tabled(title, rows, options.run)


def tag(options: argparse.Namespace) -> int:
    """Tags the words of a text."""
    from implicit_rnn.experiments.tagging import use
    from implicit_rnn.experiments.tagging.page import write_page
    from implicit_rnn.training import FolderError

    read = _text(options)
    if options.picture and options.picture.suffix not in (".png", ".html"):
        raise FolderError(f"a picture is a .png or a .html file, got {options.picture}")
    found = use.tag_text(use.load(options.run), read())
    for sentence in found:
        for word, name in zip(sentence.words, sentence.tags, strict=True):
            print(f"{word}\t{name}")
        print()
    path = options.picture
    if path and path.suffix == ".html":
        print(f"wrote {write_page(found, path)}", file=sys.stderr)
        return 0
    for number, sentence in enumerate(found if path else [], 1):
        own = path if number == 1 else path.with_stem(f"{path.stem}-{number}")
        print(f"wrote {use.picture(sentence, own)}", file=sys.stderr)
    return 0


def translate(options: argparse.Namespace) -> int:
    """Translates a text."""
    from implicit_rnn.experiments.translation import use

    read = _text(options)
    trained = use.load(options.run, _search(options))
    for text in use.translate(trained, read().splitlines()):
        print(text)
    return 0


def record(options: argparse.Namespace) -> int:
    """Collects an experiment in one file."""
    from implicit_rnn.experiments import report, runs

    runs.run_folders(options.run)
    path = options.output or Path("results") / f"{options.run.name}.json"
    print(report.record(options.run, path, add=options.add))
    print(f"wrote {path}")
    return 0


def list_all(options: argparse.Namespace) -> int:
    """Prints what there is."""
    from implicit_rnn.experiments import listing

    listing.show()
    return 0


def data(options: argparse.Namespace) -> int:
    """Lists, fetches or verifies data sets."""
    from implicit_rnn.experiments import data

    return {"list": data.show, "fetch": data.fetch_all, "verify": data.verify_all}[options.action](
        options.names
    )


def _text(options: argparse.Namespace) -> Callable[[], str]:
    """Reads what a command is to work on: its argument, a file, or standard input."""
    from implicit_rnn.training import FolderError

    if options.text is not None and options.file is not None:
        raise FolderError("give a text or --file, not both")
    text = options.text
    if options.file is not None:
        try:
            text = options.file.read_text("utf-8")
        except UnicodeDecodeError as error:
            raise FolderError(f"{options.file} is not UTF-8: {error}") from None

    def read() -> str:
        if text is not None:
            return text
        try:
            return sys.stdin.read()
        except UnicodeDecodeError as error:
            raise FolderError(f"standard input is not UTF-8: {error}") from None

    return read


def _search(options: argparse.Namespace):
    from implicit_rnn.experiments.search import Search

    return Search(options.beam, options.length_penalty, options.average)


def _name_files(output: Path, figures: Sequence[Path]) -> None:
    """Says what a command left behind."""
    from implicit_rnn.training.folder import LOCKS

    print(f"\nall files are in {output}:")
    shown = sorted(path for path in output.rglob("*") if path.is_file())
    groups: dict[Path, list[str]] = {}
    for path in shown:
        if "checkpoints" not in path.parts and path.name not in LOCKS:
            groups.setdefault(path.parent, []).append(path.name)
    for folder, names in groups.items():
        print(f"  {folder}: {', '.join(names)}")
    kept = sorted({path for path in output.rglob("checkpoints") if path.is_dir()})
    for folder in kept:
        print(f"  {folder}: the best and the last states")
    for path in figures:
        print(f"wrote {path}")
