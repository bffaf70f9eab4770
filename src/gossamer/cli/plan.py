"""The command ``plan``."""

import argparse
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np

from gossamer.analysis.planning import (
    PLANNED,
    Constants,
    Limits,
    MessageSize,
    Plan,
    Problem,
    Pruning,
    Share,
    Target,
    probe,
)
from gossamer.analysis.planning import plan as picture
from gossamer.analysis.planning.work import operations, tried
from gossamer.cli.build import make_task
from gossamer.cli.common import Parser, check_folder, check_picture, flag_word
from gossamer.cli.flags import value
from gossamer.cli.request import Request
from gossamer.core.availability import SECOND
from gossamer.core.errors import ConfigError, Mistakes
from gossamer.core.random import key
from gossamer.core.schedule import Schedule
from gossamer.core.specs import parse
from gossamer.fleet.fleet import Fleet
from gossamer.fleet.radio import Fading
from gossamer.fleet.units import read_power
from gossamer.methods.registry import METHODS
from gossamer.parts.channels.links import Wireless
from gossamer.parts.schedules import SCHEDULES
from gossamer.runs.report import text
from gossamer.tasks.objective import Objective

T = TypeVar("T")

ENERGIES = np.geomspace(1 / 8, 8, 17)
"""Energy budgets in the picture, as multiples of the given one."""

ONES = Constants(1.0, 1.0, 1.0)
"""L, G and D without a probe."""

NO_CORRECTION = (("none",), ())
"""Values of ``--corrected`` for the bound as printed."""

ROUNDED = 2
"""Nanoseconds that a client leaves to the clock of a schedule, which rounds computing and sending to whole ones."""

LISTED = 3
"""The largest number of clients that are listed by their numbers."""


class Watts(float):
    """Power with a unit."""

    takes = "W"

    @classmethod
    def of_text(cls, written: str) -> "Watts":
        """Read a power such as ``10mW``."""
        try:
            return cls(read_power(written))
        except ValueError:
            raise ValueError('watts such as 0.01, "10 mW" or "10 dBm"') from None


class Term(NamedTuple):
    """A flag."""

    kind: Any  # the type of its value
    default: Any  # the value if the flag is not given
    takes: str  # the placeholder of the value in help texts
    meaning: str  # the help text


BUDGETS = {
    "energy": Term(float, None, "J", "energy budget of a client per round, in joules"),
    "deadline": Term(float, None, "S", "deadline of a round, in seconds"),
}
"""Required flags; a schedule with a deadline may take the place of the deadline."""

TASK = {
    "data": Term(str, None, "NAME", "data set (default: digits)"),
    "data_dir": Term(str, None, "DIR", "folder with the files of data sets"),
    "model": Term(str, None, "NAME", "network (default: that of the data set)"),
    "split": Term(str, None, "SPEC", "partition (default: that of the data set)"),
    "task": Term(str, None, "FILE.py:NAME", "your own task, instead of data, model and split"),
}
"""The task to plan for."""

NUMBERS = {
    "parameters": Term(int, None, "N", "number of parameters of the model"),
    "flops": Term(float, None, "X", "floating-point operations of a client per round"),
    "samples": Term(int, None, "N", "number of samples of a client"),
}
"""The size of the task, instead of a task."""

OTHERS = {
    "clients": Term(int, None, "N", "number of clients (default: that of the fleet)"),
    "batch": Term(int | None, None, "N", "samples of a client per round (default: all of its samples)"),
    "seed": Term(int, 0, "S", "seed of the run, which places the devices (default: 0)"),
    "channel_seed": Term(int, 0, "S", "seed of the channel, as in wireless:seed=S (default: 0)"),
    "fading": Term(Fading, "power", "NAME", "fading: power, amplitude or none (default: power)"),
    "most_power": Term(Watts, None, "W", "largest power of devices without most_power (default: their power is fixed)"),
    "most_pruned": Term(float, 0.9, "X", "largest fraction of pruned weights (default: 0.9)"),
    "measurements": Term(
        tuple[int, ...],
        (),
        "N[,N]",
        "number of measurements, or its range (default: a tenth of the model to all of it)",
    ),
    "bits": Term(Literal[1, 2], 1, "1|2", "bits per measurement; 2 allow retained signs (default: 1)"),
    "overhead": Term(
        int,
        None,
        "BYTES",
        f"other bytes of a message (default: those of the codec, {MessageSize.overhead} with --parameters)",
    ),
}
"""Devices, links and messages."""

BOUND = {
    "smoothness": Term(float, None, "X", "L of the bound (default: 1)"),
    "gradient": Term(float, None, "X", "G of the bound, the largest gradient norm of a sample (default: 1)"),
    "weights": Term(float, None, "X", "D of the bound, the largest norm of the weights (default: 1)"),
    "reconstruction": Term(float, None, "X", "C of the bound, as a constant (default: the error of the decoder)"),
    "isometry": Term(float, 0.5, "X", "delta of the bound (default: 0.5)"),
    "coefficient": Term(float, 1.0, "X", "factor of retained gradients (default: 1)"),
    "corrected": Term(
        tuple[str, ...],
        None,
        "NAME,...",
        "corrections of the bound, or none (default: all; none with --reconstruction)",
    ),
    "probe": Term(int, None, "N", "estimate L, G and D from a run of N rounds without losses (default: they are 1)"),
}
"""Constants of the convergence bound."""

GROUPS = {
    "task": TASK,
    "size, instead of a task": NUMBERS,
    "devices, links and messages": OTHERS,
    "constants of the convergence bound": BOUND,
}


class Size(NamedTuple):
    """The size of a task."""

    parameters: int  # the number of parameters
    samples: tuple[int, ...]  # the number of samples of each client
    flops: tuple[float, ...]  # the operations of each client per round
    overhead: int = MessageSize.overhead  # the bytes of a message in addition to the measurements
    pruning: Pruning = Pruning()  # the operations that pruning saves
    constants: Constants = ONES  # L, G and D of the bound


def plan(words: list[str]) -> int:
    """``gossamer plan FLEET``."""
    arguments = _parsed(words)
    mistakes, out, drawn = Mistakes(), Path(arguments.out), Path(arguments.picture)
    mistakes.attempt(check_picture, drawn, "--picture")
    mistakes.attempt(check_folder, out)
    problem = mistakes.attempt(_problem, arguments)
    mistakes.settle()
    assert problem is not None  # or there were mistakes
    found = problem.solve()
    energies = (problem.energy * ENERGIES).tolist()
    picture.draw(energies, problem.at_energies(energies), problem.energy, drawn)
    found.write(out)
    facts, then = text.pairs(_facts(found, problem.target)), next_command(arguments, found)
    print(f"{_table(found)}\n\n{facts}\n\nplan in {out}, picture in {drawn}; to run it:\n{then}")
    return 0


def _parsed(words: list[str]) -> argparse.Namespace:
    """Return the arguments; a method or an adapter is refused with the reason."""
    parser = Parser(
        prog="gossamer plan",
        usage="gossamer plan FLEET --energy J (--deadline S | --schedule SPEC) [flags]",
        description="Choose transmit power, pruning and measurements for a fleet of devices, so that the convergence "
        "bound is smallest within the energy budget and the deadline.",
    )
    parser.add_argument("fleet", metavar="FLEET", help="file of the fleet")
    required = parser.add_argument_group("budgets, both required")
    required.add_argument("--energy", metavar=BUDGETS["energy"].takes, required=True, help=BUDGETS["energy"].meaning)
    time = required.add_mutually_exclusive_group(required=True)
    time.add_argument("--deadline", metavar=BUDGETS["deadline"].takes, help=BUDGETS["deadline"].meaning)
    time.add_argument("--schedule", metavar="SPEC", help="schedule with a deadline, such as deadline:60s,over=1.3")
    for title, terms in GROUPS.items():
        group = parser.add_argument_group(title)
        for name, term in terms.items():
            group.add_argument(flag_word(name), metavar=term.takes, help=term.meaning)
    output = parser.add_argument_group("output")
    output.add_argument("--out", metavar="FILE", default="plan.json", help="file of the plan (default: plan.json)")
    output.add_argument("--picture", metavar="FILE", default="plan.png", help="picture (default: plan.png)")
    mistakes = Mistakes()
    arguments, strange = parser.parse_known_args(words)
    for word in (arguments.fleet, *strange) if strange else ():
        if word in METHODS:
            mistakes.note(f"{word}: a plan is for onebit-cs, and other methods use only its powers: name no method")
        elif word.partition("=")[0] == "--adapter":
            mistakes.note(
                "--adapter: a plan saves operations by pruning a whole network, and the frozen weights beside an "
                "adapter are not pruned: leave it out"
            )
    mistakes.settle()
    if strange:
        parser.error(f"unrecognized arguments: {' '.join(strange)}")
    return arguments


def next_command(arguments: argparse.Namespace, found: Plan) -> str:
    """Return the command of a run that follows the plan."""
    fields = {"fading": found.fading, "seed": found.channel_seed}
    given = [f"{name}={value}" for name, value in fields.items() if value != getattr(Wireless, name)]
    channel = f"wireless:{','.join(given)}" if given else "wireless"
    words = ["gossamer", "run", "onebit-cs", "--channel", channel, "--fleet", arguments.fleet]
    words += ["--plan", arguments.out, *([] if arguments.task else ["--clients", str(len(found.clients))])]
    asked = {**{name: getattr(arguments, name) for name in TASK}, "seed": found.seed or None}
    words += [word for name, text in asked.items() if text for word in (flag_word(name), str(text))]
    words += ["--set", f"solver.batch={arguments.batch}"] if arguments.batch else []
    words += ["--no-fresh", "--retain", "signs"] if found.each > 1 else []
    words += ["--schedule", arguments.schedule] if arguments.schedule else []
    return shlex.join(words)


def _problem(arguments: argparse.Namespace) -> Problem:
    """Return the problem of the arguments, checked as a whole."""
    mistakes = Mistakes()
    terms = {**BUDGETS, **NUMBERS, **OTHERS, **BOUND}
    given: dict[str, Any] = {name: mistakes.attempt(_read, name, term, arguments) for name, term in terms.items()}
    given["deadline"] = mistakes.attempt(_deadline, arguments.schedule) if arguments.schedule else given["deadline"]
    fleet = mistakes.attempt(Fleet.of_text, arguments.fleet)
    mistakes.settle()
    assert fleet is not None  # or there were mistakes
    clients = fleet.clients if given["clients"] is None else given["clients"]
    size = mistakes.attempt(_size, arguments, given, clients)
    mistakes.settle()
    assert size is not None
    target = mistakes.attempt(_target, given, size)
    limits = mistakes.attempt(_limits, given["measurements"], size.parameters, given["most_pruned"])
    overhead = size.overhead if given["overhead"] is None else given["overhead"]
    message = mistakes.attempt(_flagged, MessageSize, given["bits"], overhead)
    mistakes.settle()
    assert target is not None
    assert limits is not None
    assert message is not None
    work = (fleet, size.flops, size.parameters, given["energy"], given["deadline"])
    links = {name: given[name] for name in ("seed", "fading", "most_power", "channel_seed")}
    return _flagged(Problem, *work, target, limits, message, pruning=size.pruning, **links)


def _deadline(written: str) -> float:
    """Return the seconds that a client has under a schedule with a deadline."""
    schedule: Schedule = parse(written, SCHEDULES, "schedule")
    if schedule.deadline is None:
        raise ConfigError(f"--schedule {written} has no deadline: give --deadline S instead, or deadline:60s")
    return (schedule.deadline - ROUNDED) / SECOND


def _target(given: dict[str, Any], size: Size) -> Target:
    """Return the bound: with the error of the decoder and all corrections, or with a constant C as in the paper."""
    constant, corrected = given["reconstruction"], given["corrected"]
    estimated = dict(zip(Constants._fields, size.constants, strict=True))
    values = estimated | {name: given[name] for name in estimated if given[name] is not None}
    values |= {} if constant is None else {"reconstruction": constant}
    if corrected is None:
        corrected = PLANNED if constant is None else ()
    values |= {"corrected": () if corrected in NO_CORRECTION else corrected}
    values |= {"entries": size.parameters if constant is None else 0, "devices": len(size.flops)}
    return _flagged(Target, sum(size.samples), **values, isometry=given["isometry"], coefficient=given["coefficient"])


def _flagged(kind: Callable[..., T], *args: Any, **more: Any) -> T:
    """Call ``kind``; mistakes about fields name their flags."""
    try:
        return kind(*args, **more)
    except ConfigError as error:
        known = {*BUDGETS, *NUMBERS, *OTHERS, *BOUND}
        named = ((re.match(r"(?:\w+\.)?(\w+)", mistake), mistake) for mistake in error.mistakes)
        raise ConfigError(
            *(f"{flag_word(at[1])}{mistake[at.end() :]}" if at and at[1] in known else mistake for at, mistake in named)
        ) from None


def _read(name: str, term: Term, arguments: argparse.Namespace) -> Any:
    typed = getattr(arguments, name)
    return term.default if typed is None else value(flag_word(name), typed, term.kind)


def _size(arguments: argparse.Namespace, given: dict[str, Any], clients: int) -> Size:
    """Return the size of a round, from numbers or from a task."""
    tasks = (*TASK, "batch", "probe")
    named = [flag_word(name) for name in tasks if getattr(arguments, name) is not None]
    numbers = {name: given[name] for name in NUMBERS}
    if all(number is None for number in numbers.values()):
        return _measured(arguments, given, clients)
    missing = [f"--{name}" for name, number in numbers.items() if number is None]
    if named or missing:
        absent = f"{', '.join(missing)} missing" if missing else f"leave out {', '.join(named)}"
        raise ConfigError(f"--parameters, --flops and --samples go together, instead of a task: {absent}")
    return Size(given["parameters"], (given["samples"],) * clients, (given["flops"],) * clients)


def _measured(arguments: argparse.Namespace, given: dict[str, Any], clients: int) -> Size:
    asked = {name: getattr(arguments, name) for name in TASK}
    number = None if arguments.task else str(clients)
    task = make_task(Request("fedavg", **asked, clients=number), given["seed"], None)
    if task.clients != clients and arguments.clients is not None:
        raise ConfigError(f"--clients is {clients}, but the task has {task.clients}: leave it out")
    objective = Objective(task, "cpu", key(given["seed"]))
    each = operations(objective)
    sizes = tuple(len(task.split.train(client)) for client in range(task.clients))
    taken = (min(size, given["batch"] or size) for size in sizes)
    overhead = MessageSize.of(objective.layout, given["bits"]).overhead
    flops = tuple(each * samples for samples in taken)
    rounds, pruning = given["probe"], Pruning.of(objective, tried(objective))
    asked = {"largest": given["most_pruned"], "seed": given["seed"]}
    constants = ONES if rounds is None else _flagged(probe, task, rounds, **asked)
    return Size(objective.layout.size, sizes, flops, overhead, pruning, constants)


def _limits(measurements: tuple[int, ...], parameters: int, most_pruned: float) -> Limits:
    if len(measurements) > 2:
        raise ConfigError(f"--measurements must be one number or two, got {len(measurements)}")
    ends = (max(1, parameters // 10), parameters) if not measurements else (measurements[0], measurements[-1])
    return _flagged(Limits, *ends, most_pruned)


COSTS = ("J computing", "sending", "s computing", "sending")
HEAD = ("device", "clients", "power W", "pruned", "lost", "Mbit/s", *COSTS, "binding")


def _table(found: Plan) -> str:
    """Return a table with one row per group of clients with the same share."""
    groups: dict[Share, list[int]] = {}
    for client, share in enumerate(found.clients):
        groups.setdefault(share, []).append(client)
    rows = []
    for share, clients in groups.items():
        which = ", ".join(map(str, clients)) if len(clients) <= LISTED else f"{len(clients):,} clients"
        spent = (share.computing_joules, share.sending_joules, share.computing_seconds, share.sending_seconds)
        quality = (text.percent(share.ratio), text.percent(share.outage), text.number(share.rate / 1e6))
        costs = map(text.number, spent)
        rows.append((share.name, which, text.number(share.power), *quality, *costs, share.binding))
    return text.table(HEAD, rows)


def _facts(found: Plan, target: Target) -> list[tuple[str, str]]:
    clients, share = found.clients, found.measurements / found.parameters
    terms = ", ".join(f"{name} {text.number(term)}" for name, term in found.terms.items())
    names = {"L": target.smoothness, "G": target.gradient, "D": target.weights}
    given = ", ".join(f"{name} = {text.number(x)}" for name, x in names.items())
    model = "the error of the decoder" if target.entries else f"C = {text.number(target.reconstruction)}"
    return [
        ("measurements", f"{found.measurements:,}, {text.percent(share)} of {found.parameters:,} parameters"),
        ("message", text.size(found.bits / 8)),
        ("energy", f"{text.number(sum(share.joules for share in clients))} J per round, sum over clients"),
        ("delay", f"{text.number(max(share.seconds for share in clients))} s per round, the slowest client"),
        ("lost messages", f"{text.percent(sum(share.outage for share in clients) / len(clients))}, mean over clients"),
        ("pruned weights", f"{text.percent(sum(found.ratios) / len(clients))}, mean over clients"),
        ("bound", f"{text.number(found.bound)}: {terms}"),
        ("constants", f"{given}, {model}"),
    ]
