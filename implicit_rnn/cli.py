"""The command line: parses arguments, then calls `experiments.commands`."""

from __future__ import annotations

import argparse
import importlib.metadata
import io
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from implicit_rnn.experiments.arguments import at_least, finite


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of `implicit-rnn`; returns the exit code."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    options = parser().parse_args(arguments)
    options.command_line = shlex.join(["implicit-rnn", *arguments])
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="surrogateescape")  # names of files are any bytes
    try:
        from implicit_rnn.experiments.ending import ended_by_signals

        with ended_by_signals():
            from implicit_rnn.experiments import (  # here: --help does not wait for jax
                commands,
                memory,
                programs,
            )

            memory.keep()
            programs.keep()
            code = getattr(commands, options.handler)(options)
            if sys.stdout is not None:  # closed by who called
                sys.stdout.flush()
            return code
    except KeyboardInterrupt as error:
        number = signal.Signals(error.args[0] if error.args else signal.SIGINT)
        print(f"implicit-rnn: ended by {number.name}", file=sys.stderr)
        return 128 + number
    except BrokenPipeError:  # who was reading has enough; nothing is to be written on the way out
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        words = sentence(error)
        if words is None:
            raise
        print(f"implicit-rnn: {words}", file=sys.stderr)
        return 1


def sentence(error: Exception) -> str | None:
    """What a command ends with: about its input, or what the system refuses it.

    None for anything else: a defect of the library's own keeps its traceback.
    """
    from implicit_rnn.training.files import in_words

    if isinstance(error, OSError) or type(error).__module__.startswith("implicit_rnn"):
        return in_words(error)
    if isinstance(error, UnicodeEncodeError):
        return f"what is to be printed has no words in {error.encoding}: set PYTHONIOENCODING=utf-8"
    if isinstance(error, MemoryError) or "Out of memory" in str(error):
        return f"there is not enough memory ({error}): ask for less (task, model, training.batch)"
    return None


def parser() -> argparse.ArgumentParser:
    """All commands and their options."""
    root = argparse.ArgumentParser(
        prog="implicit-rnn",
        description="Recurrent networks whose states are defined by an equation.",
        epilog="`implicit-rnn COMMAND --help` describes a command.",
    )
    root.add_argument("--version", action="version", version=_version())
    commands = root.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for add in (
        _add_demo,
        _add_train,
        _add_evaluate,
        _add_plot,
        _add_report,
        _add_starts,
        _add_tag,
        _add_translate,
        _add_record,
        _add_listing,
        _add_data,
    ):
        add(commands)
    return root


def _add_demo(commands: Any) -> None:
    command = commands.add_parser(
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
    command.add_argument(
        "--output", type=Path, default=Path("runs/demo"), metavar="DIR", help="where files go"
    )
    command.add_argument(
        "--seed", type=at_least(0, 2**31 - 1), default=0, help="of parameters and inputs"
    )
    command.add_argument("--time", type=at_least(1), default=64, help="length of the sequence")
    command.add_argument("--width", type=at_least(1), default=16, help="channels of the state")
    command.set_defaults(handler="demo")


def _add_train(commands: Any) -> None:
    command = commands.add_parser(
        "train",
        help="train what a configuration describes",
        description=(
            "Trains every run of a configuration, prints a table of them and draws figures. A run "
            "that was killed goes on with --resume as if nothing had happened."
        ),
    )
    command.add_argument(
        "config", metavar="CONFIG", help="a TOML file, or a name (`implicit-rnn list`)"
    )
    command.add_argument("--profile", help="a profile of the file: quick, paper, ...")
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="TABLE.KEY=VALUE",
        dest="settings",
        help="replaces one setting; may be repeated",
    )
    command.add_argument(
        "--only", nargs="+", default=[], metavar="RUN", help="only runs whose names fit, like 'b*'"
    )
    command.add_argument(
        "--output", type=Path, metavar="DIR", help="default: runs/CONFIG or runs/CONFIG-PROFILE"
    )
    command.add_argument("--resume", action="store_true", help="go on where the folder's runs are")
    command.add_argument(
        "--profile-trace",
        type=at_least(1),
        default=0,
        metavar="N",
        help="trace N updates of every run for a profiler, into profile/ of its folder",
    )
    command.add_argument("--no-figures", action="store_true", help="draw nothing at the end")
    command.add_argument(
        "--distributed",
        action="store_true",
        help="one of several processes, of this machine or others, that train together; under "
        "SLURM, Open MPI, Kubernetes or on a Cloud TPU they find each other (docs/scaling.md)",
    )
    command.add_argument(
        "--coordinator",
        metavar="HOST:PORT",
        help="with --distributed: where process 0 listens; default: $JAX_COORDINATOR_ADDRESS",
    )
    command.add_argument(
        "--processes",
        type=at_least(1),
        metavar="N",
        help="with --distributed: how many there are; default: $JAX_NUM_PROCESSES",
    )
    command.add_argument(
        "--process",
        type=at_least(0),
        metavar="I",
        help="with --distributed: which one this is, from 0; default: $JAX_PROCESS_ID",
    )
    command.set_defaults(handler="train")


def _add_evaluate(commands: Any) -> None:
    command = commands.add_parser(
        "evaluate",
        help="metrics of a run's best checkpoint, or of the mean of several",
        description=(
            "Prints metrics of trained runs on one of their sets. With --beam, translates test "
            "sets by beam search, writes the translations and adds their BLEU to the run's result; "
            "of other sequences (parsing, sorting, trees), the share that the search finds whole."
        ),
    )
    command.add_argument("run", type=Path, metavar="RUN", help="a run's or experiment's folder")
    command.add_argument(
        "--split",
        help="train, valid, test, or a part of it that the task names; default: test, "
        "with --beam all test sets",
    )
    _add_search(command, beam=None)
    command.set_defaults(handler="evaluate")


def _add_plot(commands: Any) -> None:
    command = commands.add_parser("plot", help="draw the figures of a run or an experiment")
    command.add_argument("run", type=Path, metavar="RUN", help="a folder, or recorded results")
    command.add_argument("--output", type=Path, metavar="DIR", help="of figures of a .json file")
    command.set_defaults(handler="plot")


def _add_report(commands: Any) -> None:
    command = commands.add_parser(
        "report",
        help="a run or an experiment as one HTML file, to be opened from disk",
        description=(
            "Writes report.html into the folder: the table beside the paper's numbers, learning "
            "curves, what solves took while training, figures, pictures of test sequences to page "
            "through, configuration and versions. The file needs no other and no network."
        ),
    )
    command.add_argument("run", type=Path, metavar="RUN", help="a run's or experiment's folder")
    command.set_defaults(handler="report")


def _add_starts(commands: Any) -> None:
    command = commands.add_parser(
        "starts",
        help="solve test sequences from several starts: how many end in other states?",
        description=(
            "Solves a set of a tagger's task as usual, from zeros, from random states; "
            "prints how many sequences end in other states and what that does to the error."
        ),
    )
    command.add_argument("run", type=Path, metavar="RUN", help="a run's or experiment's folder")
    command.add_argument("--split", default="test", help="train, valid or test (%(default)s)")
    command.add_argument(
        "--draws", type=at_least(0), default=4, metavar="N", help="random starts (%(default)s)"
    )
    command.add_argument("--output", type=Path, metavar="FILE", help="a JSON file for the table")
    command.set_defaults(handler="starts")


def _add_tag(commands: Any) -> None:
    command = commands.add_parser(
        "tag",
        help="tag the words of a text with a trained tagger",
        description=(
            "Prints every word with its tag, a line each, and a blank line after each sentence. "
            "Without TEXT and --file, the text is read from standard input. A line break always "
            "ends a sentence."
        ),
    )
    command.add_argument("run", type=Path, metavar="RUN", help="a run's folder")
    command.add_argument("text", nargs="?", metavar="TEXT", help="a sentence, or several")
    command.add_argument("--file", type=Path, metavar="FILE", help="a text file in UTF-8")
    command.add_argument(
        "--picture",
        type=Path,
        metavar="FILE",
        help="draw where each word looks, to the past or to the future: FILE.html, a page of all "
        "sentences, or FILE.png, with FILE-2.png and so on for further ones",
    )
    command.set_defaults(handler="tag")


def _add_translate(commands: Any) -> None:
    command = commands.add_parser(
        "translate",
        help="translate sentences with a trained translation",
        description=(
            "Prints the translation of every line of a text. Without TEXT and --file, the text is "
            "read from standard input."
        ),
    )
    command.add_argument("run", type=Path, metavar="RUN", help="a run's folder")
    command.add_argument("text", nargs="?", metavar="TEXT", help="a sentence, or several lines")
    command.add_argument("--file", type=Path, metavar="FILE", help="a text file in UTF-8")
    _add_search(command, beam=4)
    command.set_defaults(handler="translate")


def _add_record(commands: Any) -> None:
    command = commands.add_parser(
        "record", help="collect an experiment in one JSON file and print its table as Markdown"
    )
    command.add_argument("run", type=Path, metavar="RUN", help="an experiment's folder")
    command.add_argument(
        "--output", type=Path, metavar="FILE", help="default: results/NAME.json for runs/NAME"
    )
    command.add_argument(
        "--add", action="store_true", help="keep the runs that the file has and the folder has not"
    )
    command.set_defaults(handler="record")


def _add_listing(commands: Any) -> None:
    command = commands.add_parser("list", help="what there is: configurations, tasks, cells, runs")
    command.set_defaults(handler="list_all")


def _add_data(commands: Any) -> None:
    command = commands.add_parser("data", help="list, fetch or verify the data sets of tasks")
    command.add_argument("action", choices=["list", "fetch", "verify"])
    command.add_argument("names", nargs="*", metavar="NAME", help="data sets; default: all")
    command.set_defaults(handler="data")


def _add_search(command: argparse.ArgumentParser, beam: int | None) -> None:
    command.add_argument(
        "--average",
        type=at_least(0),
        default=0,
        metavar="N",
        help="the mean of the last N checkpoints in place of the best one",
    )
    command.add_argument(
        "--beam",
        type=at_least(1),
        default=beam,
        metavar="N",
        help="how many translations beam search keeps" + (f" ({beam})" if beam else ""),
    )
    command.add_argument(
        "--length-penalty",
        type=finite,
        default=0.6,
        metavar="A",
        help="long translations are ranked by log p / ((5 + length) / 6)^A (0.6)",
    )


def _version() -> str:
    try:
        return "implicit-rnn " + importlib.metadata.version("implicit-rnn")
    except importlib.metadata.PackageNotFoundError:
        return "implicit-rnn, not installed"


if __name__ == "__main__":
    sys.exit(main())
