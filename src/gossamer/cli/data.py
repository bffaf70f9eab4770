"""The commands ``data`` and ``widths``: data sets, partitions and models, and how a network can be narrowed."""

import argparse
from pathlib import Path

from gossamer.cli.build import make_options, make_task
from gossamer.cli.build_method import find_part
from gossamer.cli.common import Parser, check_picture, sentence
from gossamer.cli.flags import value
from gossamer.cli.request import CLIENTS, DATA, Request
from gossamer.core.errors import Mistakes, require
from gossamer.core.random import key
from gossamer.core.specs import usage
from gossamer.fleet.capacity import SHARES
from gossamer.parts.solvers.sgd import SGD
from gossamer.parts.views.sliced import tried
from gossamer.runs.report import text
from gossamer.tasks.data.datasets import DATASETS
from gossamer.tasks.data.partitioners import SPLITS
from gossamer.tasks.data.splits import draw, table
from gossamer.tasks.nets import NETS
from gossamer.tasks.objective import Objective
from gossamer.tasks.widths import Widths
from gossamer.tasks.widths.base import LABELS


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


BATCH = 16


def widths(words: list[str]) -> int:
    """``gossamer widths``."""
    parser = Parser(
        prog="gossamer widths",
        description="Show which channels of a network are tied, and its size and memory at some capacities.",
    )
    parser.add_argument("--data", metavar="NAME", help="data set (default: digits)")
    parser.add_argument("--data-dir", metavar="DIR", help="folder with the files of data sets")
    parser.add_argument("--model", metavar="NAME", help="network (default: that of the data set)")
    parser.add_argument("--task", metavar="FILE.py:NAME", help="your own task, instead of data and model")
    parser.add_argument(
        "--adapter", metavar="SPEC", help="adapter, such as lora:8; its ranks are narrowed (default: none)"
    )
    parser.add_argument("--capacities", metavar="X,X,...", help="fractions of channels (default: 1,1/2,1/4,1/8,1/16)")
    parser.add_argument("--batch", metavar="N", help=f"batch size, on which memory depends (default: {BATCH})")
    parser.add_argument(
        "--no-streams", dest="streams", action="store_false", help="do not tie layers that are added to each other"
    )
    parser.add_argument("--toml", action="store_true", help="print the rule as a file for --ties")
    arguments = parser.parse_args(words)
    mistakes = Mistakes()
    named = {name: getattr(arguments, name) for name in ("data", "data_dir", "model", "task")}
    task = mistakes.attempt(make_task, Request("fedavg", **named), 0, None)
    adapter = mistakes.attempt(find_part, "adapter", arguments.adapter, {}) if arguments.adapter else None
    batch = mistakes.attempt(value, "--batch", arguments.batch, int)
    capacities = mistakes.attempt(value, "--capacities", arguments.capacities, tuple[float, ...])
    for share in capacities or ():
        if not 0 < share <= 1:
            mistakes.note(f"--capacities must be in (0, 1], got {share:g}")
    if batch is not None and batch < 1:
        mistakes.note(f"--batch must be at least 1, got {batch}")
    mistakes.settle()
    assert task is not None  # or there were mistakes
    objective = Objective(task.adapted(adapter), "cpu", key(0))
    objective.check(objective.outline())
    rule = objective.widths(arguments.streams)
    if arguments.toml:
        print(_ties(rule))
        return 0
    tied = [(name, f"{size:,}", ", ".join(rule.members(name))) for name, size in rule.sizes]
    print(text.table(("group", "channels", "tensors"), tied))
    # Capacities that the network does not work with are refused at the end.
    shares, batch = sorted(capacities or SHARES, reverse=True), batch or BATCH
    rows = [mistakes.attempt(_size_row, objective, rule, share, batch) for share in shares]
    head = ("capacity", "parameters", "of all", f"memory, batch {batch}")
    if any(rows):
        print(f"\n{text.table(head, [row for row in rows if row])}")
    mistakes.settle()
    return 0


def _size_row(objective: Objective, rule: Widths, share: float, batch: int) -> tuple[str, str, str, str]:
    """Return the parameters of a capacity, and the memory of training them by plain SGD."""
    like = objective.outline()
    held = tried(objective, rule, share)
    part, whole = (sum(tensor.numel() for tensor in tensors.values()) for tensors in (held, like))
    memory = objective.memory(held, SGD(batch=batch))
    return f"{share:g}", f"{part:,}", text.percent(part / whole), text.size(memory)


def _ties(rule: Widths) -> str:
    """Return the rule in the format of ``--ties``."""
    problem = "holds products of channels, which cannot be written by hand: leave out --ties, or write other groups"
    require(*((False, f"{place} {problem}") for place in rule.multiplied))
    groups = {name: list(rule.members(name)) for name, _ in rule.sizes}
    groups[LABELS] = [f"{name}[{dim}]" for name, dim in rule.labels]
    listed = {name: "".join(f'    "{place}",\n' for place in places) for name, places in groups.items()}
    return "\n".join(f'"{name}" = [\n{places}]' for name, places in listed.items())
