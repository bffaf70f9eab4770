"""What can be typed. The flags of ``run`` depend on its method, so it has a file of its own: ``words.py``."""

import argparse
from typing import NoReturn

from gossamer import __version__
from gossamer.cli import deploy as deploying
from gossamer.cli import export as exporting
from gossamer.cli import inspect as looking
from gossamer.cli import plan as planning
from gossamer.cli import run as running
from gossamer.cli import stability as measuring
from gossamer.cli import widths
from gossamer.core.errors import ConfigError
from gossamer.core.specs import unknown

COMMANDS = (
    "run",
    "resume",
    "runs",
    "show",
    "compare",
    "export",
    "methods",
    "data",
    "widths",
    "plan",
    "stability",
    "deploy",
)


def dispatch(words: list[str]) -> int:
    """Find the command and do it."""
    if words[:1] == ["run"]:
        return running.run(words[1:])
    if words[:1] == ["stability"]:
        return measuring.measure(words[1:])
    if words[:1] == ["deploy"]:
        return deploying.deploy(words[1:])
    if words and not words[0].startswith("-") and words[0] not in COMMANDS:
        raise ConfigError(unknown("command", words[0], COMMANDS))
    parser = commands_parser()
    arguments = parser.parse_args(words)
    if not hasattr(arguments, "do"):
        parser.print_help()
        return 0
    done: int = arguments.do(arguments)
    return done


def commands_parser() -> "Parser":
    """All commands; ``run`` is there for its line in the help."""
    top = Parser(prog="gossamer", description="Federated learning for thin devices and thin links.", allow_abbrev=False)
    top.add_argument("--version", action="version", version=f"gossamer {__version__}")
    top.add_argument("--debug", action="store_true", help="show the traceback of an error; goes with every command")
    names = top.add_subparsers(title="commands", metavar="COMMAND")
    names.add_parser("run", help="run a method: gossamer run fedavg")
    resume = names.add_parser("resume", help="go on with a run that was interrupted")
    resume.add_argument("run", metavar="RUN", help="the run's folder")
    resume.set_defaults(do=running.resume)
    runs = names.add_parser("runs", help="the runs in a folder")
    runs.add_argument("dir", metavar="DIR", nargs="?", default="runs", help="where to look (runs)")
    runs.set_defaults(do=looking.runs)
    show = names.add_parser("show", help="one run in full")
    show.add_argument("run", metavar="RUN", help="the run's folder")
    how = show.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="one JSON object, for programs")
    how.add_argument("--html", action="store_true", help="write the run's report.html anew")
    show.set_defaults(do=looking.show)
    compare = names.add_parser("compare", help="runs side by side, as a table and as curves")
    compare.add_argument("run", metavar="RUN", nargs="+", help="the runs' folders")
    compare.add_argument("--out", metavar="FILE.png", default="compare.png", help="the picture (compare.png)")
    compare.set_defaults(do=looking.compare)
    _export_parser(names.add_parser("export", help="the model of a run, as files that need no Gossamer"))
    methods = names.add_parser("methods", help="the methods, or one of them with its flags")
    methods.add_argument("name", metavar="NAME", nargs="?", help="a method, or my_file.py:my_recipe (all methods)")
    methods.set_defaults(do=looking.methods)
    _widths_parser(names.add_parser("widths", help="which channels of a network are tied, and what it is without some"))
    planning.add_flags(
        names.add_parser("plan", help="power, pruning and measurements for a fleet: gossamer plan FLEET")
    )
    names.add_parser("stability", help="how much one sample matters: gossamer stability fedavg")
    names.add_parser("deploy", help="the same methods across real machines, on Flower: gossamer deploy --help")
    _data_parser(names.add_parser("data", help="data sets, splits and models"))
    return top


def _data_parser(parser: argparse.ArgumentParser) -> None:
    names = parser.add_subparsers(metavar="list|show", required=True)
    names.add_parser("list", help="data sets, splits and models").set_defaults(do=looking.data_list)
    show = names.add_parser("show", help="who holds what, as a picture")
    show.add_argument("--data", metavar="NAME", help="data set (digits)")
    show.add_argument("--data-dir", metavar="DIR", help="where the files of data sets are")
    show.add_argument("--split", metavar="SPEC", help="how samples are dealt (what suits the data)")
    show.add_argument("--clients", metavar="N", help="number of clients (50)")
    show.add_argument("--seed", metavar="S", default="0", help="seed of the run (0)")
    show.add_argument("--out", metavar="FILE.png", default="split.png", help="the picture (split.png)")
    show.set_defaults(do=looking.data_show)


def _export_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="the run's folder")
    parser.add_argument("--client", metavar="N", help="what this client deploys (the global model)")
    parser.add_argument("--out", metavar="DIR", help="where to write (export/ in the run's folder)")
    parser.set_defaults(do=exporting.write)


def _widths_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", metavar="NAME", help="data set (digits)")
    parser.add_argument("--data-dir", metavar="DIR", help="where the files of data sets are")
    parser.add_argument("--model", metavar="NAME", help="network (what suits the data)")
    parser.add_argument("--task", metavar="FILE.py:NAME", help="your own task, instead of data and model")
    parser.add_argument("--capacities", metavar="X,X,...", help="shares of the channels (1,1/2,1/4,1/8,1/16)")
    parser.add_argument("--batch", metavar="N", help="samples in a batch, on which memory depends (16)")
    parser.add_argument("--no-streams", dest="streams", action="store_false", help="every layer by itself, sums too")
    parser.add_argument("--toml", action="store_true", help="the rule as a file, to change it and give it to --ties")
    parser.set_defaults(do=widths.widths)


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, like every other mistake."""

    def error(self, message: str) -> NoReturn:
        """Refuse."""
        raise ConfigError(f"{message}: see {self.prog} --help")
