"""The command that shows how a network can be narrowed: ``widths``."""

import argparse

from gossamer.cli.flags import value
from gossamer.cli.request import Request, make_task
from gossamer.core.errors import Mistakes, require
from gossamer.core.random import key
from gossamer.fleet.capacity import SHARES
from gossamer.parts.solvers.sgd import SGD
from gossamer.parts.views.width_slice import tried
from gossamer.runs.report import text
from gossamer.tasks.objective import Objective
from gossamer.tasks.widths import Widths
from gossamer.tasks.widths.base import LABELS

BATCH = 16


def widths(arguments: argparse.Namespace) -> int:
    """Which channels of a network are tied, and what it is with some of them."""
    mistakes = Mistakes()
    named = {name: getattr(arguments, name) for name in ("data", "data_dir", "model", "task")}
    task = mistakes.attempt(make_task, Request("fedavg", **named), 0, None)
    batch = mistakes.attempt(value, "--batch", arguments.batch, int)
    capacities = mistakes.attempt(value, "--capacities", arguments.capacities, tuple[float, ...])
    for share in capacities or ():
        if not 0 < share <= 1:
            mistakes.note(f"--capacities must be in (0, 1], got {share:g}")
    if batch is not None and batch < 1:
        mistakes.note(f"--batch must be at least 1, got {batch}")
    mistakes.settle()
    assert task is not None  # or there were mistakes
    objective = Objective(task, "cpu", key(0))
    objective.check(objective.outline())
    rule = objective.widths(arguments.streams)
    print(_toml(rule) if arguments.toml else _groups(rule))
    if not arguments.toml:
        _tell(objective, rule, capacities or SHARES, batch or BATCH)
    return 0


def _groups(rule: Widths) -> str:
    groups = [(name, f"{size:,}", ", ".join(rule.places(name))) for name, size in rule.sizes]
    return text.table(("group", "channels", "where they are"), groups, text.screen())


def _tell(objective: Objective, rule: Widths, capacities: tuple[float, ...], batch: int) -> None:
    """What each capacity comes to; those that the network does not work with are refused when all are told."""
    mistakes = Mistakes()
    rows = [mistakes.attempt(_row, objective, rule, share, batch) for share in sorted(capacities, reverse=True)]
    head = ("capacity", "parameters", "of all", f"memory, batch {batch}")
    if any(rows):
        print(f"\n{text.table(head, [row for row in rows if row])}")
    mistakes.settle()


def _row(objective: Objective, rule: Widths, share: float, batch: int) -> tuple[str, str, str, str]:
    """What a client with a capacity holds, and what it takes to train that by plain SGD."""
    like = objective.outline()
    held = tried(objective, rule, share)
    many, all_ = (sum(tensor.numel() for tensor in tensors.values()) for tensors in (held, like))
    memory = objective.memory(held, SGD(batch=batch))
    return f"{share:g}", f"{many:,}", text.percent(many / all_), text.size(memory)


def _toml(rule: Widths) -> str:
    """The rule in the form that ``--ties`` reads."""
    told = "holds products of channels, which cannot be stated by hand: leave out --ties, or state other groups alone"
    require(*((False, f"{place} {told}") for place in rule.multiplied))
    groups = {name: list(rule.places(name)) for name, _ in rule.sizes}
    groups[LABELS] = [f"{name}[{dim}]" for name, dim in rule.labels]
    return "\n".join(
        f'"{name}" = [\n' + "".join(f'    "{p}",\n' for p in places) + "]" for name, places in groups.items()
    )
