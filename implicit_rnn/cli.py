"""The command line: parses arguments and calls what does the work."""

from __future__ import annotations

import argparse
import importlib.metadata
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of `implicit-rnn`; returns the exit code."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    options = parser().parse_args(arguments)
    options.command_line = shlex.join(["implicit-rnn", *arguments])
    try:
        return options.handler(options)
    except (OSError, RuntimeError, ValueError) as error:
        # What the library says about its input; a defect of its own keeps its traceback.
        if not isinstance(error, OSError) and not type(error).__module__.startswith("implicit_rnn"):
            raise
        print(f"implicit-rnn: {error}", file=sys.stderr)
        return 1


def parser() -> argparse.ArgumentParser:
    """All commands and their options."""
    root = argparse.ArgumentParser(
        prog="implicit-rnn",
        description="Recurrent networks whose states are defined by an equation.",
        epilog="`implicit-rnn COMMAND --help` describes a command.",
    )
    root.add_argument("--version", action="version", version=_version())
    commands = root.add_subparsers(title="commands", metavar="COMMAND", required=True)

    demo = commands.add_parser(
        "demo",
        help="solve one implicit recurrence with every method, linear solver and adjoint",
        description=(
            "Solves an implicit recurrence, h_t = tanh(W x_t + P h_(t-1) + N h_(t+1) + b), with "
            "every fixed-point method; its backward system with every linear solver; and "
            "differentiates a loss with every adjoint, compared with a dense direct solve. "
            "Prints three tables; writes two figures and result.json."
        ),
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    demo.add_argument(
        "--output", type=Path, default=Path("runs/demo"), metavar="DIR", help="where files go"
    )
    demo.add_argument("--seed", type=_at_least(0), default=0, help="of parameters and inputs")
    demo.add_argument("--time", type=_at_least(1), default=64, help="length of the sequence")
    demo.add_argument("--width", type=_at_least(1), default=16, help="channels of the state")
    demo.set_defaults(handler=_demo)

    train = commands.add_parser(
        "train",
        help="train what a configuration describes",
        description=(
            "Trains every run of a configuration, prints a table of them and draws figures. A run "
            "that was killed goes on with --resume as if nothing had happened."
        ),
    )
    train.add_argument("config", type=Path, metavar="CONFIG", help="a TOML file, see configs/")
    train.add_argument("--profile", help="a profile of the file: quick, paper, ...")
    train.add_argument(
        "--set", action="append", default=[], metavar="TABLE.KEY=VALUE", dest="settings",
        help="replaces one setting; may be repeated",
    )  # fmt: skip
    train.add_argument(
        "--only", nargs="+", default=[], metavar="RUN", help="only runs whose names fit, like 'b*'"
    )
    train.add_argument(
        "--output", type=Path, metavar="DIR", help="default: runs/CONFIG or runs/CONFIG-PROFILE"
    )
    train.add_argument("--resume", action="store_true", help="go on where the folder's runs are")
    train.add_argument("--no-figures", action="store_true", help="draw nothing at the end")
    train.set_defaults(handler=_train)

    evaluate = commands.add_parser(
        "evaluate",
        help="metrics of a run's best checkpoint, or of the mean of several",
        description=(
            "Prints metrics of trained runs on one of their sets. With --beam, translates test "
            "sets by beam search, writes the translations and adds their BLEU to the run's result."
        ),
    )
    evaluate.add_argument("run", type=Path, metavar="RUN", help="a run's or experiment's folder")
    evaluate.add_argument(
        "--split", help="train, valid, test, or a part of it that the task names; default: test, "
        "with --beam all test sets",
    )  # fmt: skip
    _add_search(evaluate, beam=None)
    evaluate.set_defaults(handler=_evaluate)

    plot = commands.add_parser("plot", help="draw the figures of a run or an experiment")
    plot.add_argument("run", type=Path, metavar="RUN", help="a run's or experiment's folder")
    plot.set_defaults(handler=_plot)

    tag = commands.add_parser(
        "tag",
        help="tag the words of a text with a trained tagger",
        description=(
            "Prints every word with its tag, a line each, and a blank line after each sentence. "
            "Without TEXT and --file, the text is read from standard input. A line break always "
            "ends a sentence."
        ),
    )
    tag.add_argument("run", type=Path, metavar="RUN", help="a run's folder")
    tag.add_argument("text", nargs="?", metavar="TEXT", help="a sentence, or several")
    tag.add_argument("--file", type=Path, metavar="FILE", help="a text file in UTF-8")
    tag.add_argument(
        "--picture", type=Path, metavar="FILE",
        help="draw where each word looks, to the past or to the future: FILE.html, a page of all "
        "sentences, or FILE.png, with FILE-2.png and so on for further ones",
    )  # fmt: skip
    tag.set_defaults(handler=_tag)

    translate = commands.add_parser(
        "translate",
        help="translate sentences with a trained translation",
        description=(
            "Prints the translation of every line of a text. Without TEXT and --file, the text is "
            "read from standard input."
        ),
    )
    translate.add_argument("run", type=Path, metavar="RUN", help="a run's folder")
    translate.add_argument("text", nargs="?", metavar="TEXT", help="a sentence, or several lines")
    translate.add_argument("--file", type=Path, metavar="FILE", help="a text file in UTF-8")
    _add_search(translate, beam=4)
    translate.set_defaults(handler=_translate)

    record = commands.add_parser(
        "record", help="collect an experiment in one JSON file and print its table as Markdown"
    )
    record.add_argument("run", type=Path, metavar="RUN", help="an experiment's folder")
    record.add_argument(
        "--output", type=Path, metavar="FILE", help="default: results/NAME.json for runs/NAME"
    )
    record.add_argument(
        "--add", action="store_true", help="keep the runs that the file has and the folder has not"
    )
    record.set_defaults(handler=_record)

    listing = commands.add_parser("list", help="what there is: configurations, tasks, cells, runs")
    listing.set_defaults(handler=_list)

    data = commands.add_parser("data", help="list, fetch or verify the data sets that tasks load")
    data.add_argument("action", choices=["list", "fetch", "verify"])
    data.add_argument("names", nargs="*", metavar="NAME", help="data sets; default: all")
    data.set_defaults(handler=_data)
    return root


def _demo(options: argparse.Namespace) -> int:
    from implicit_rnn.experiments import (
        demo,  # here and below, so that --help does not wait for jax
    )

    demo.run(options.output, options.seed, options.time, options.width, options.command_line)
    return 0


def _train(options: argparse.Namespace) -> int:
    from implicit_rnn.experiments import config, figures
    from implicit_rnn.experiments import runs as experiment
    from implicit_rnn.experiments.malloc import keep_freed_memory

    keep_freed_memory()
    found = config.load(options.config, options.profile, options.settings)
    name = options.config.stem + (f"-{options.profile}" if options.profile else "")
    output = options.output or Path("runs") / name
    try:
        experiment.train(
            found, output, resume=options.resume, only=options.only, command=options.command_line
        )
    except KeyboardInterrupt:
        return 130
    files = [] if options.no_figures else figures.draw(output)
    _name_files(output, files)
    return 0


def _evaluate(options: argparse.Namespace) -> int:
    from implicit_rnn.experiments import config
    from implicit_rnn.experiments import runs as experiment
    from implicit_rnn.training import checkpoint, loop

    if options.beam is not None:
        return _judge(options)
    rows, split = [], options.split or "test"
    for folder in experiment.run_folders(options.run):
        try:
            trainer, state, record = loop.restore(
                experiment.configuration(folder), folder, options.average
            )
        except checkpoint.CheckpointError as error:
            print(f"left out: {error}")
            continue
        splits = trainer.task.splits
        if split not in splits:
            raise config.ConfigError(f"no split {split!r}; there are {', '.join(splits)}")
        found = trainer.evaluate(state, splits[split])
        rows.append({"run": folder.name, "update": record["update"], **found})
    experiment.printer().print(experiment.table(f"{split} set", rows))
    return 0 if rows else 1


def _judge(options: argparse.Namespace) -> int:
    """Translates the test sets of every run."""
    from implicit_rnn.experiments import runs as experiment
    from implicit_rnn.experiments.translation import use as translated
    from implicit_rnn.training import checkpoint

    rows, search = [], _search(options)
    for folder in experiment.run_folders(options.run):
        try:
            records = translated.judge(folder, search, options.split)
        except checkpoint.CheckpointError as error:
            print(f"left out: {error}")
            continue
        rows += [{"run": folder.name, **record} for record in records]
    experiment.printer().print(experiment.table("translations", rows))
    if rows and (options.run / experiment.MARK).exists():
        experiment.tabulate(options.run, experiment.printer())
    return 0 if rows else 1


def _plot(options: argparse.Namespace) -> int:
    from implicit_rnn.experiments import figures

    _name_files(options.run, figures.draw(options.run))
    return 0


def _tag(options: argparse.Namespace) -> int:
    from implicit_rnn.experiments.tagging import page
    from implicit_rnn.experiments.tagging import use as tagged
    from implicit_rnn.training import folder

    read = _text(options)
    if options.picture and options.picture.suffix not in (".png", ".html"):
        raise folder.FolderError(f"a picture is a .png or a .html file, got {options.picture}")
    found = tagged.tag_text(tagged.load(options.run), read())
    for sentence in found:
        for word, name in zip(sentence.words, sentence.tags, strict=True):
            print(f"{word}\t{name}")
        print()
    path = options.picture
    if path and path.suffix == ".html":
        print(f"wrote {page.write_page(found, path)}", file=sys.stderr)
        return 0
    for number, sentence in enumerate(found if path else [], 1):
        own = path if number == 1 else path.with_stem(f"{path.stem}-{number}")
        print(f"wrote {tagged.picture(sentence, own)}", file=sys.stderr)
    return 0


def _translate(options: argparse.Namespace) -> int:
    from implicit_rnn.experiments.translation import use as translated

    read = _text(options)
    trained = translated.load(options.run, _search(options))
    for text in translated.translate(trained, read().splitlines()):
        print(text)
    return 0


def _record(options: argparse.Namespace) -> int:
    from implicit_rnn.experiments import runs as experiment

    experiment.run_folders(options.run)
    path = options.output or Path("results") / f"{options.run.name}.json"
    print(experiment.record(options.run, path, add=options.add))
    print(f"wrote {path}")
    return 0


def _list(options: argparse.Namespace) -> int:
    from implicit_rnn.experiments import listing

    listing.show()
    return 0


def _data(options: argparse.Namespace) -> int:
    from implicit_rnn.experiments import data

    return {"list": data.show, "fetch": data.fetch_all, "verify": data.verify_all}[options.action](
        options.names
    )


def _text(options: argparse.Namespace) -> Callable[[], str]:
    """Reads what a command is to work on: its argument, a file, or standard input."""
    from implicit_rnn.training import folder

    if options.text is not None and options.file is not None:
        raise folder.FolderError("give a text or --file, not both")
    text = options.text
    if options.file is not None:
        try:
            text = options.file.read_text("utf-8")
        except UnicodeDecodeError as error:
            raise folder.FolderError(f"{options.file} is not UTF-8: {error}") from None

    def read() -> str:
        if text is not None:
            return text
        try:
            return sys.stdin.read()
        except UnicodeDecodeError as error:
            raise folder.FolderError(f"standard input is not UTF-8: {error}") from None

    return read


def _add_search(command: argparse.ArgumentParser, beam: int | None) -> None:
    command.add_argument(
        "--average", type=_at_least(0), default=0, metavar="N",
        help="the mean of the last N checkpoints in place of the best one",
    )  # fmt: skip
    command.add_argument(
        "--beam", type=_at_least(1), default=beam, metavar="N",
        help="how many translations beam search keeps" + (f" ({beam})" if beam else ""),
    )  # fmt: skip
    command.add_argument(
        "--length-penalty", type=float, default=0.6, metavar="A",
        help="long translations are ranked by log p / ((5 + length) / 6)^A (0.6)",
    )  # fmt: skip


def _search(options: argparse.Namespace):
    from implicit_rnn.experiments.translation.use import Search

    return Search(options.beam, options.length_penalty, options.average)


def _name_files(output: Path, figures: Sequence[Path]) -> None:
    """Says what a command left behind."""
    print(f"\nall files are in {output}:")
    shown = sorted(path for path in output.rglob("*") if path.is_file())
    groups: dict[Path, list[str]] = {}
    for path in shown:
        if "checkpoints" not in path.parts and path.name != "lock":
            groups.setdefault(path.parent, []).append(path.name)
    for folder, names in groups.items():
        print(f"  {folder}: {', '.join(names)}")
    kept = sorted({path for path in output.rglob("checkpoints") if path.is_dir()})
    for folder in kept:
        print(f"  {folder}: the best and the last states")
    for path in figures:
        print(f"wrote {path}")


def _at_least(least: int):
    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not an integer") from None
        if value < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}, got {value}")
        return value

    return parse


def _version() -> str:
    try:
        return "implicit-rnn " + importlib.metadata.version("implicit-rnn")
    except importlib.metadata.PackageNotFoundError:
        return "implicit-rnn, not installed"


if __name__ == "__main__":
    sys.exit(main())
