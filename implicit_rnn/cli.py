"""The command line: parses arguments and calls what does the work."""

from __future__ import annotations

import argparse
import importlib.metadata
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of `implicit-rnn`; returns the exit code."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    options = parser().parse_args(arguments)
    options.command_line = shlex.join(["implicit-rnn", *arguments])
    try:
        return options.handler(options)
    except OSError as error:
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
    return root


def _demo(options: argparse.Namespace) -> int:
    from implicit_rnn import demo  # here, so that --help does not wait for jax

    demo.run(options.output, options.seed, options.time, options.width, options.command_line)
    return 0


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
