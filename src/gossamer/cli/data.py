"""The command ``data``: data sets, partitions and models."""

import argparse
from pathlib import Path

from gossamer.cli.build import make_options, make_task
from gossamer.cli.common import check_picture, sentence
from gossamer.cli.parser import Parser
from gossamer.cli.request import CLIENTS, DATA, Request
from gossamer.core.errors import Mistakes
from gossamer.core.specs import usage
from gossamer.runs.report import text
from gossamer.tasks.data.datasets import DATASETS
from gossamer.tasks.data.partitioners import SPLITS
from gossamer.tasks.data.splits import draw, table
from gossamer.tasks.nets import NETS


def data(words: list[str]) -> int:
    """``gossamer data list`` and ``gossamer data show``."""
    parser = Parser(prog="gossamer data", description="List data sets, partitions and models, or show a partition.")
    names = parser.add_subparsers(metavar="list|show", required=True)
    names.add_parser("list", help="list data sets, partitions and models").set_defaults(do=_list)
    show = names.add_parser("show", help="show the samples of each client, as a table and as a picture")
    show.add_argument("--data", metavar="NAME", help=f"data set (default: {DATA})")
    show.add_argument("--data-dir", metavar="DIR", help="folder with the files of data sets")
    show.add_argument("--split", metavar="SPEC", help="partition (default: that of the data set)")
    show.add_argument("--clients", metavar="N", help=f"number of clients (default: {CLIENTS})")
    show.add_argument("--seed", metavar="S", default="0", help="seed of the run (default: 0)")
    show.add_argument("--out", metavar="FILE", default="split.png", help="file of the picture (default: split.png)")
    show.set_defaults(do=_show)
    arguments = parser.parse_args(words)
    status: int = arguments.do(arguments)
    return status


def _list(arguments: argparse.Namespace) -> int:
    sets = [(usage(name, source), sentence(source)) for name, source in DATASETS.items()]
    splits = [(usage(name, rule), sentence(rule)) for name, rule in SPLITS.items()]
    nets = [(name, net.summary) for name, net in NETS.items()]
    titles = (("data set", "what it is"), ("split", "what it does"), ("model", "what it is"))
    print("\n\n".join(text.table(*both) for both in zip(titles, (sets, splits, nets), strict=True)))
    return 0


def _show(arguments: argparse.Namespace) -> int:
    asked = {name: getattr(arguments, name) for name in ("data", "data_dir", "split", "clients")}
    request, picture, mistakes = Request("fedavg", **asked), Path(arguments.out), Mistakes()
    mistakes.attempt(check_picture, picture)
    options = mistakes.attempt(make_options, {"seed": arguments.seed})
    task = mistakes.attempt(make_task, request, options.seed if options else 0, None)
    mistakes.settle()
    assert task is not None  # or there were mistakes
    found, split, spec = task.data, task.split, task.names[2]
    draw(split, found, picture, spec=spec)
    facts = [(name.replace("_", " "), f"{value:,.6g}") for name, value in table(split, found).items()]
    print(text.pairs([("data", found.name), ("split", spec), *facts]))
    print(f"\npicture in {picture}")
    return 0
