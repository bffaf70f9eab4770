"""The command ``widths``: how a network can be narrowed."""

from gossamer.cli.build import find_part, make_task
from gossamer.cli.flags import value
from gossamer.cli.parser import Parser
from gossamer.cli.request import Request
from gossamer.core.errors import Mistakes, require
from gossamer.core.random import key
from gossamer.fleet.capacity import SHARES
from gossamer.parts.solvers.sgd import SGD
from gossamer.parts.views.sliced import tried
from gossamer.runs.report import text
from gossamer.tasks.objective import Objective
from gossamer.tasks.widths import Widths
from gossamer.tasks.widths.base import LABELS

BATCH = 16


def widths(words: list[str]) -> int:
    """``gossamer widths``."""
    arguments = _parser().parse_args(words)
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
    print(_toml(rule) if arguments.toml else _groups(rule))
    if not arguments.toml:
        _print_sizes(objective, rule, capacities or SHARES, batch or BATCH)
    return 0


def _parser() -> Parser:
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
    return parser


def _groups(rule: Widths) -> str:
    groups = [(name, f"{size:,}", ", ".join(rule.members(name))) for name, size in rule.sizes]
    return text.table(("group", "channels", "tensors"), groups)


def _print_sizes(objective: Objective, rule: Widths, capacities: tuple[float, ...], batch: int) -> None:
    """Print the size at each capacity; capacities that the network does not work with are refused at the end."""
    mistakes = Mistakes()
    rows = [mistakes.attempt(_row, objective, rule, share, batch) for share in sorted(capacities, reverse=True)]
    head = ("capacity", "parameters", "of all", f"memory, batch {batch}")
    if any(rows):
        print(f"\n{text.table(head, [row for row in rows if row])}")
    mistakes.settle()


def _row(objective: Objective, rule: Widths, share: float, batch: int) -> tuple[str, str, str, str]:
    """Return the parameters of a capacity, and the memory of training them by plain SGD."""
    like = objective.outline()
    held = tried(objective, rule, share)
    part, whole = (sum(tensor.numel() for tensor in tensors.values()) for tensors in (held, like))
    memory = objective.memory(held, SGD(batch=batch))
    return f"{share:g}", f"{part:,}", text.percent(part / whole), text.size(memory)


def _toml(rule: Widths) -> str:
    """Return the rule in the format of ``--ties``."""
    problem = "holds products of channels, which cannot be written by hand: leave out --ties, or write other groups"
    require(*((False, f"{place} {problem}") for place in rule.multiplied))
    groups = {name: list(rule.members(name)) for name, _ in rule.sizes}
    groups[LABELS] = [f"{name}[{dim}]" for name, dim in rule.labels]
    return "\n".join(
        f'"{name}" = [\n' + "".join(f'    "{p}",\n' for p in places) + "]" for name, places in groups.items()
    )
