"""The command line: a table of commands, and what happens to their errors. Their modules are imported when used.

Exit status: 0 success, 1 the command failed and finished rounds are kept, 2 wrong arguments and nothing was written,
130 interrupted from the keyboard. With ``--debug`` an error shows its traceback, including frames in user files.
"""

import argparse
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

from gossamer import __version__
from gossamer.cli import user_files
from gossamer.cli.common import Parser
from gossamer.core.errors import ConfigError, GossamerError
from gossamer.core.extras import missing
from gossamer.core.specs import unknown

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    return guarded(partial(dispatch, [word for word in words if word != "--debug"]), "--debug" in words)


def guarded(work: Callable[[], int], debug: bool = False) -> int:
    """Do work that returns an exit status; print an error as commands do, and return its status."""
    try:
        with _short_warnings():
            return work()
    except ConfigError as error:
        return _refuse(error.mistakes, 2, error if debug else None)
    except ModuleNotFoundError as error:
        return _refuse([str(missing(error))], 1, error if debug else None)
    except GossamerError as error:
        return _refuse([f"{error}{_where(error.__cause__)}"], 1, error if debug else None)
    except KeyboardInterrupt:
        return _refuse(["stopped"], 130)
    except BrokenPipeError:  # the reader of our output, such as head, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return _refuse([str(error)], 1)
    except Exception as error:
        if not (where := _where(error)):  # not raised in a user file: a bug of Gossamer
            raise
        return _refuse([f"{type(error).__name__}: {error}{where}"], 1, error if debug else None)


@contextmanager
def _short_warnings() -> Iterator[None]:
    """Print warnings of Gossamer as one line, without a place in its source; others as Python does."""
    usual = warnings.formatwarning

    def short(message: Warning | str, category: type[Warning], *place: Any, **line: Any) -> str:
        if category.__module__.startswith("gossamer."):
            return f"gossamer: warning: {message}\n"
        return usual(message, category, *place, **line)

    warnings.formatwarning = short
    try:
        yield
    finally:
        warnings.formatwarning = usual


def _where(error: BaseException | None) -> str:
    """Return the line of a user file that raised the error or its cause; empty if there is none."""
    while error is not None and not (found := user_files.place(error)):
        error = error.__cause__
    return f"{found}; --debug shows the traceback" if error is not None else ""


def _refuse(mistakes: Sequence[str], status: int, error: BaseException | None = None) -> int:
    """Print what is wrong, after the traceback if there is an error to show, and return the status."""
    sys.stdout.flush()
    if error is not None:
        traceback.print_exception(error)
    if len(mistakes) == 1:
        print(f"gossamer: {mistakes[0]}", file=sys.stderr)
    else:
        print(f"gossamer: {len(mistakes)} mistakes:", file=sys.stderr)
        print("\n".join(f"  - {mistake}" for mistake in mistakes), file=sys.stderr)
    return status


class Command(NamedTuple):
    """A command."""

    help: str  # its line in ``gossamer --help``
    module: str  # the module of ``gossamer.cli`` that has its function
    function: str  # the function; it takes the words after the command and returns the exit status


COMMANDS = {
    "run": Command("simulate a method: gossamer run fedavg", "run", "run"),
    "sweep": Command("run a method over a grid of settings and several seeds", "sweep", "sweep"),
    "resume": Command("continue an interrupted run or sweep", "resume", "resume"),
    "runs": Command("list the runs in a folder", "inspect", "runs"),
    "show": Command("show one run in full", "inspect", "show"),
    "compare": Command("compare runs, or the points of a sweep, as a table and as curves", "inspect", "compare"),
    "export": Command("export the model of a run as files that need no Gossamer", "export", "export"),
    "methods": Command("list the methods, or show one with its flags", "inspect", "methods"),
    "data": Command("list data sets, partitions and models, or show a partition", "data", "data"),
    "widths": Command("show how a network can be narrowed", "data", "widths"),
    "plan": Command("choose power, pruning and measurements for a fleet of devices", "plan", "plan"),
    "privacy": Command("show the noise that a privacy budget takes, without training", "privacy", "privacy"),
    "fleet": Command("sample, show and convert fleets of devices", "fleet", "fleet"),
    "stability": Command("measure the effect of a single training sample", "stability", "measure"),
    "deploy": Command("run a method on real machines, with Flower", "deploy", "deploy"),
}

DESCRIPTION = "Federated learning for thin devices and thin links."
EPILOG = "`gossamer COMMAND --help` describes a command."


def dispatch(words: list[str]) -> int:
    """Run the command that the words name, and return its exit status."""
    if words and not words[0].startswith("-"):
        if words[0] not in COMMANDS:
            raise ConfigError(unknown("command", words[0], COMMANDS))
        command = COMMANDS[words[0]]
        status: int = getattr(import_module(f"gossamer.cli.{command.module}"), command.function)(words[1:])
        return status
    width = max(map(len, COMMANDS))
    listed = "\n".join(f"  {name:<{width}}  {command.help}" for name, command in COMMANDS.items())
    parser = Parser(
        prog="gossamer",
        usage="gossamer [-h] [--version] [--debug] COMMAND ...",
        description=f"{DESCRIPTION}\n\ncommands:\n{listed}",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"gossamer {__version__}")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error; works with every command")
    parser.parse_args(words)
    parser.print_help()
    return 0
