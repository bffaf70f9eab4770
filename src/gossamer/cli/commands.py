"""The commands of ``gossamer``: a table of names, help lines and functions. A module is imported when it is used."""

import argparse
from importlib import import_module
from typing import NamedTuple

from gossamer import __version__
from gossamer.cli.parser import Parser
from gossamer.core.errors import ConfigError
from gossamer.core.specs import unknown


class Command(NamedTuple):
    """A command.

    Args:
        help: its line in ``gossamer --help``
        module: the module of ``gossamer.cli`` that has its function
        function: the function; it takes the words after the command and returns the exit status
    """

    help: str
    module: str
    function: str


COMMANDS = {
    "run": Command("simulate a method: gossamer run fedavg", "run", "run"),
    "sweep": Command("run a method over a grid of settings and several seeds", "sweep", "sweep"),
    "resume": Command("continue an interrupted run or sweep", "resume", "resume"),
    "runs": Command("list the runs in a folder", "inspect", "runs"),
    "show": Command("show one run in full", "inspect", "show"),
    "compare": Command("compare runs, or the points of a sweep, as a table and as curves", "inspect", "compare"),
    "export": Command("export the model of a run as files that need no Gossamer", "export", "export"),
    "methods": Command("list the methods, or show one with its flags", "methods", "methods"),
    "data": Command("list data sets, partitions and models, or show a partition", "data", "data"),
    "widths": Command("show how a network can be narrowed", "widths", "widths"),
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
    parser = top_parser()
    parser.parse_args(words)
    parser.print_help()
    return 0


def top_parser() -> Parser:
    """Return the parser of ``gossamer`` without a command."""
    width = max(map(len, COMMANDS))
    listed = "\n".join(f"  {name:<{width}}  {command.help}" for name, command in COMMANDS.items())
    top = Parser(
        prog="gossamer",
        usage="gossamer [-h] [--version] [--debug] COMMAND ...",
        description=f"{DESCRIPTION}\n\ncommands:\n{listed}",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"gossamer {__version__}")
    top.add_argument("--debug", action="store_true", help="show the traceback of an error; works with every command")
    return top
